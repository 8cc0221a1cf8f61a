"""Check an index: do all files exist unchanged, do they have vectors and lines, and are the vectors sound?"""

from collections import Counter
from pathlib import Path

import numpy as np

from allocembed.files import FileEntry, cannot_read, changed_at, fingerprint, is_there
from allocembed.remote.objects import is_remote
from allocembed.search.index import VideoIndex
from allocembed.search.store import INSIDE, SPEECH, TextSource

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
    return [*problems, *_line_problems(index)]


def _line_problems(index: VideoIndex) -> list[str]:
    """Faults in the tables of spoken lines."""
    problems: list[str] = []
    counts, sources = index.lines.counts(), index.lines.sources()
    for source in sources:
        where = source.owner if source.origin in (INSIDE, SPEECH) else source.origin
        found = counts.get(source.source, 0)
        if found != source.lines:
            problems.append(f"{where}: {found} of its {source.lines} lines are there; run allocembed index --recheck")
        elif source.origin not in (INSIDE, SPEECH) and is_there(source.owner):
            problems += _subtitle_problems(source)
    stray = counts.keys() - {source.source for source in sources}
    if stray:
        problems.append(f"{sum(counts[each] for each in stray)} lines belong to no file; run allocembed index")
    return problems


def _subtitle_problems(source: TextSource) -> list[str]:
    path = Path(source.origin)
    try:
        status = path.stat()
    except FileNotFoundError:
        return [f"{path}: the subtitles no longer exist; run allocembed index on their folder"]
    except OSError as error:
        return [f"{path}: {cannot_read(error)}"]
    if (status.st_size, changed_at(status)) != (source.size, source.changed):
        return [f"{path}: the subtitles have changed; run allocembed index on their folder"]
    return []


def _problems(file: FileEntry, has_vectors: bool) -> list[str]:
    path = file.path
    problems = [] if has_vectors else [f"{path}: its vectors are missing; run allocembed index on it"]
    gone = f"{path}: the file no longer exists; run allocembed index with --prune to forget it"
    try:
        if not is_remote(path) and not Path(path).is_file():
            problems.append(gone)
        elif fingerprint(path) != file.video:
            problems.append(f"{path}: the file has changed; run allocembed index on it with --recheck")
    except FileNotFoundError:
        problems.append(gone)
    except OSError as error:
        problems.append(f"{path}: {cannot_read(error)}")
    return problems
