"""Speech to text with faster-whisper, if it is installed: lines with times, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import numpy as np
from av.error import FFmpegError

from allocembed.errors import MissingDependency, SearchError, VideoError
from allocembed.files import cannot_read
from allocembed.search.said.subtitles import LONGEST_LINE, MOST_LINES_OF_FILE, Line, plain

RATE = 16_000  # samples per second, as Whisper expects
WINDOW_SECONDS = 600  # seconds that are transcribed at once: 38 MB of samples
LONGEST_SPEECH = 12 * 3600  # seconds of one video that are transcribed
JUMP = 1.0  # seconds between two pieces of sound after which a new window begins
MOST_JUMPS = 500  # in one video: its stamps are noise if it has more
MODEL = "small"


class Transcriber:
    """A model that writes down speech. It is loaded when the first video needs it."""

    def __init__(self, name: str = MODEL) -> None:
        """`name` is one of faster-whisper's models, such as small or large-v3, or a folder with one."""
        self.name = name
        self._model: Any = None
        check_installed()

    @property
    def model(self) -> Any:
        """The loaded model."""
        if self._model is None:
            from faster_whisper import WhisperModel  # pyright: ignore[reportMissingImports]

            try:
                self._model = WhisperModel(self.name, device="auto", compute_type="default")
            except Exception as error:
                cause = " ".join(str(error).split())[:200]
                raise SearchError(
                    f"cannot load the speech model {self.name} ({cause}): check its name and the network, or give a "
                    "folder that holds it with --speech-model"
                ) from error
        return self._model

    def lines(self, path: str) -> list[Line]:
        """Lines spoken in a video; none if it has no sound. Raise VideoError if the model or the disk fails."""
        found: list[Line] = []
        for offset, samples in read_sound(path):
            model = self.model
            try:
                segments, _ = model.transcribe(samples, vad_filter=True)
                found += [_line(offset, segment) for segment in segments]
            except (RuntimeError, ValueError, MemoryError) as error:
                cause = " ".join(str(error).split())[:200]
                raise VideoError(path, f"cannot be transcribed ({cause}); try a smaller --speech-model") from error
            if len(found) >= MOST_LINES_OF_FILE:
                break
        return [line for line in found[:MOST_LINES_OF_FILE] if line.text]


def _line(offset: float, segment: Any) -> Line:
    start = max(0.0, offset + segment.start)
    return Line(start, max(start, offset + segment.end), plain(segment.text)[:LONGEST_LINE])


def check_installed() -> None:
    """Raise MissingDependency if faster-whisper is not installed."""
    try:
        import faster_whisper  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]
    except ImportError as error:
        raise MissingDependency("speech to text", "faster-whisper", "speech") from error


def read_sound(path: str) -> Iterator[tuple[float, np.ndarray]]:
    """Windows of the first sound stream: the second at which each begins, and samples (n,) float32 from -1 to 1.

    A gap in the sound ends a window, so that the times after it stay right. A damaged end is left out. Raise VideoError
    if the disk fails.
    """
    parts: list[np.ndarray] = []
    begin = 0.0
    held = done = jumps = 0
    try:
        for time, samples in _samples(path):
            expected = begin + held / RATE
            at = expected if time is None else time
            jump = abs(at - expected) > JUMP and jumps < MOST_JUMPS
            if parts and (jump or held >= WINDOW_SECONDS * RATE):
                yield begin, np.concatenate(parts)
                done, jumps, parts, held = done + held, jumps + jump, [], 0
            if done >= LONGEST_SPEECH * RATE:
                return
            begin = begin if parts else at
            parts.append(samples)
            held += len(samples)
    except OSError as error:
        raise VideoError(path, cannot_read(error)) from error
    except (FFmpegError, ValueError, IndexError):
        pass
    if parts:
        yield begin, np.concatenate(parts)


def _samples(path: str) -> Iterator[tuple[float | None, np.ndarray]]:
    """Second, if it is known, and samples of each piece of sound."""
    with av.open(path, options={"protocol_whitelist": "file"}, metadata_errors="ignore") as container:
        sound = next((stream for stream in container.streams.audio if stream.codec_context is not None), None)
        if sound is None:
            return
        video: Any = container.streams.best("video")
        origin = float(video.start_time * video.time_base) if video is not None and video.start_time else 0.0
        resampler = av.AudioResampler("flt", "mono", RATE)
        for frame in container.decode(sound):
            at = None if frame.time is None else frame.time - origin
            frame.pts = None  # gaps and jumps in the stamps are not filled
            for piece in resampler.resample(frame):
                yield at, piece.to_ndarray().reshape(-1)
