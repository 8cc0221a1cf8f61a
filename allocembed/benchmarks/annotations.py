"""Lines of a benchmark's annotations: from files beside the videos, or else from the hub through `datasets`.

Files are looked for first, so that a folder that was copied to a machine without a network is enough:

    DIR/annotations/MSVD/**/test*.parquet      what hf download makes of the hub's repository (.jsonl and .json too)
    DIR/annotations/MSVD.jsonl                 or one file

A subset, where the set has some, is a folder or the beginning of a file's name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SUFFIXES = (".parquet", ".jsonl", ".json")
NEEDS = "pip install -e '.[eval]'"

Line = dict[str, Any]


def read_annotations(
    root: Path, name: str, hub: str, subsets: Sequence[str], split: str, columns: Sequence[str]
) -> list[Line]:
    """All lines of a task, those of several subsets one after another with a column `subset`; checks the columns."""
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}: give the dataset's with --data")
    lines: list[Line] = []
    for subset in subsets or [None]:
        part = _read_local(root / "annotations", name, subset, split, alone=len(subsets) < 2)
        if part is None:
            part = _read_hub(root, name, hub, subset, split)
        lines += [{**line, "subset": subset} for line in part] if len(subsets) > 1 else part
    if not lines:
        raise ValueError(f"{name}'s annotations are empty: {_fetch(root, name, hub)}")
    if lost := [column for column in columns if column not in lines[0]]:
        there = ", ".join(map(str, lines[0]))
        raise ValueError(
            f"{name}'s annotations have no column {lost[0]} (there are {there}): they are another set's; "
            f"{_fetch(root, name, hub)}"
        )
    return lines


def find_files(folder: Path, name: str, subset: str | None, split: str, *, alone: bool = True) -> list[Path]:
    """The files that hold a split of a task, or of one of its subsets; `alone` lets a subset's name be left out."""
    found = sorted(path for end in SUFFIXES for path in (folder / name).rglob(f"*{end}"))
    # What hub clients and editors leave beside the data.
    found = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if subset is not None:
        named = [path for path in found if _names(path.relative_to(folder / name), subset)]
        found = named or (found if alone else [])
    parts = [path for path in found if path.stem == split or path.stem.startswith((f"{split}-", f"{split}_"))]
    single = [path for end in SUFFIXES if (path := folder / f"{name}{end}").is_file()][:1]
    # A set of one file need not name its split; several that don't may be several splits.
    return parts or (found if len(found) == 1 else []) or (single if alone else [])


def read_file(path: Path) -> list[Line]:
    """Lines of a .parquet, .jsonl or .json file."""
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path).to_pylist()
        text = path.read_text(encoding="utf-8")
        lines = json.loads(text) if path.suffix == ".json" else [json.loads(x) for x in text.splitlines() if x.strip()]
    except ImportError as error:
        raise ValueError(f"reading {path} needs pyarrow: {NEEDS}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read ({error}): download it again") from error
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        raise ValueError(f"{path} is no list of records: download it again")
    return lines


def _names(path: Path, subset: str) -> bool:
    return subset in path.parent.parts or path.stem == subset or path.stem.startswith((f"{subset}-", f"{subset}_"))


def _read_local(folder: Path, name: str, subset: str | None, split: str, *, alone: bool) -> list[Line] | None:
    files = find_files(folder, name, subset, split, alone=alone)
    return [line for path in files for line in read_file(path)] if files else None


def _read_hub(root: Path, name: str, hub: str, subset: str | None, split: str) -> list[Line]:
    which = f" ({subset})" if subset else ""
    lacking = f"{name}'s annotations{which} are not in {root / 'annotations' / name}"
    try:
        from datasets import load_dataset
        from huggingface_hub import HfApi

        # The hub client alone would retry for minutes where there is no network.
        HfApi().dataset_info(hub, timeout=10)
        return load_dataset(hub, subset, split=split).to_list()
    except ImportError as error:
        raise ValueError(f"{lacking}, and the hub needs datasets: {NEEDS}, or {_fetch(root, name, hub)}") from error
    except Exception as error:  # whatever the hub client and its HTTP library of the day raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{lacking}, and the hub does not give {hub} ({cause}): {_fetch(root, name, hub)}") from error


def _fetch(root: Path, name: str, hub: str) -> str:
    return f"hf download {hub} --repo-type dataset --local-dir {root / 'annotations' / name}"
