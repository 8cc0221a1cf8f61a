"""Subtitles inside a video: streams of text, as in MKV, WebM and MP4. Subtitles that are pictures are left out."""

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from allocembed.errors import VideoError
from allocembed.search.said.subtitles import LONGEST_LINE, LONGEST_TIME, MOST_FILES, MOST_LINES_OF_FILE, Line, plain

FILE_SECONDS = 600.0  # that reading the packets of one file may take
UNTIMED = 4.0  # seconds of a line that has no duration


def read_streams(path: str) -> list[Line]:
    """The lines of all text streams of a video, in order of time.

    Damage in the middle costs only what comes after it. Raise VideoError if the file cannot be opened, if its disk
    fails, or if it takes too long: a later run may be luckier.
    """
    import av  # here, because searching does not need it
    from av.error import FFmpegError
    from av.stream import Discard

    lines: list[Line] = []
    try:
        with av.open(path, options={"protocol_whitelist": "file"}, metadata_errors="ignore") as container:
            streams = [stream for stream in container.streams.subtitles if _is_text(stream)][:MOST_FILES]
            for stream in container.streams:
                if stream not in streams:
                    stream.discard = Discard.all  # MP4 then reads nothing else
            if streams:
                _read(container, streams, _origin(container), lines)
    except (FFmpegError, OSError, ValueError, IndexError) as error:
        cause = getattr(error, "strerror", None) or error
        raise VideoError(path, f"its subtitles cannot be read ({cause}); check the file and its disk") from error
    return sorted(lines, key=lambda line: line.start)


def _is_text(stream: Any) -> bool:
    return stream.codec_context is not None and stream.codec_context.codec.text_sub


def _origin(container: Any) -> float:
    """When the video begins, in seconds: lines are counted from there, like segments."""
    video = container.streams.best("video")
    if video is None or video.start_time is None:
        return 0.0
    return float(video.start_time * video.time_base)


def _read(container: Any, streams: list[Any], origin: float, lines: list[Line]) -> None:
    """Append the lines as they are read, so that a damaged end costs only itself."""
    from av.error import FFmpegError

    try:
        _read_packets(container.demux(streams), origin, lines)
    except OSError:
        raise
    except (FFmpegError, ValueError, IndexError):
        pass  # PyAV raises an IndexError for a stream that appears in the middle of a file


def _read_packets(packets: Iterable[Any], origin: float, lines: list[Line]) -> None:
    deadline = time.monotonic() + FILE_SECONDS
    for packet in packets:
        if len(lines) >= MOST_LINES_OF_FILE:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(None, f"it takes more than {FILE_SECONDS / 60:g} minutes")
        if packet.pts is None:
            continue
        start = max(0.0, float(packet.pts * packet.time_base) - origin)
        length = float(packet.duration * packet.time_base) if packet.duration else UNTIMED
        text = _text(packet)
        if text and start < LONGEST_TIME:
            lines.append(Line(start, start + length, text[:LONGEST_LINE]))


def _text(packet: Any) -> str:
    from av.error import FFmpegError

    parts: list[str] = []
    with suppress(FFmpegError, ValueError):
        for subtitle in packet.decode():
            parts += [plain(row) for row in subtitle.dialogue.decode(errors="replace").splitlines()]
    return " ".join(part for part in parts if part)
