"""Cuts a moment out of a video without re-encoding: the packets are copied as they are, sound included.

A copy can only begin where decoding can, so it starts at the last keyframe before the moment.
"""

from __future__ import annotations

from pathlib import Path

from allocembed.output import whole_file
from allocembed.search.errors import SearchError
from allocembed.search.files import is_there

# Containers that can be written with what they usually hold, by FFmpeg's names for them; all others go into Matroska,
# which holds anything.
KEPT = {".mp4": "mp4", ".m4v": "ipod", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}


def cut(source: str | Path, start: float, end: float, folder: Path, name: str) -> tuple[Path, float]:
    """Writes `start` to `end` seconds of a video as `name` in a folder; returns the file and where it really begins."""
    import av

    source = Path(source)
    suffix = source.suffix.lower() if source.suffix.lower() in KEPT else ".mkv"
    target = folder / f"{name}{suffix}"
    if not is_there(source):
        raise SearchError(
            f"{source} is gone or its folder closed: run allocembed index again, with --prune to forget it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as scratch:
            begin = _copy(av, source, start, end, scratch, KEPT[suffix])
    except (av.error.FFmpegError, OSError) as error:
        # What the system said, which `whole_file` puts into a sentence of its own where the disk is full.
        said = getattr(error.__cause__ or error, "strerror", None) or error
        raise SearchError(f"{source} could not be cut ({said}): check the file, and the space for {target}") from error
    return target, begin


def _copy(av, source: Path, start: float, end: float, target: Path, container: str) -> float:
    with (
        av.open(str(source), options={"protocol_whitelist": "file"}, metadata_errors="ignore") as given,
        av.open(str(target), "w", format=container) as made,
    ):
        video = given.streams.best("video")
        chosen = [video, *(stream for stream in given.streams.audio[:1] if stream.codec_context is not None)]
        copies = {stream.index: made.add_stream_from_template(stream) for stream in chosen}
        origin = (video.start_time or 0) * video.time_base
        given.seek(int((start + origin) / video.time_base), stream=video)
        first = None
        for packet in given.demux(chosen):
            if packet.dts is None or packet.pts is None:
                continue
            seconds = float(packet.pts * packet.time_base - origin)
            if first is None:
                if packet.stream is not video or not packet.is_keyframe:
                    continue
                first = packet.dts * packet.time_base
                begin = seconds
            if packet.stream is video and packet.dts * packet.time_base - origin > end:
                break
            if packet.dts * packet.time_base < first or seconds > end + 1:
                continue
            shift = int(first / packet.time_base)
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            packet.stream = copies[packet.stream.index]
            made.mux(packet)
    if first is None:
        raise SearchError(f"{source} has no keyframe from {start:.1f} s on: nothing could be copied")
    return max(0.0, begin)
