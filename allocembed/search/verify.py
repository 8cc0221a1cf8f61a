"""Check an index: do all files exist unchanged, do they have vectors, and are the vectors sound?"""

from collections import Counter
from pathlib import Path

import numpy as np

from allocembed.search.files import FileEntry, cannot_read, fingerprint
from allocembed.search.index import VideoIndex

UNIT = 1e-3  # tolerance of a vector's length


def verify(index: VideoIndex) -> list[str]:
    """List what is wrong and what to do about it. This reads the fingerprint of every file."""
    problems, broken = [], []
    stored = index.store.segments(("vector",))
    for video, segments in stored.items():
        counts = Counter(segment.number for segment in segments)
        problems += [f"{video} has vector {number} {count} times" for number, count in counts.items() if count > 1]
        if any(not abs(np.linalg.norm(segment.vector) - 1) < UNIT for segment in segments):
            broken.append(f"{video} has a vector that is not of length 1")
    problems += sorted(broken)
    for file in index.files():
        if not file.error:
            segments = stored.get(file.video)
            problems += _problems(file, has_vectors=segments is not None and segments[0].number == 0)
    return problems


def _problems(file: FileEntry, has_vectors: bool) -> list[str]:
    path = Path(file.path)
    problems = [] if has_vectors else [f"{path}: its vectors are missing; run allocembed index on it"]
    try:
        if not path.is_file():
            problems.append(f"{path}: the file no longer exists; run allocembed index with --prune to forget it")
        elif fingerprint(path) != file.video:
            problems.append(f"{path}: the file has changed; run allocembed index on it with --recheck")
    except OSError as error:
        problems.append(f"{path}: {cannot_read(error)}")
    return problems
