"""The contract of decoders, as tests to be inherited:

    from allocembed.testing.decoders import DecoderContract

    class TestMine(DecoderContract):
        kinds = ("constant", "odd_size")

        @pytest.fixture
        def decoders(self) -> Decoders:
            return MyDecoders()

`kinds` are the files of `KINDS` that it reads; without it, all. The suite writes them. Frames must be those that PyAV
gives when it decodes the file from start to end, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from allocembed.errors import VideoError
from allocembed.video import Clip, DecodeLimits, Decoders, VideoSource, open_video
from allocembed.video.clip import on_host

FRAMES, RATE = 40, 25
GROUPS = {"g": "12", "bf": "0", "sc_threshold": "0"}
OPEN = {"x264-params": "keyint=12:bframes=3:b-adapt=0:scenecut=0:open-gop=1"}


def picture(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    """(H, W, 3) uint8: shades that move, so that no two frames are alike."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 3 + number * 5, y * 4 + number * 3, x + y + number * 11], axis=-1).astype(np.uint8)


def write(
    path: Path,
    *,
    codec: str = "libx264",
    options: dict[str, str] = GROUPS,
    pixels: str = "yuv420p",
    size: tuple[int, int] = (64, 48),
    times: Sequence[int] = range(FRAMES),
    turn: int = 0,
    earlier: int = 0,
) -> None:
    """Encode moving pictures. Those that are shown `earlier` than the file begins are hidden by an edit list."""
    muxing = {"avoid_negative_ts": "disabled", "use_editlist": "1"} if earlier else {}
    with av.open(str(path), "w", options=muxing) as container:
        stream: Any = container.add_stream(codec, rate=RATE, options=options)
        (stream.width, stream.height), stream.pix_fmt = size, pixels
        stream.codec_context.time_base = Fraction(1, RATE)
        if turn:
            stream.set_display_rotation(turn)
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(picture(number, *size))
            frame.pts, frame.time_base = time, Fraction(1, RATE)
            container.mux([_moved(packet, earlier) for packet in stream.encode(frame)])
        container.mux([_moved(packet, earlier) for packet in stream.encode(None)])


def _moved(packet: av.Packet, earlier: int) -> av.Packet:
    if earlier and packet.pts is not None and packet.dts is not None:
        packet.pts, packet.dts = packet.pts - earlier, packet.dts - earlier
    return packet


def write_gif(path: Path) -> None:
    """Sixteen colours and two lengths."""
    pictures = [Image.fromarray(picture(number)).quantize(16) for number in range(FRAMES)]
    lengths = [40] * (FRAMES // 2) + [120] * (FRAMES - FRAMES // 2)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=lengths)


KINDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "constant": ("a.mp4", write),
    "variable": ("a.mp4", partial(write, times=[number + number**2 // 9 for number in range(FRAMES)])),
    "matroska": ("a.mkv", partial(write, options=GROUPS | {"bf": "2"})),
    "b_frames": ("a.mp4", partial(write, options=GROUPS | {"bf": "3"})),
    "open_groups": ("a.mp4", partial(write, options=OPEN)),
    "edit_list": ("a.mp4", partial(write, options=GROUPS | {"bf": "2"}, earlier=7)),
    "rotation": ("a.mp4", partial(write, turn=90)),
    "odd_size": ("a.mp4", partial(write, size=(63, 45), pixels="yuv444p")),
    "ten_bits": ("a.mp4", partial(write, pixels="yuv420p10le")),
    "mpeg4": ("a.avi", partial(write, codec="mpeg4", options={"g": "12"})),
    "gif": ("a.gif", write_gif),
}
"""Name and writer of each file."""


@dataclass(frozen=True)
class DecodedFile:
    """All frames of a file, decoded from start to end."""

    frames: np.ndarray
    times: np.ndarray


@lru_cache(maxsize=1)
def decode_all(path: Path) -> DecodedFile:
    """The frames (N, H, W, 3) and times (N,) that PyAV gives in order."""
    with open_video(path) as video:
        every = video.decoder.in_order(frozenset(range(FRAMES)))
        found = [(stamp, on_host(pixels)) for stamp, pixels in every if pixels is not None]
        stamps = np.array([stamp for stamp, _ in found])
        return DecodedFile(np.stack([pixels for _, pixels in found]), (stamps - stamps[0]) / video.table.tick_rate)


class DecoderContract:
    """Tests of one kind of decoders."""

    kinds: Sequence[str] = tuple(KINDS)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", self.kinds)

    @pytest.fixture
    def path(self, kind: str, tmp_path: Path) -> Path:
        name, writer = KINDS[kind]
        writer(tmp_path / name)
        return tmp_path / name

    @pytest.fixture
    def video(self, path: Path, decoders: Decoders) -> Iterator[VideoSource]:
        with open_video(path, decoders=decoders) as video:
            yield video

    @staticmethod
    def same(clip: Clip, path: Path) -> None:
        """The clip holds frames of the file, at their times."""
        expected = decode_all(path)
        assert np.array_equal(clip.pixels, expected.frames[clip.indices])
        np.testing.assert_allclose(clip.times, expected.times[clip.indices], atol=1e-3)

    def test_the_table_lists_all_frames(self, video: VideoSource, path: Path) -> None:
        table, expected = video.table, decode_all(path)
        assert len(table) == len(expected.frames) and (np.diff(table.stamps) > 0).all()
        np.testing.assert_allclose(table.times, expected.times, atol=1e-3)
        assert table.duration > table.times[-1]
        assert len(table.keys) and (np.diff(table.keys) > 0).all() and table.keys[-1] < len(table)

    @pytest.mark.parametrize("count", [1, 7, 1000])
    def test_exact_frames_are_those_of_decoding_everything(self, video: VideoSource, path: Path, count: int) -> None:
        clip, total = video.sample(count), len(decode_all(path).frames)
        assert clip.total == total
        assert clip.indices.tolist() == np.linspace(0, total - 1, min(count, total), dtype=int).tolist()
        self.same(clip, path)

    def test_any_frame_can_be_read_alone_and_again(self, video: VideoSource, path: Path) -> None:
        times = decode_all(path).times
        for number in (len(times) - 1, 0, len(times) // 2, 1, len(times) // 2):
            clip = video.frames_at([float(times[number]) + 1e-3])
            assert clip.indices.tolist() == [number]
            self.same(clip, path)

    def test_keyframes_are_frames_and_need_no_others(self, video: VideoSource, path: Path) -> None:
        self.same(video.sample(4, "keyframe"), path)
        expected, keys = decode_all(path).frames, video.table.keys.tolist()
        found = {index: on_host(pixels) for index, _, pixels in video.decoder.pictures(video.table, [], keys)}
        assert sorted(found) == keys
        assert all(np.array_equal(found[key], expected[key]) for key in keys)

    def test_all_frames_come_in_order(self, video: VideoSource, path: Path) -> None:
        expected, wanted = decode_all(path).frames, [0, 3, 20]
        found = [pixels for _, pixels in video.decoder.in_order(frozenset(wanted))]
        assert len(found) == len(expected)
        seen = {number: on_host(pixels) for number, pixels in enumerate(found) if pixels is not None}
        assert sorted(seen) == wanted and all(np.array_equal(seen[number], expected[number]) for number in wanted)

    def test_windows_hold_frames_of_the_file(self, video: VideoSource, path: Path) -> None:
        clips = list(video.windows(4, 3))
        assert len(clips) == 4
        for clip in clips:
            self.same(clip, path)

    def test_pictures_are_upright_rgb_in_bytes(self, video: VideoSource, path: Path) -> None:
        clip = video.sample(2)
        assert clip.pixels.dtype == np.uint8
        assert clip.pixels.shape[1:] == decode_all(path).frames.shape[1:]

    def test_files_are_read_in_many_threads_at_once(self, decoders: Decoders, path: Path) -> None:
        def read(count: int) -> Clip:
            with open_video(path, decoders=decoders) as video:
                return video.sample(count)

        with ThreadPoolExecutor(4) as pool:
            for clip in pool.map(read, [3, 4, 5, 6] * 3):
                self.same(clip, path)

    def test_a_frame_with_too_many_pixels_is_an_error(self, decoders: Decoders, path: Path) -> None:
        with pytest.raises(VideoError, match="max_pixels"):
            self.read(path, decoders, DecodeLimits(max_pixels=100))

    def test_reading_for_too_long_is_an_error(self, decoders: Decoders, path: Path) -> None:
        with pytest.raises(VideoError, match="max_seconds"):
            self.read(path, decoders, DecodeLimits(max_seconds=1e-9))

    @pytest.mark.parametrize("part", [0.02, 0.5])
    def test_a_truncated_file_is_an_error_that_names_it(self, decoders: Decoders, path: Path, part: float) -> None:
        if path.suffix == ".gif":
            pytest.skip("a GIF does not say how long it is")
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * part)])
        with pytest.raises(VideoError) as raised:
            self.read(path, decoders)
        assert raised.value.source == str(path) and ";" in raised.value.cause  # what is wrong, and what to do

    def test_what_is_no_video_is_an_error(self, decoders: Decoders, path: Path) -> None:
        path.write_bytes(b"These are words. " * 1000)
        with pytest.raises(VideoError):
            self.read(path, decoders)

    def test_nothing_is_read_after_closing(self, decoders: Decoders, path: Path) -> None:
        video = open_video(path, decoders=decoders)
        video.sample(2)
        video.close()
        video.close()
        with pytest.raises(VideoError):
            video.sample(3)

    @staticmethod
    def read(path: Path, decoders: Decoders, limits: DecodeLimits = DecodeLimits()) -> Clip:  # noqa: B008 (frozen)
        """Open a file, and read every frame."""
        with open_video(path, decoders=decoders, limits=limits) as video:
            return video.sample(10**6)
