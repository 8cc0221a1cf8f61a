"""A folder of Parquet files, which tools read as one table, on a disk or in object storage.

Each file is whole or absent. A run that was killed is continued by what the files hold: a video of the same `key`,
which stands for its path, size and date, is not embedded again. The row of a video that has changed since is dropped.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocembed.errors import OutputError
from allocembed.output.files import whole_file
from allocembed.output.vectors import ARRAYS, FORMATS, Row, VectorOutput
from allocembed.remote.objects import is_remote, list_objects, read, write
from allocembed.remote.ranged import RangedFile

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ABOUT = "_settings.json"  # tools that read the folder leave out names with a line in front


class HeldVideos:
    """The videos that a folder holds: digests of their paths and keys, eight bytes each."""

    def __init__(self) -> None:
        self._keys: dict[bytes, bytes] = {}
        """By path."""
        self._doubled: dict[bytes, set[bytes]] = {}
        """All keys of paths that have several: a run was killed before it dropped the old ones."""
        self.changed: dict[bytes, bytes] = {}
        """Keys, by path, of videos that are held only, or also, as they were before."""

    def add(self, sources: Sequence[str], keys: Sequence[str]) -> None:
        for source, key in zip(sources, keys, strict=True):
            path, own = short(source), bytes.fromhex(key)
            if (first := self._keys.setdefault(path, own)) != own:
                self._doubled.setdefault(path, {first}).add(own)

    def has(self, source: str, key: str) -> bool:
        """Whether there is a video as it is now. What is held of it as it was before is noted as changed."""
        path, own = short(source), bytes.fromhex(key)
        held = self._doubled.get(path) or ({self._keys[path]} if path in self._keys else set())
        if held - {own}:
            self.changed[path] = own
        return own in held


class PartFolder(VectorOutput):
    """A folder of Parquet files. Pickled, it is its place."""

    keyed = True

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self._held, self._counted = HeldVideos(), set[str]()

    def __reduce__(self) -> tuple[Any, ...]:
        return PartFolder, (self.place,)

    def settle(self, settings: dict[str, Any]) -> None:
        """Write the settings into a new folder. Raise OutputError if an old one has others."""
        stated = json.dumps(settings, sort_keys=True)
        try:
            old = self._read(ABOUT)
        except FileNotFoundError:
            with self._errors():
                taken = next(self._names(), None) is not None
            if taken:
                raise OutputError(f"cannot write to {self.place}: it holds other files; choose another --out") from None
            self._write(ABOUT, stated.encode())
            return
        except OSError as error:
            raise OutputError(f"cannot write to {self.place}: {error.strerror or error}") from error
        if old.decode(errors="replace") != stated:
            raise OutputError(
                f"cannot continue {self.place}: it was made with {_difference(old, settings)}; give the same settings, "
                "or choose another --out"
            )

    def look(self) -> None:
        """Look at what all files hold. Of each, only two columns are read, once."""
        with self._errors():
            for name, part in self._parts(self._counted):
                self._held.add(*_sources_and_keys(part))
                self._counted.add(name)

    def holds(self, source: str, key: str) -> bool:
        return self._held.has(source, key)

    def drop_changed(self) -> None:
        """Drop the rows of videos that have changed."""
        changed = self._held.changed
        if not changed:
            return
        from pyarrow import parquet

        with self._errors():
            for name, part in self._parts():
                rows = zip(*_sources_and_keys(part), strict=True)
                kept = [changed.get(short(source), own := bytes.fromhex(key)) == own for source, key in rows]
                if not all(kept):
                    content = io.BytesIO()
                    parquet.write_table(part.read().filter(kept), content)
                    self._write(name, content.getvalue())

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Write rows, which have a `key`, as a file of their own."""
        content = io.BytesIO()
        with FORMATS[".parquet"](content, rows[0], ARRAYS) as add:
            for row in rows:
                add(row)
        # The name follows from the videos: whoever embeds the same again writes the same file.
        name = hashlib.blake2b("".join(row["key"] for row in rows).encode(), digest_size=16).hexdigest()
        self._write(f"part-{name}.parquet", content.getvalue())

    def _parts(self, without: Collection[str] = ()) -> Iterator[tuple[str, ParquetFile]]:
        """Name and file of each part. Of one in object storage, only what is read of it is fetched."""
        from pyarrow.parquet import ParquetFile

        for name in list(self._names()):
            if name.endswith(".parquet") and name not in without:
                address = f"{self.place}/{name}"
                with ParquetFile(RangedFile(address) if is_remote(self.place) else address) as part:
                    yield name, part

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Name the folder in errors of the system, and of a damaged file or one of another kind (ValueError)."""
        try:
            yield
        except (OSError, ValueError) as error:
            cause = " ".join(str(error).split())
            raise OutputError(f"cannot read {self.place}: {cause}; repair it, or choose another --out") from error

    def _write(self, name: str, content: bytes) -> None:
        """Write a file that is whole or absent."""
        if is_remote(self.place):
            try:
                write(f"{self.place}/{name}", content)
            except OSError as error:
                raise OutputError(f"cannot write to {self.place}: {error.strerror or error}") from error
            return
        with whole_file(Path(self.place) / name) as scratch:
            scratch.write_bytes(content)

    def _read(self, name: str) -> bytes:
        return read(f"{self.place}/{name}")[0] if is_remote(self.place) else (Path(self.place) / name).read_bytes()

    def _names(self) -> Iterator[str]:
        if is_remote(self.place):
            yield from (info.address.rpartition("/")[2] for info in list_objects(self.place))
        elif Path(self.place).is_dir():
            yield from (path.name for path in Path(self.place).iterdir())


def _sources_and_keys(part: ParquetFile) -> tuple[list[str], list[str]]:
    """Two columns of a part. Raise ValueError if it does not have them."""
    names = ["source", "key"]
    if missing := [name for name in names if name not in part.schema_arrow.names]:
        raise ValueError(f"a file has no column {missing[0]!r}")
    table = part.read(names)
    return table["source"].to_pylist(), table["key"].to_pylist()


def short(text: str) -> bytes:
    """Eight bytes that stand for a text."""
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()


def _difference(old: bytes, new: dict[str, Any]) -> str:
    """The first setting that is another one, in words."""
    try:
        stated = json.loads(old)
        name, was = next((name, was) for name, was in stated.items() if new.get(name) != was)
    except (ValueError, AttributeError, StopIteration):
        return "other settings"
    return f"{name} {was}, not {new.get(name)}"
