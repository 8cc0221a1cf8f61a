"""Decoding on a GPU: through a stand-in for its library that decodes with FFmpeg, and real files."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from allocembed import AllocEmbed, EmbedConfig
from allocembed.errors import AllocEmbedError, ConfigError
from allocembed.video import DecodeLimits, open_video
from allocembed.video.decoders.nvdec import colours, display, groups, sessions
from allocembed.video.decoders.nvdec import decoder as nvdec
from allocembed.video.decoders.nvdec import gpu as gpus
from allocembed.video.decoders.nvdec.gpu import CORES_BESIDE, Nvdec
from allocembed.video.decoders.nvdec.turns import FORGET
from allocembed.video.decoders.pyav import PyAV
from allocembed.video.decoders.registry import find_decoders
from allocembed.video.source import Canvas
from tests.clips import picture, time_of_decoding, write_video
from tests.nvdec import Library, stand_in

X265 = "log-level=none:keyint=12"
FILES = {
    "b_frames.mp4": {"options": {"g": "12", "bf": "3"}},
    "no_b_frames.mp4": {"options": {"g": "12", "bf": "0"}},
    "matroska.mkv": {"options": {"g": "12", "bf": "3"}},
    "transport.ts": {"options": {"g": "12", "bf": "2"}},
    "open_groups.mp4": {"options": {"g": "12", "bf": "3", "x264-params": "open-gop=1"}},
    "one_group.mp4": {"options": {"g": "300", "bf": "3"}},
    "uneven.mp4": {"stamps": np.cumsum(np.arange(50) % 3 + 1).tolist(), "time_base": Fraction(1, 60)},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": X265}},
    "hevc_ten_bits.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": X265}},
    "full_range.mp4": {"pixels": "yuvj420p"},
    # An edit list hides the first frames, as in a trimmed film, and of the second file the only keyframe.
    "trimmed.mp4": {"frames": 55, "stamps": range(-5, 50), "options": {"g": "12", "bf": "3", "sc_threshold": "0"}},
    "trimmed_one_group.mp4": {"frames": 55, "stamps": range(-5, 50), "options": {"g": "300", "bf": "3"}},
    # Chroma lies in other places than usual.
    "top_left.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": X265 + ":chromaloc=2"}},
    "bottom.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": X265 + ":chromaloc=5"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8"}},
}


def make(folder: Path, name: str) -> Path:
    return write_video(folder / name, **FILES[name])


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
@pytest.mark.parametrize("name", FILES)
def test_frames_and_times_are_those_of_pyav(tmp_path, name, seek):
    path, gpu = make(tmp_path, name), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        expected, found = plain.sample(9, seek), fast.sample(9, seek)
    assert isinstance(found.frames, torch.Tensor)
    assert found.indices.tolist() == expected.indices.tolist() and found.times.tolist() == expected.times.tolist()
    assert np.array_equal(found.frames.numpy(), expected.frames)
    assert gpu.files == 1 and not gpu.declined


@pytest.mark.parametrize(("together", "read"), [(1, 1 << 22), (3, 1 << 22), (32, 1), (32, 3000)])
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".mp4")])
def test_frames_do_not_depend_on_how_many_are_read_and_decoded_at_once(tmp_path, monkeypatch, name, together, read):
    monkeypatch.setattr(groups, "TOGETHER", together)
    monkeypatch.setattr(groups, "READ", read)
    path, gpu = make(tmp_path, name), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        for wanted in ([0], [11, 12, 13], [3, 30, 31, 49], list(range(50)), [9, 35]):  # in one session
            both = (video.decoder.pictures(video.table, wanted) for video in (plain, fast))
            for index, expected, found in zip(wanted, *both, strict=True):
                assert found[:2] == expected[:2] and found[0] == index
                assert np.array_equal(found[2].numpy(), expected[2])
    assert not gpu.declined


@pytest.mark.parametrize("name", ["b_frames.mp4", "hevc.mp4"])  # whose groups are closed, and open
@pytest.mark.parametrize(("seek", "most"), [("exact", 10), ("keyframe", 14)])
def test_a_few_calls_decode_a_video(tmp_path, name, seek, most):
    library, path = Library(), make(tmp_path, name)
    with open_video(path, decoders=stand_in(library)) as video:
        video.sample(9, seek)
    assert library.packets <= most


def test_sound_between_the_pictures_is_skipped(tmp_path):
    path, gpu = tmp_path / "sound.mp4", stand_in()
    with av.open(str(path), "w") as container:
        video, sound = container.add_stream("libx264", rate=25), container.add_stream("aac", rate=48000)
        video.width, video.height, video.pix_fmt, video.options = 64, 48, "yuv420p", {"g": "12", "bf": "3"}
        for number in range(50):
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture(number), format="rgb24")))
            noise = av.AudioFrame.from_ndarray(np.zeros((1, 1920), np.float32), format="flt", layout="mono")
            noise.sample_rate, noise.pts = 48000, 1920 * number
            container.mux(sound.encode(noise))
        container.mux(video.encode())
        container.mux(sound.encode())
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert fast.table.layout is not None
        assert np.array_equal(fast.sample(9).frames.numpy(), plain.sample(9).frames)
    assert gpu.files == 1 and not gpu.declined


@pytest.mark.parametrize("after", [0, 7, 30, 36])
def test_a_picture_that_the_gpu_loses_is_noticed(tmp_path, after):
    path, gpu = make(tmp_path, "b_frames.mp4"), stand_in(Library(loses=after))
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(30).frames.numpy(), plain.sample(30).frames)
    assert list(gpu.declined) == ["unusual times"]


def test_damaged_packets_are_left_to_pyav(tmp_path):
    path, gpu = make(tmp_path, "no_b_frames.mp4"), stand_in()
    with open_video(path) as video:
        place = int(video.table.layout.starts[20])
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\x7f")
    with open_video(path, decoders=gpu) as video, pytest.raises(AllocEmbedError, match="cannot decode"):
        video.sample(30)
    assert list(gpu.declined) == ["damaged packets"]


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize(("distance", "between"), [("12", "3"), ("12", "1"), ("300", "3"), ("12", "0")])
def test_times_in_another_order_than_the_pictures_are_noticed(tmp_path, suffix, distance, between):
    options = {"g": distance, "bf": between, "sc_threshold": "0"}
    path, gpu = write_video(tmp_path / f"times.{suffix}", options=options, change=time_of_decoding), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert (fast.table.layout is not None) == (suffix == "mp4")
        for count in (5, 9, 20, 50):
            expected, found = plain.sample(count), fast.sample(count)
            assert np.array_equal(np.asarray(found.frames), expected.frames)
    assert list(gpu.declined) == ([] if between == "0" else ["unusual times"])


def test_places_are_given_back_whatever_happens(tmp_path, monkeypatch):
    gpu, path = stand_in(shared=True), make(tmp_path, "b_frames.mp4")
    refused, broken = write_video(tmp_path / "other.mp4", 20, pixels="yuv444p"), make(tmp_path, "one_group.mp4")
    with open_video(broken) as video:
        place = int(video.table.layout.starts[20])
    with broken.open("r+b") as file:
        file.seek(place)
        file.write(b"\x7f")
    for _ in range(Nvdec.places):
        with open_video(refused, decoders=gpu) as video:
            video.sample(3)
        with open_video(path, decoders=gpu) as video:
            next(video.windows(3, 2))  # and no other window
        with pytest.raises(AllocEmbedError), open_video(broken, decoders=gpu) as video:
            video.sample(30)
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(sessions, "DecoderSlot", lambda device: (_ for _ in ()).throw(MemoryError))
            gpu._idle.clear()
            open_video(path, decoders=gpu)
    for _ in range(Nvdec.places):
        gpu.turns.take_place(1).use_beside(0)
    assert gpu.turns.take_place(1) is None


def test_windows_are_those_of_pyav(tmp_path):
    path, gpu = make(tmp_path, "b_frames.mp4"), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        for expected, found in zip(plain.windows(3, 4), fast.windows(3, 4), strict=True):
            assert np.array_equal(found.frames.numpy(), expected.frames)


@pytest.mark.parametrize(("degrees", "mirrored"), [(90, False), (180, False), (270, False), (0, True), (90, True)])
def test_frames_come_out_upright(tmp_path, degrees, mirrored):
    path = write_video(
        tmp_path / "turned.mp4", 5, prepare=lambda stream: stream.set_display_rotation(degrees, hflip=mirrored)
    )
    with open_video(path) as plain, open_video(path, decoders=stand_in()) as fast:
        assert np.array_equal(fast.sample(3).frames.numpy(), plain.sample(3).frames)


@pytest.mark.parametrize("name", ["b_frames.mp4", "hevc_ten_bits.mp4"])
@pytest.mark.parametrize(("aspect", "width"), [(Fraction(3, 2), 96), (Fraction(3, 4), 48), (Fraction(16, 15), 68)])
def test_pixels_come_out_square(tmp_path, name, aspect, width):
    def widen(stream):
        stream.codec_context.sample_aspect_ratio = aspect

    path = write_video(tmp_path / name, **FILES[name], prepare=widen)
    with open_video(path) as plain, open_video(path, decoders=stand_in()) as fast:
        expected, found = plain.sample(3).frames, fast.sample(3).frames.numpy()
    assert found.shape == expected.shape == (3, 48, width, 3)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["b_frames.mp4", "hevc_ten_bits.mp4"])
def test_pictures_that_ffmpeg_converts_in_another_way_are_left_to_it(tmp_path, monkeypatch, name):
    monkeypatch.setattr(display, "_equal", {})
    monkeypatch.setattr(display, "_noise_in_rgb", display._noise_in_rgb.__wrapped__)
    monkeypatch.setitem(colours.SHARES, 5, (0.3, 0.1))
    path, gpu = make(tmp_path, name), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(3).frames.numpy(), plain.sample(3).frames)
    assert "unlike FFmpeg" in next(iter(gpu.declined))


def test_a_gpu_that_converts_wrongly_is_left_alone(tmp_path, monkeypatch):
    """As by a kernel that a compiler has spoilt. That is noticed before its first picture is used."""
    exact = colours.Colours.to_rgb
    monkeypatch.setattr(display, "_equal", {})
    monkeypatch.setattr(display, "_noise_in_rgb", display._noise_in_rgb.__wrapped__)
    monkeypatch.setattr(colours.Colours, "to_rgb", lambda *given: exact(*given) ^ 1)
    path, gpu = make(tmp_path, "b_frames.mp4"), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(3).frames, plain.sample(3).frames)
    assert "unlike FFmpeg" in next(iter(gpu.declined))


def test_frames_from_which_no_other_is_made_are_spared(tmp_path):
    path, library = make(tmp_path, "one_group.mp4"), Library()
    with open_video(path, decoders=stand_in(library)) as video:
        video.sample(2)
    assert library.frames < 40


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("colours.mp4", {"pixels": "yuv444p"}, "yuv444p"),
        ("mpeg4.mp4", {"codec": "mpeg4"}, "mpeg4"),
        ("still.gif", {"codec": "gif", "pixels": "rgb8"}, "gif"),
    ],
)
def test_what_the_gpu_cannot_take_is_decoded_by_pyav_and_counted(tmp_path, name, options, reason):
    path, gpu = write_video(tmp_path / name, 20, **options), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(4).frames.numpy(), plain.sample(4).frames)
    assert gpu.files == 0 and reason in next(iter(gpu.declined))
    assert str(gpu.tally()).startswith("the GPU decoded 0 files, PyAV 1 (")


def test_a_gpu_without_the_codec_or_for_smaller_pictures_is_not_asked(tmp_path):
    path = make(tmp_path, "b_frames.mp4")
    for able in ({"supported": 0}, {"width_max": 48}, {"height_min": 64}):
        gpu = stand_in(Library(able=able))
        with open_video(path, decoders=gpu) as video:
            assert len(video.sample(4)) == 4
        assert list(gpu.declined) == ["H264 of 8 bits and 64x48"]


@pytest.mark.parametrize(
    ("name", "after"),
    [*(("b_frames.mp4", after) for after in (1, 3, 5)), *(("matroska.mkv", after) for after in (1, 12, 30))],
)
def test_what_is_left_after_an_error_is_decoded_by_pyav(tmp_path, monkeypatch, name, after):
    monkeypatch.setattr(groups, "TOGETHER", 3)
    path, gpu = make(tmp_path, name), stand_in(Library(breaks_at=after))
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(9).frames.numpy(), plain.sample(9).frames)
        assert np.array_equal(fast.sample(5, "keyframe").frames.numpy(), plain.sample(5, "keyframe").frames)
    assert list(gpu.declined) == ["RuntimeError on the GPU"]


def test_a_session_serves_one_file_after_the_other(tmp_path):
    library = Library()
    gpu = stand_in(library)
    for name in ("b_frames.mp4", "matroska.mkv", "b_frames.mp4"):
        path = make(tmp_path, name)
        with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
            assert np.array_equal(fast.sample(5).frames.numpy(), plain.sample(5).frames)
    assert library.sessions == 1 and gpu.files == 3


def test_files_of_another_size_or_with_other_references_get_a_session_of_their_own(tmp_path):
    library, kinds = Library(), [(64, "1"), (96, "1"), (64, "6"), (80, "1"), (64, "1")]
    gpu = stand_in(library)
    for width, references in kinds:
        frames = [picture(number, width) for number in range(30)]
        path = write_video(tmp_path / f"{width}.mp4", frames, options={"g": "12", "refs": references})
        with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
            assert np.array_equal(fast.sample(5).frames.numpy(), plain.sample(5).frames)
    assert gpu.files == len(kinds) and not gpu.declined
    assert library.sessions == len(kinds)  # the first one was dropped meanwhile


@pytest.mark.parametrize(
    "read",
    [lambda video: video.sample(5), lambda video: video.sample_many([3, 5]), lambda video: list(video.windows(3, 2))],
)
def test_clips_are_put_together_in_the_lane_of_their_decoder(tmp_path, monkeypatch, read):
    """Elsewhere, a GPU could copy a picture before it is converted."""
    inside, put, puts = [], Canvas.put, []

    @contextmanager
    def lane(slot):
        inside.append(slot)
        yield
        inside.pop()

    def checked(canvas, slot, image):
        puts.append(len(inside))
        put(canvas, slot, image)

    monkeypatch.setattr(nvdec.DecoderSlot, "lane", lane)
    monkeypatch.setattr(Canvas, "put", checked)
    with open_video(make(tmp_path, "b_frames.mp4"), decoders=stand_in()) as video:
        read(video)
    assert len(puts) > 4 and set(puts) == {1}


@pytest.mark.parametrize("pixels", ["yuv420p", "yuv444p"])
def test_ffmpeg_gets_its_threads_only_where_it_takes_over(tmp_path, pixels):
    path = write_video(tmp_path / "a.mp4", 20, pixels=pixels)
    with open_video(path, decoders=stand_in(), limits=DecodeLimits(threads=2)) as video:
        video.sample(4)
        assert video.decoder.demuxer.stream.codec_context.thread_count == (1 if pixels == "yuv420p" else 2)


def test_pyav_takes_the_files_with_which_it_is_done_first(tmp_path, monkeypatch):
    monkeypatch.setattr(Nvdec, "places", 1)
    path, gpu = make(tmp_path, "b_frames.mp4"), stand_in(shared=True)
    with open_video(path, decoders=gpu) as first:
        assert isinstance(first.sample(3).frames, torch.Tensor)
        first.decoder._place.began -= 10.0
    guess = gpu.turns.cores
    assert gpu.turns.gpu > guess > 0  # the GPU was occupied for longer than the cores would be
    with open_video(path, decoders=gpu) as second:
        assert isinstance(second.sample(3).frames, torch.Tensor)
        with open_video(path, decoders=gpu) as third:
            assert isinstance(third.sample(3).frames, np.ndarray)
            assert third.decoder.demuxer.stream.codec_context.thread_count == CORES_BESIDE
    assert gpu.turns.gpu > gpu.turns.cores > 0 and gpu.turns.cores not in (guess, guess * FORGET)


def test_the_cores_are_not_tried_on_a_few_files(tmp_path, monkeypatch):
    monkeypatch.setattr(Nvdec, "places", 1)
    path, gpu = make(tmp_path, "b_frames.mp4"), stand_in(shared=True)
    for _ in range(3):
        with open_video(path, decoders=gpu) as video:
            video.sample(9)
    gpu.turns.cores = 100 * gpu.turns.gpu
    with ThreadPoolExecutor(4) as pool:

        def read(_):
            with open_video(path, decoders=gpu) as video:
                return type(video.sample(9).frames)

        assert set(pool.map(read, range(8))) == {torch.Tensor}
    assert not gpu.declined


def test_a_broken_file_is_an_error_with_its_name(tmp_path):
    path = make(tmp_path, "one_group.mp4")
    path.write_bytes(path.read_bytes()[:-400])
    with (
        pytest.raises(AllocEmbedError, match=r"one_group.mp4: .*(truncated|cannot)"),
        open_video(path, decoders=stand_in()) as video,
    ):
        video.sample(5)


def test_a_bug_of_ours_is_not_taken_for_a_failure_of_the_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(nvdec, "find_display", lambda *given: [][0])
    with pytest.raises(IndexError), open_video(make(tmp_path, "b_frames.mp4"), decoders=stand_in()) as video:
        video.sample(5)


def test_frames_over_the_limit_are_refused(tmp_path):
    path = make(tmp_path, "b_frames.mp4")
    with pytest.raises(AllocEmbedError, match="over the limit"):
        open_video(path, decoders=stand_in(), limits=DecodeLimits(max_pixels=100))


def test_without_the_library_or_its_driver_there_is_one_clear_line(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    def no_driver(name):
        raise RuntimeError("libnvcuvid.so.1: cannot open shared object file\n\n=== TROUBLESHOOTING ===\npages")

    monkeypatch.setattr(gpus.importlib, "import_module", missing)
    with pytest.raises(AllocEmbedError, match=r"pip install 'allocembed\[gpu\]'"):
        gpus.find_library()
    monkeypatch.setattr(gpus.importlib, "import_module", no_driver)
    with pytest.raises(AllocEmbedError, match=r"libnvcuvid.*use --decoder pyav") as raised:
        gpus.find_library()
    assert "\n" not in str(raised.value)


def test_the_stand_in_overwrites_pictures_as_the_gpu_does(tmp_path):
    """Otherwise the other tests could not see a picture that is used too late."""
    path, library = make(tmp_path, "b_frames.mp4"), Library()
    decoder = library.CreateDecoder(codec="h264")
    with av.open(str(path)) as container:
        convert = av.bitstream.BitStreamFilterContext("h264_mp4toannexb", container.streams.video[0]).filter
        kept, later = None, 0
        for packet in container.demux(video=0):
            for part in convert(packet) if packet.size else ():
                data = library.PacketData()
                data.bsl_data, data.bsl, data.pts = part.buffer_ptr, part.buffer_size, part.pts
                later += kept is not None
                frames = decoder.Decode(data)
                kept = kept or (frames or [None])[0]
    assert later and (kept.surface == 85).all()


@pytest.mark.parametrize("allocator", ["uniform", "content", "sensitivity"])
def test_vectors_of_frames_from_a_gpu_are_those_of_pyav(tmp_path, qwen3_folder, monkeypatch, allocator):
    path, gpu = make(tmp_path, "b_frames.mp4"), stand_in()
    embedder = AllocEmbed.from_pretrained(qwen3_folder, allocator, device="cpu")
    expected = embedder.encode_video(path)
    monkeypatch.setattr(AllocEmbed, "decoders", gpu)
    found = embedder.encode_video(path)
    assert gpu.files == 1
    assert np.array_equal(found.vector, expected.vector) and found.allocation == expected.allocation


def test_an_option_that_cannot_be_met_is_no_fault_of_the_videos(tmp_path, qwen3_folder):
    embedder = AllocEmbed.from_pretrained(qwen3_folder, "uniform", device="cpu", decoder="nvdec")
    with pytest.raises(ConfigError, match="the model is on the CPU"):
        list(embedder.stream([make(tmp_path, "b_frames.mp4")]))


def test_a_library_that_is_installed_and_does_not_work_is_named_once(monkeypatch, caplog):
    def no_driver(name):
        raise RuntimeError("libnvcuvid.so.1: cannot open shared object file\n\npages")

    monkeypatch.setattr(gpus.importlib, "import_module", no_driver)
    for _ in range(2):
        assert isinstance(find_decoders("auto", "cuda:77"), PyAV)
    assert [record.message for record in caplog.records] == [
        "cannot decode on the GPU: libnvcuvid.so.1: cannot open shared object file; use --decoder pyav, or install "
        "NVIDIA's driver with its video libraries"
    ]


def test_who_decodes_is_a_setting():
    for name, device in product(("pyav", "auto"), ("cpu", None)):
        assert isinstance(find_decoders(name, device), PyAV)
    assert isinstance(find_decoders("nvdec", None), PyAV)  # whose pictures stay in main memory
    with pytest.raises(ConfigError, match="the model is on the CPU; use --device cuda"):
        find_decoders("nvdec", "cpu")
    with pytest.raises(ConfigError, match="decoder must be auto or pyav or nvdec"):
        EmbedConfig(decoder="gpu").check()
    assert EmbedConfig(decoder="pyav").settings() == EmbedConfig().settings()
