"""Export an index as a table of vectors."""

from collections import defaultdict
from pathlib import Path

from allocembed.errors import SearchError
from allocembed.output.vectors import vector_file
from allocembed.search.index import VideoIndex
from allocembed.search.store import SMALL_COLUMNS

ARRAYS = {"path": "paths", "video": "videos", "vector": "vectors"}


def export(index: VideoIndex, path: Path) -> int:
    """Write a row per vector and file: path, video, number (0 is the whole video), times, costs and vector."""
    paths = defaultdict[str, list[str]](list)
    for file in index.files():
        if not file.error:
            paths[file.video].append(file.path)
    with vector_file(path, ARRAYS) as writer:
        for video, segments in sorted(index.store.segments(("vector",)).items()):
            for segment in segments:
                numbers = {name: getattr(segment, name) for name in SMALL_COLUMNS}
                for name in paths[video]:
                    writer.add({"path": name, "video": video, **numbers, "vector": segment.vector})
    if not writer.count:
        raise SearchError("the index is empty: there is nothing to export")
    return writer.count
