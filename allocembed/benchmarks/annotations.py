"""Read the annotations of a benchmark from files beside the videos, or else from the hub through `datasets`.

Files come first, so that a folder copied to a machine without a network is enough:

    DIR/annotations/MSVD/msvd_test.json        the published file, as `hf download` places it
    DIR/annotations/MSVD.jsonl                 or one file of your own (.json and .parquet too)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allocembed.errors import DataError, MissingDependency
from allocembed.jsonlines import parse_json, read_lines

SUFFIXES = (".parquet", ".jsonl", ".json")

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AnnotationSet:
    """The published place of a task's annotations, and the columns they must have."""

    name: str
    hub: str
    file: str
    """Path in the hub repository, with wildcards; {subset} stands for the name of a subset."""
    split: str
    columns: Sequence[str]
    subsets: Mapping[str, str] = field(default_factory=dict)
    """Subsets to read, each with the folder of its raw videos, if the subsets have folders of their own."""

    def fetch_command(self, root: Path) -> str:
        """A command that downloads the annotations alone; the repositories hold raw videos too."""
        pattern = self.file.format(subset="*")
        return (
            f"hf download {self.hub} --repo-type dataset --include '{pattern}' "
            f"--local-dir {root / 'annotations' / self.name}"
        )


def read_annotations(source: AnnotationSet, root: Path) -> list[Line]:
    """All lines of a task, with a column `subset` if there are several; check that the columns exist."""
    if not root.is_dir():
        raise DataError(f"there is no folder {root}: give the folder of the dataset with --data")
    several = len(source.subsets) > 1
    lines: list[Line] = []
    for subset in source.subsets or [None]:
        files = find_files(source, root, subset)
        part = [line for path in files for line in read_file(path)] if files else _read_hub(source, root, subset)
        lines += [{**line, "subset": subset} for line in part] if several else part
    if not lines:
        raise DataError(f"the annotations of {source.name} are empty: {source.fetch_command(root)}")
    if missing := [column for column in source.columns if column not in lines[0]]:
        raise DataError(
            f"the annotations of {source.name} have no column {missing[0]} but {', '.join(map(str, lines[0]))}: "
            f"they belong to another set; {source.fetch_command(root)}"
        )
    return lines


def find_files(source: AnnotationSet, root: Path, subset: str | None = None) -> list[Path]:
    """The published files of a task or of one of its subsets, or else the one file named like the task."""
    folder = root / "annotations"
    published = sorted((folder / source.name).glob(source.file.format(subset=subset)))
    # One file cannot say which lines belong to which subset.
    own = [] if len(source.subsets) > 1 else [folder / f"{source.name}{end}" for end in SUFFIXES]
    return published or [path for path in own if path.is_file()][:1]


def read_file(path: Path) -> list[Line]:
    """Lines of a .parquet, .jsonl or .json file."""
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path).to_pylist()
        if path.suffix == ".json":
            lines = parse_json(path.read_bytes())
        else:
            lines = [_parse_line(number, line) for number, line in read_lines(path)]
    except ImportError as error:
        raise MissingDependency(f"reading {path}", "pyarrow", "eval") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} ({error}): download it again") from error
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        raise DataError(f"{path} is not a list of records: download it again")
    return lines


def _parse_line(number: int, line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error


def _read_hub(source: AnnotationSet, root: Path, subset: str | None) -> list[Line]:
    folder = root / "annotations" / source.name
    missing = f"there is no {folder / source.file.format(subset=subset)}"
    if len(source.subsets) < 2:
        missing += f" and no {folder}.jsonl"
    try:
        from datasets import load_dataset
        from huggingface_hub import HfApi

        # On its own, the hub client would retry for minutes without a network.
        HfApi().dataset_info(source.hub, timeout=10)
        return load_dataset(source.hub, subset, split=source.split).to_list()
    except ImportError as error:
        raise MissingDependency(f"{missing}; reading them from the hub", "datasets", "eval") from error
    except Exception as error:  # whatever the hub client and its HTTP library raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"cannot read the annotations of {source.name}: {missing}, and the hub does not give {source.hub} "
            f"({cause}); download them: {source.fetch_command(root)}"
        ) from error
