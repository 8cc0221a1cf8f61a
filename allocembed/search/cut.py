"""Cut a moment out of a video without re-encoding: the packets are copied as they are, sound included.

A copy can only begin where decoding can, so it starts at the last keyframe before the moment.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import dropwhile
from pathlib import Path
from typing import Any

import av
from av.error import FFmpegError

from allocembed.errors import SearchError
from allocembed.files import is_there
from allocembed.output.files import whole_file
from allocembed.remote.objects import is_remote
from allocembed.remote.ranged import RangedFile
from allocembed.video.packets import SEEK_BACK_SECONDS

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
        begin, first, copied = 0.0, None, False
        for packet in _with_decode_times(_from_keyframe(given, chosen, start, origin)):
            decoded, seconds = packet.dts * packet.time_base, float(packet.pts * packet.time_base - origin)
            if first is None:
                first, begin = decoded, seconds
            if packet.stream is video and decoded - origin > end:
                break
            if decoded < first or seconds > end + 1:
                continue
            shift = int(first / packet.time_base)
            packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
            packet.stream = copies[packet.stream.index]
            made.mux(packet)
            copied = True
    if not copied:
        cause = "it has no keyframe from which a copy could be decoded; check the file"
        if first is not None:
            cause = f"its first keyframe is at {begin:.1f} s; choose a moment that ends later"
        raise SearchError(f"cannot cut {source}: {cause}")
    return max(0.0, begin)


def _from_keyframe(given: Any, chosen: list[Any], start: float, origin: Fraction) -> Iterator[Any]:
    """The packets from the last keyframe of the first stream before a second on; from the first keyframe, if none is
    before. The file is read to find that keyframe, then again from it, so memory does not grow with the distance."""
    video = chosen[0]
    for back in (*SEEK_BACK_SECONDS, None):
        target = origin if back is None else Fraction(start - back) + origin
        try:
            given.seek(int(target / video.time_base), stream=video)
            found = _find_keyframe(_packets(given, [video]), start, origin, may_be_late=back is None)
            if found is not None:
                given.seek(int(target / video.time_base), stream=video)
        except FFmpegError:
            if back is None:
                raise
            continue  # some containers cannot seek to before their start
        if found is not None:
            yield from dropwhile(
                lambda packet, key=found: (packet.stream, packet.pts) != (video, key), _packets(given, chosen)
            )
            return


def _find_keyframe(packets: Iterable[Any], start: float, origin: Fraction, *, may_be_late: bool) -> int | None:
    """The time of the last keyframe up to a second, or of the first one if it `may_be_late`. None if a seek has landed
    behind the second."""
    found = None
    for packet in packets:
        late = packet.pts * packet.time_base - origin > start
        if packet.is_keyframe and (not late or (may_be_late and found is None)):
            found = packet.pts
        if late and (found is not None or (packet.is_keyframe and not may_be_late)):
            return found
    return found


def _packets(given: Any, streams: list[Any]) -> Iterator[Any]:
    return (packet for packet in given.demux(streams) if packet.pts is not None and packet.size)


def _with_decode_times(packets: Iterable[Any]) -> Iterator[Any]:
    """Packets with times of decoding. After a seek in Matroska, the first ones of a stream have none where frames are
    reordered."""
    held: list[Any] = []
    for packet in packets:
        held.append(packet)
        lacking = {each.stream.index for each in held if each.dts is None}
        if lacking <= {each.stream.index for each in held if each.dts is not None}:
            yield from _filled(held)
            held = []
    yield from _filled(held)


def _filled(packets: list[Any]) -> list[Any]:
    """Packets with times of decoding: what is missing is counted back from the first one of its stream."""
    for stream in {packet.stream.index for packet in packets if packet.dts is None}:
        own = [packet for packet in packets if packet.stream.index == stream]
        lacking = [packet for packet in own if packet.dts is None]
        known = [packet.dts for packet in own if packet.dts is not None]
        step = max(1, lacking[0].duration or 1)
        last = known[0] if known else min(packet.pts for packet in lacking)
        for number, packet in enumerate(lacking):
            packet.dts = last - (len(lacking) - number) * step
    return packets
