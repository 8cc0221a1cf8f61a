"""Vector tables as Parquet: the vector is a list of fixed size, float32."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

ROW_GROUP = 1024  # rows that are collected before they are written


@contextmanager
def write_parquet(
    file: BinaryIO, first: Mapping[str, Any], arrays: Mapping[str, str]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Columns as in the first row, which also tells their types. Written in row groups."""
    from pyarrow import parquet

    schema = _schema(first)
    rows: list[dict[str, Any]] = []
    with parquet.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            writer.write_table(_table(rows, schema))
            rows.clear()

        def write(row: dict[str, Any]) -> None:
            rows.append(row)
            if len(rows) == ROW_GROUP:
                flush()

        yield write
        flush()


def _schema(first: Mapping[str, Any]) -> Any:
    import pyarrow

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    vector = pyarrow.list_(pyarrow.float32(), len(first["vector"]))
    return pyarrow.schema([(name, kinds.get(type(value), vector)) for name, value in first.items()])


def _table(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Rows as a table. Its vectors are never Python's numbers, which would take many times their size."""
    import pyarrow

    columns = {name: [_in_unicode(row[name]) for row in rows] for name in schema.names if name != "vector"}
    values = np.concatenate([np.empty(0, np.float32), *(row["vector"] for row in rows)], dtype=np.float32)
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values), type=schema.field("vector").type)
    return pyarrow.table(columns | {"vector": vectors}, schema)


def _in_unicode(value: Any) -> Any:
    """Parquet holds valid Unicode only; other bytes of a file name are written as \\xff."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
