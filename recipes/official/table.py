"""Compare ours with the fixtures of the official code and write the tables of docs/parity.md.

    python recipes/official/table.py

Runs in the environment of AllocEmbed. Needs nothing of the official code: only what it returned.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests import official_ours  # noqa: E402 (found only with the path above)

START, END = "<!-- tables: python recipes/official/table.py -->", "<!-- end of tables -->"
PARTS = ("ids", "grid", "frames", "times", "positions")


def fixture_rows(name: str) -> Iterator[str]:
    """The section of one fixture, line by line."""
    fixture = official_ours.load_fixture(name)
    versions = ", ".join(f"{package} {version}" for package, version in fixture["versions"].items())
    part = f", {fixture['part']}" if fixture.get("part") else ""
    yield f"### {fixture['model']}, inputs `{fixture['inputs']}`{part}\n"
    yield f"Official code: {fixture['repository']} at `{fixture['commit'][:7]}`, with {versions}.\n"
    yield "| case | tokens | patches | " + " | ".join(PARTS) + " | pixels | 1 − cos |"
    yield "|---|---|---|" + "---|" * (len(PARTS) + 2)
    with tempfile.TemporaryDirectory() as temporary:
        ours = official_ours.load_ours(fixture, Path(temporary) / "checkpoint")
        for case in fixture["cases"]:
            if "differs" in case:
                continue
            made = official_ours.run_case(ours, case, Path(temporary))
            yield case_row(case, official_ours.compare(case["expected"], made))
    yield ""


def case_row(case: dict[str, Any], found: official_ours.Comparison) -> str:
    """One line of a table."""
    words = {True: "=", False: "**≠**", None: ""}
    expected = case["expected"]
    grid = "×".join(str(side) for side in expected.get("grid", []))
    cells = [case["name"], f"{expected['ids']['count']:,}", grid, *(words[getattr(found, part)] for part in PARTS)]
    cells.append({True: "=", False: "filter" if found.close else "**≠**", None: ""}[found.pixels])
    cells.append("" if found.distance is None else f"{found.distance:.0e}" if found.distance > 1e-9 else "< 1e-9")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    path = ROOT / "docs" / "parity.md"
    before, rest = path.read_text(encoding="utf-8").split(START)
    after = rest.split(END)[1]
    lines = [line for name in official_ours.fixture_names() for line in fixture_rows(name)]
    path.write_text(before + "\n".join([START, "", *lines, END]) + after, encoding="utf-8")
    print(f"{path}: {len(lines)} lines")


if __name__ == "__main__":
    main()
