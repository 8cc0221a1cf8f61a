"""Read the annotations of a benchmark from files beside the videos, or else from the hub through `datasets`.

Files come first, so that a folder copied to a machine without a network is enough:

    DIR/annotations/MSVD/**/test*.parquet      as `hf download` lays out the hub repository (.jsonl and .json too)
    DIR/annotations/MSVD.jsonl                 or one file

A subset, if the set has several, is a folder or the beginning of a file name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allocembed.errors import DataError, MissingDependency
from allocembed.jsonlines import parse_json, read_lines

SUFFIXES = (".parquet", ".jsonl", ".json")

Line = dict[str, Any]


def read_annotations(
    root: Path, name: str, hub: str, subsets: Sequence[str], split: str, columns: Sequence[str]
) -> list[Line]:
    """All lines of a task, with a column `subset` if there are several; check that the columns exist."""
    if not root.is_dir():
        raise DataError(f"there is no folder {root}: give the folder of the dataset with --data")
    lines: list[Line] = []
    for subset in subsets or [None]:
        files = find_files(root / "annotations", name, subset, split, alone=len(subsets) < 2)
        part = (
            [line for path in files for line in read_file(path)] if files else _read_hub(root, name, hub, subset, split)
        )
        lines += [{**line, "subset": subset} for line in part] if len(subsets) > 1 else part
    if not lines:
        raise DataError(f"the annotations of {name} are empty: {_fetch(root, name, hub)}")
    if missing := [column for column in columns if column not in lines[0]]:
        raise DataError(
            f"the annotations of {name} have no column {missing[0]} but {', '.join(map(str, lines[0]))}: "
            f"they belong to another set; {_fetch(root, name, hub)}"
        )
    return lines


def find_files(folder: Path, name: str, subset: str | None, split: str, *, alone: bool = True) -> list[Path]:
    """Files that hold a split of a task, or of one of its subsets; `alone` allows them not to name the subset."""
    found = sorted(path for end in SUFFIXES for path in (folder / name).rglob(f"*{end}"))
    # Hub clients and editors leave hidden files beside the data.
    found = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if subset is not None:
        named = [path for path in found if _names(path.relative_to(folder / name), subset)]
        found = named or (found if alone else [])
    parts = [path for path in found if _begins(path.stem, split)]
    single = [path for end in SUFFIXES if (path := folder / f"{name}{end}").is_file()][:1]
    # A set of one file need not name its split; several files without names may be several splits.
    return parts or (found if len(found) == 1 else []) or (single if alone else [])


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


def _names(path: Path, subset: str) -> bool:
    return subset in path.parent.parts or _begins(path.stem, subset)


def _begins(stem: str, name: str) -> bool:
    return stem == name or stem.startswith((f"{name}-", f"{name}_"))


def _read_hub(root: Path, name: str, hub: str, subset: str | None, split: str) -> list[Line]:
    which = f" ({subset})" if subset else ""
    missing = f"the annotations of {name}{which} are not in {root / 'annotations' / name}"
    try:
        from datasets import load_dataset
        from huggingface_hub import HfApi

        # On its own, the hub client would retry for minutes without a network.
        HfApi().dataset_info(hub, timeout=10)
        return load_dataset(hub, subset, split=split).to_list()
    except ImportError as error:
        raise MissingDependency(f"{missing}; reading them from the hub", "datasets", "eval") from error
    except Exception as error:  # whatever the hub client and its HTTP library raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{missing}, and the hub does not give {hub} ({cause}): {_fetch(root, name, hub)}") from error


def _fetch(root: Path, name: str, hub: str) -> str:
    return f"hf download {hub} --repo-type dataset --local-dir {root / 'annotations' / name}"
