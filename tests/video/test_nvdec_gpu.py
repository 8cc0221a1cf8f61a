"""Decoding on a real GPU. Without one, or without its library, these tests are skipped."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from allocembed import AllocEmbed
from allocembed.errors import AllocEmbedError
from allocembed.policy.replay import Replay
from allocembed.video import open_video
from allocembed.video.decoders.nvdec.gpu import Nvdec, find_library
from allocembed.video.decoders.nvdec.groups import GroupDecoder
from tests.clips import picture, time_of_decoding, write_video

GROUPS = {"g": "12", "bf": "3"}
X265 = "log-level=none:keyint=12:open-gop="
FILES = {
    "b_frames.mp4": {"options": GROUPS},
    "matroska.mkv": {"options": GROUPS},
    "transport.ts": {"options": {"g": "12", "bf": "2"}},
    "open_groups.mp4": {"options": {**GROUPS, "x264-params": "open-gop=1"}},
    "one_group.mp4": {"options": {"g": "300", "bf": "3"}},
    "full_range.mp4": {"options": GROUPS, "pixels": "yuvj420p"},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "0"}},
    "hevc_open_groups.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "1"}},
    "hevc_ten_bits.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": X265 + "0"}},
    "hevc_top_left.mp4": {  # where the chroma of HDR usually lies
        "codec": "libx265",
        "pixels": "yuv420p10le",
        "options": {"x265-params": X265 + "0:chromaloc=2"},
    },
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"g": "12", "deadline": "realtime", "cpu-used": "8"}},
}


def usable() -> bool:
    if not torch.cuda.is_available():
        return False
    try:
        return bool(find_library())
    except AllocEmbedError:
        return False


pytestmark = pytest.mark.skipif(not usable(), reason="needs a GPU with decoders, and PyNvVideoCodec")


def real_gpu(*, shared: bool = False) -> Nvdec:
    return Nvdec(torch.device("cuda", 0), shared=shared)


def make(folder: Path, name: str, size: tuple[int, int] = (320, 240), frames: int = 50, **other: object) -> Path:
    pictures = [picture(number, *size) for number in range(frames)]
    return write_video(folder / name, pictures, **(FILES.get(name, {"options": GROUPS}) | other))


def assert_same(found, expected) -> None:
    assert isinstance(found.frames, torch.Tensor) and found.frames.is_cuda
    assert found.indices.tolist() == expected.indices.tolist() and found.times.tolist() == expected.times.tolist()
    assert np.array_equal(found.on_host().frames, expected.frames)


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
@pytest.mark.parametrize("name", FILES)
def test_frames_and_times_are_those_of_pyav(tmp_path, name, seek):
    path, gpu = make(tmp_path, name), real_gpu()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        expected, found = plain.sample(9, seek), fast.sample(9, seek)
    assert_same(found, expected)
    assert gpu.files == 1 and not gpu.declined


@pytest.mark.parametrize("name", ["b_frames.mp4", "hevc_ten_bits.mp4"])
@pytest.mark.parametrize("aspect", [Fraction(3, 2), Fraction(3, 4), Fraction(16, 15)])
def test_pixels_come_out_square(tmp_path, name, aspect):
    def widen(stream):
        stream.codec_context.sample_aspect_ratio = aspect

    path, gpu = make(tmp_path, name, prepare=widen), real_gpu()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert_same(fast.sample(5), plain.sample(5))
    assert gpu.files == 1 and not gpu.declined


def test_times_in_another_order_than_the_pictures_are_noticed(tmp_path):
    path, gpu = make(tmp_path, "times.mp4", change=time_of_decoding), real_gpu()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        for count in (5, 9, 20):
            assert_same(fast.sample(count), plain.sample(count))
    assert list(gpu.declined) == ["unusual times"]


def test_one_place_decodes_files_of_many_kinds_in_turn(tmp_path):
    gpu = real_gpu()
    sizes = [(320, 240), (640, 360), (320, 240), (258, 194), (320, 240), (1920, 1080), (1920, 1088)]
    for number, size in enumerate(sizes):
        path = make(tmp_path, f"{number}.mp4", size, 24, options=GROUPS | {"refs": str(1 + number % 3 * 4)})
        with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
            assert_same(fast.sample(7), plain.sample(7))
    assert gpu.files == len(sizes) and not gpu.declined


def test_windows_are_those_of_pyav(tmp_path):
    path = make(tmp_path, "b_frames.mp4")
    with open_video(path) as plain, open_video(path, decoders=real_gpu()) as fast:
        for found, expected in zip(fast.windows(3, 4), plain.windows(3, 4), strict=True):
            assert_same(found, expected)


def test_what_the_gpu_lacks_is_decoded_by_pyav(tmp_path):
    gpu = real_gpu()
    path = make(tmp_path, "ten.mp4", pixels="yuv420p10le")
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert_same(fast.sample(5), plain.sample(5))
    assert list(gpu.declined) in ([], ["H264 of 10 bits and 320x240"])


def test_many_threads_read_while_the_gpu_computes_and_graphs_are_captured(tmp_path):
    """Pictures that are copied too early, or overwritten, differ; a capture that another thread breaks is an error."""
    kinds = [((640, 360), "1"), ((640, 360), "8"), ((320, 240), "3")]
    paths = [make(tmp_path, f"{k}.mp4", size, 40, options=GROUPS | {"refs": r}) for k, (size, r) in enumerate(kinds)]
    paths.append(make(tmp_path, "hevc_ten_bits.mp4", (640, 360), 40))  # which another kernel converts
    expected = []
    for path in paths:
        with open_video(path) as video:
            expected.append(video.sample(9))
    gpu, ends, captures = real_gpu(), threading.Event(), []

    def read(number: int) -> None:
        with open_video(paths[number % 4], decoders=gpu) as video:
            assert_same(video.sample(9), expected[number % 4])

    def compute() -> None:
        matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        while not ends.is_set():
            for _ in range(20):
                matrix = (matrix @ matrix).clamp_(-1, 1)
            torch.cuda.current_stream().synchronize()

    def capture() -> None:
        lane, count = torch.cuda.Stream(), 0
        with torch.cuda.stream(lane):
            while not ends.is_set():
                replay = Replay(lambda _, values: values * 2 + 1, lambda kind, values: None)
                values = torch.full((16,), float(count), device="cuda")
                assert replay("double", values).tolist() == [2.0 * count + 1] * 16
                captures.append(replay.works)
                count += 1

    with ThreadPoolExecutor(18) as pool:
        around = [pool.submit(compute), pool.submit(capture)]
        reads = [pool.submit(read, number) for number in range(96)]
        try:
            for each in reads:
                each.result()
        finally:
            ends.set()
        for each in around:
            each.result()
    assert gpu.files == 96 and not gpu.declined
    assert captures and all(captures)


@pytest.mark.parametrize(
    ("codec", "pixels"), [("libx264", "yuv420p"), ("libx265", "yuv420p"), ("libx265", "yuv420p10le")]
)
def test_one_file_is_decoded_in_several_sessions_at_once(tmp_path, monkeypatch, codec, pixels):
    """A picture whose memory is used again too early differs. Filters of 10 bits are read in several streams."""
    options = {"g": "40", "bf": "3"} if codec == "libx264" else {"x265-params": "log-level=none:keyint=40:open-gop=0"}
    path = make(tmp_path, "long.mp4", frames=440, codec=codec, options=options, pixels=pixels)
    gpu = real_gpu()
    used, decode = set(), GroupDecoder.decode_whole
    monkeypatch.setattr(GroupDecoder, "decode_whole", lambda self, *given: used.add(self) or decode(self, *given))
    with ExitStack() as stack:
        for video in [stack.enter_context(open_video(path, decoders=gpu)) for _ in range(4)]:
            video.sample(1)
    with open_video(path) as plain:
        expected = plain.sample(9)
    for _ in range(20):
        with open_video(path, decoders=gpu) as fast:
            assert_same(fast.sample(9), expected)
    assert len(used) >= 20 and not gpu.declined


@pytest.mark.parametrize("decoder", ["auto", "nvdec"])
def test_vectors_are_those_of_pyav(tmp_path, qwen3_folder, decoder):
    paths = [make(tmp_path, f"{number}.mp4", size) for number, size in enumerate([(320, 240), (640, 360)] * 8)]
    vectors = []
    for name in ("pyav", decoder):
        embedder = AllocEmbed.from_pretrained(qwen3_folder, "content", device="cuda", decoder=name)
        vectors.append(np.stack([one.vector for one in embedder.encode_videos(paths)]).astype(float))
    assert (1 - (vectors[0] * vectors[1]).sum(1)).max() < 1e-4
