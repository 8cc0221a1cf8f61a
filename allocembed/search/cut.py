"""Cut a moment out of a video without re-encoding: the packets are copied as they are, sound included.

A copy can only begin where decoding can, so it starts at the last keyframe before the moment.
"""

from pathlib import Path
from typing import Any

import av
from av.error import FFmpegError

from allocembed.errors import SearchError
from allocembed.output.files import whole_file
from allocembed.remote.objects import is_remote
from allocembed.remote.ranged import RangedFile
from allocembed.search.files import is_there

# Containers that hold what they usually hold, by FFmpeg's names; everything else goes into Matroska, which holds all.
CONTAINERS = {".mp4": "mp4", ".m4v": "ipod", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}


def cut(source: str | Path, start: float, end: float, folder: Path, name: str) -> tuple[Path, float]:
    """Write `start` to `end` seconds of a video as `name` in a folder; return the file and its actual beginning.

    The file is Matroska if the container of the source cannot hold a copy of its streams.
    """
    suffix = Path(source).suffix.lower()
    suffix = suffix if suffix in CONTAINERS else ".mkv"
    if not is_there(source):
        raise SearchError(
            f"cannot cut {source}: it is gone or its folder cannot be entered; run allocembed index again, "
            "with --prune to forget it"
        )
    target = folder / f"{name}{suffix}"
    try:
        try:
            return target, _write(source, start, end, target)
        except ValueError:  # of PyAV, for a codec that FFmpeg does not write into this container
            target = folder / f"{name}.mkv"
            return target, _write(source, start, end, target)
    except (FFmpegError, OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise SearchError(f"cannot cut {source}: {cause}; check the file, and the space for {target}") from error


def _write(source: str | Path, start: float, end: float, target: Path) -> float:
    with whole_file(target) as scratch:
        return copy_packets(source, start, end, scratch, CONTAINERS[target.suffix])


def copy_packets(source: str | Path, start: float, end: float, target: Path, container: str) -> float:
    """Copy the packets of the best video stream and the first sound stream; return the second of the first frame."""
    remote = is_remote(source)
    opened: Any = RangedFile(str(source)) if remote else str(source)
    options = {"protocol_whitelist": "none" if remote else "file"}
    source_container: Any = av.open(opened, options=options, metadata_errors="ignore")
    with source_container as given, av.open(str(target), "w", format=container) as made:
        video: Any = given.streams.best("video")
        chosen = [video, *(stream for stream in given.streams.audio[:1] if stream.codec_context is not None)]
        copies = {stream.index: made.add_stream_from_template(stream) for stream in chosen}
        origin = (video.start_time or 0) * video.time_base
        given.seek(int((start + origin) / video.time_base), stream=video)
        first, begin = None, 0.0
        packet: Any
        for packet in given.demux(chosen):
            if packet.dts is None or packet.pts is None:
                continue
            seconds = float(packet.pts * packet.time_base - origin)
            if first is None:
                if packet.stream is not video or not packet.is_keyframe:
                    continue
                first, begin = packet.dts * packet.time_base, seconds
            if packet.stream is video and packet.dts * packet.time_base - origin > end:
                break
            if packet.dts * packet.time_base < first or seconds > end + 1:
                continue
            shift = int(first / packet.time_base)
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            packet.stream = copies[packet.stream.index]
            made.mux(packet)
    if first is None:
        raise SearchError(f"cannot cut {source}: it has no keyframe after {start:.1f} s; choose an earlier moment")
    return max(0.0, begin)
