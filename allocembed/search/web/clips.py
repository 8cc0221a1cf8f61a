"""Moments of a video as files to download: cut into a scratch folder, sent, and gone."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from fastapi import HTTPException
from fastapi.responses import FileResponse, StreamingResponse

from allocembed.files import FileEntry
from allocembed.search.cut import cut

LONGEST_CLIP = 600.0  # seconds of a clip
LARGEST_CLIP = 2**30  # bytes that a clip may have, judged by its share of the video
BLOCK_BYTES = 1 << 18
UNCUT = (".gif",)  # no container into which a cut is written holds what is in these files


def is_uncut(file: FileEntry) -> bool:
    """Whether a file is only given whole."""
    return Path(file.path).suffix.lower() in UNCUT


def whole_response(file: FileEntry) -> FileResponse:
    """All of a file as an attachment."""
    headers = {"Cache-Control": "no-store"}
    return FileResponse(
        file.path, filename=Path(file.path).name, media_type="application/octet-stream", headers=headers
    )


def check_clip(file: FileEntry, start: float, end: float) -> None:
    """Answer with a 400 unless the times lie in the video, in order, and the clip is not too large."""
    if not 0 <= start < end or start >= max(file.duration, 0.1):
        raise HTTPException(400, f"cannot cut {start:g} to {end:g} seconds: the video has {file.duration:.1f}")
    if end - start > LONGEST_CLIP:
        raise HTTPException(400, f"cannot cut {end - start:.0f} seconds at once: choose at most {LONGEST_CLIP:.0f}")
    share = min(1.0, (end - start + 20) / max(file.duration, 0.1))  # it begins at a keyframe, some seconds before
    if share * file.size > LARGEST_CLIP:
        raise HTTPException(400, f"the clip would have more than {LARGEST_CLIP // 2**20} MB: choose a shorter moment")


def clip_response(file: FileEntry, start: float, end: float) -> StreamingResponse:
    """The moment as an attachment. Its file has no name any more while it is sent, so a broken download leaves none."""
    folder = Path(tempfile.mkdtemp(prefix="allocembed-clip-"))
    try:
        made, _ = cut(file.path, start, end, folder, "clip")
        stream = made.open("rb")
        size = made.stat().st_size
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    name = f"{Path(file.path).stem}-{int(start) // 60:02}m{int(start) % 60:02}s{made.suffix}"
    headers = {
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(name, safe='')}",
        "Content-Length": str(size),
        "Cache-Control": "no-store",
    }
    return StreamingResponse(_blocks(stream), media_type="application/octet-stream", headers=headers)


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while block := stream.read(BLOCK_BYTES):
            yield block
