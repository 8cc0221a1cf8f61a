"""Vector tables as JSON: a line per row, written at once, so that memory does not grow."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO


@contextmanager
def write_jsonl(
    file: BinaryIO, first: Mapping[str, Any], arrays: Mapping[str, str]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Objects with the columns of a row; the vector is a list."""

    def write(row: dict[str, Any]) -> None:
        # Plain ASCII: file names need not be valid Unicode, JSON escapes always are.
        file.write(json.dumps({**row, "vector": row["vector"].tolist()}).encode() + b"\n")

    yield write
