"""Looks an index over: are all files where they were, are their vectors all there, and are they sound?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from allocembed.search.files import cannot_read, fingerprint
from allocembed.search.index import VideoIndex

UNIT = 1e-3  # how far a vector's length may be from 1


def verify(index: VideoIndex) -> list[str]:
    """What is wrong, a line each, naming the remedy; nothing where all is well. Reads every file's fingerprint."""
    problems = []
    rows = index.store.rows("number >= 0", ["video", "number", "vector"])
    counts = Counter((row["video"], row["number"]) for row in rows)
    problems += [f"{video} has vector {number} {n} times" for (video, number), n in counts.items() if n > 1]
    lengths = np.linalg.norm([row["vector"] for row in rows], axis=1) if rows else np.empty(0)
    broken = {row["video"] for row, length in zip(rows, lengths, strict=True) if not abs(length - 1) < UNIT}
    problems += [f"{video} has a vector that is not of length 1" for video in sorted(broken)]
    whole = {video for video, number in counts if number == 0}
    for file in index.files():
        if file["error"]:
            continue
        path = Path(file["path"])
        if file["video"] not in whole:
            problems.append(f"{path}: its vectors are missing; run allocembed index on it")
        try:
            if not path.is_file():
                problems.append(f"{path}: the file is gone; run allocembed index with --prune to forget it")
            elif fingerprint(path) != file["video"]:
                problems.append(f"{path}: the file has changed; run allocembed index on it")
        except OSError as error:
            problems.append(f"{path}: {cannot_read(error)}")
    return problems
