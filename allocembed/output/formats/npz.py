"""Vector tables for numpy: an array per column, written at the end."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np


@contextmanager
def write_npz(
    file: BinaryIO, first: Mapping[str, Any], arrays: Mapping[str, str]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Arrays (N,) and `vectors` (N, dim); `arrays` names those whose name is not that of their column."""
    rows: list[dict[str, Any]] = []
    yield rows.append
    columns: dict[str, Any] = {arrays.get(name, name): np.array([row[name] for row in rows]) for name in first}
    np.savez(file, **columns)
