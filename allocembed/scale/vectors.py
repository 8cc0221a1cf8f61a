"""Embed with Ray into a folder of Parquet files, which tools read as one table.

Each worker writes what it has embedded as files of its own, whole or absent. A run that was killed is continued by what
these files hold: a file of the same path, size and date, or ETag, is not embedded again. The row of a file that has
changed since is dropped.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from allocembed.config import EmbedConfig
from allocembed.errors import OutputError
from allocembed.files import FileEntry
from allocembed.output.files import whole_file
from allocembed.output.vectors import table_of
from allocembed.remote.objects import is_remote, list_objects, read, write
from allocembed.remote.ranged import RangedFile
from allocembed.scale.cluster import ClusterOptions, connected
from allocembed.scale.pool import WorkerPool

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ABOUT = "_settings.json"  # tools that read the folder leave out names with a line in front


@dataclass(frozen=True)
class VectorOutcome:
    """What became of a video: all that travels back to the driver."""

    source: str
    status: Literal["embedded", "failed"]
    tokens: int = 0
    error: str = ""


class Done:
    """The videos that a folder holds: digests of their paths and keys, eight bytes each."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}
        """By path."""
        self.doubled: dict[bytes, set[bytes]] = {}
        """All keys of paths that have several: a run was killed before it dropped the old ones."""

    def add(self, sources: Sequence[str], keys: Sequence[str]) -> None:
        for source, key in zip(sources, keys, strict=True):
            path, own = _short(source), bytes.fromhex(key)
            if (first := self.keys.setdefault(path, own)) != own:
                self.doubled.setdefault(path, {first}).add(own)

    def has(self, file: FileEntry) -> bool:
        """Whether there is a file as it is now."""
        return bytes.fromhex(key_of(file)) in self._of(file)

    def has_old(self, file: FileEntry) -> bool:
        """Whether there is a file as it was before."""
        return bool(self._of(file) - {bytes.fromhex(key_of(file))})

    def _of(self, file: FileEntry) -> set[bytes]:
        path = _short(file.path)
        return self.doubled.get(path) or ({self.keys[path]} if path in self.keys else set())


class PartFolder:
    """A folder of Parquet files, on a disk or in object storage."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self._done, self._counted = Done(), set[str]()

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
            self.write(ABOUT, stated.encode())
            return
        except OSError as error:
            raise OutputError(f"cannot write to {self.place}: {error.strerror or error}") from error
        if old.decode(errors="replace") != stated:
            raise OutputError(
                f"cannot continue {self.place}: it was made with {_difference(old, settings)}; give the same settings, "
                "or choose another --out"
            )

    def done(self) -> Done:
        """What all files hold. Of each, only two columns are read, once."""
        with self._errors():
            for name, part in self._parts(self._counted):
                self._done.add(*_sources_and_keys(part))
                self._counted.add(name)
        return self._done

    def drop_changed(self, changed: Mapping[bytes, bytes]) -> None:
        """Drop the rows of files that have changed: `changed` gives the new key of each path, by its digest."""
        if not changed:
            return
        from pyarrow import parquet

        with self._errors():
            for name, part in self._parts():
                rows = zip(*_sources_and_keys(part), strict=True)
                kept = [changed.get(_short(source), own := bytes.fromhex(key)) == own for source, key in rows]
                if not all(kept):
                    content = io.BytesIO()
                    parquet.write_table(part.read().filter(kept), content)
                    self.write(name, content.getvalue())

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

    def write(self, name: str, content: bytes) -> None:
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


class VectorWorker:
    """A process with a model, which embeds files and writes their vectors. Ray makes it an actor."""

    def __init__(
        self, config: EmbedConfig, place: str, cores: int, commit: int, question: str | None, instruction: str | None
    ) -> None:
        import torch

        from allocembed.embedder import AllocEmbed
        from allocembed.threads import limit_cores

        limit_cores(cores)
        torch.set_num_threads(cores)
        self.process = uuid4().hex
        self.embedder, self.folder, self.commit = AllocEmbed.from_config(config), PartFolder(place), commit
        self.question, self.instruction = question, instruction

    def ready(self) -> str:
        """A value that no other process returns, once the model is loaded."""
        return self.process

    def work(self, files: Sequence[FileEntry], again: bool = False) -> list[VectorOutcome]:
        """Embed files; one outcome for each. What is handed out `again` may have been written before."""
        from allocembed.embedder import Failure

        done = self.folder.done() if again else Done()
        outcomes = [VectorOutcome(file.path, "embedded") for file in files if done.has(file)]
        files = [file for file in files if not done.has(file)]
        rows: list[tuple[str, Any]] = []
        stream = self.embedder.stream([file.path for file in files], self.question, instruction=self.instruction)
        for file, result in zip(files, stream, strict=True):
            if isinstance(result, Failure):
                outcomes.append(VectorOutcome(file.path, "failed", error=str(result.error)))
                continue
            rows.append((key_of(file), result))
            outcomes.append(VectorOutcome(file.path, "embedded", result.cost))
            if len(rows) >= self.commit:
                self._write(rows)
                rows = []
        self._write(rows)
        return outcomes

    def _write(self, rows: Sequence[tuple[str, Any]]) -> None:
        if not rows:
            return
        from pyarrow import parquet

        table = table_of([embedding for _, embedding in rows]).append_column("key", [[key for key, _ in rows]])
        content = io.BytesIO()
        parquet.write_table(table, content)
        # The name follows from the videos: whoever embeds the same again writes the same file.
        name = hashlib.blake2b("".join(key for key, _ in rows).encode(), digest_size=16).hexdigest()
        self.folder.write(f"part-{name}.parquet", content.getvalue())


def key_of(file: FileEntry) -> str:
    """Stands for a path with this size and date, or ETag."""
    about = f"{file.path}\n{file.size}\n{file.video or file.changed}"
    return hashlib.blake2b(about.encode(), digest_size=8).hexdigest()


def _short(text: str) -> bytes:
    """Eight bytes that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _difference(old: bytes, new: dict[str, Any]) -> str:
    """The first setting that is another one, in words."""
    try:
        stated = json.loads(old)
        name, was = next((name, was) for name, was in stated.items() if new.get(name) != was)
    except (ValueError, AttributeError, StopIteration):
        return "other settings"
    return f"{name} {was}, not {new.get(name)}"


def embed_with_ray(
    files: Iterator[FileEntry],
    place: str,
    config: EmbedConfig,
    cluster: ClusterOptions,
    *,
    question: str | None = None,
    instruction: str | None = None,
) -> Iterator[VectorOutcome | None]:
    """Embed files into a folder of Parquet files. Yield an outcome for each, None for one that is there already."""
    folder = PartFolder(place)
    folder.settle({**config.settings(), "question": question, "instruction": instruction})
    done, skipped = folder.done(), 0
    changed: dict[bytes, bytes] = {}

    def new() -> Iterator[FileEntry]:
        nonlocal skipped
        for file in files:
            if done.has_old(file):
                changed[_short(file.path)] = bytes.fromhex(key_of(file))
            if done.has(file):
                skipped += 1
            else:
                yield file

    first = next(pending := new(), None)
    if first is not None:
        with connected(cluster) as connection:
            pool = WorkerPool[FileEntry, VectorOutcome](
                connection,
                VectorWorker,
                config,
                place,
                connection.cores,
                cluster.commit,
                question,
                instruction,
                portion=cluster.commit,
            )
            try:
                yield from pool.run(chain([first], pending), _give_up)
            finally:
                pool.close()
    folder.drop_changed(changed)
    yield from (None for _ in range(skipped))


def _give_up(file: FileEntry, cause: str) -> VectorOutcome:
    return VectorOutcome(file.path, "failed", error=f"{file.path}: {cause}")
