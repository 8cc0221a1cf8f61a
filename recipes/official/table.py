"""Compare ours with the fixtures of the official code, and print the tables of docs/internals/parity.md.

    python recipes/official/table.py            # a line for each model and its inputs
    python recipes/official/table.py --cases    # a table for each, with a line for each case

Runs in the environment of AllocEmbed. Needs nothing of the official code: only what it returned.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import official_ours

PARTS = ("ids", "grid", "frames", "times", "positions")
EQUAL = 1e-9  # 1 − cos below it is written as equal
Rows = list[list[str]]
Compared = list[tuple[dict[str, Any], official_ours.Comparison]]


def compare(fixture: dict[str, Any]) -> Compared:
    """All cases of a fixture that ours should equal, each with what is equal."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ours = official_ours.load_ours(fixture, folder / "checkpoint")
        cases = [case for case in fixture["cases"] if "differs" not in case]
        return [
            (case, official_ours.compare(case["expected"], official_ours.run_case(ours, case, folder)))
            for case in cases
        ]


def summary(fixture: dict[str, Any], compared: Compared) -> list[str]:
    """One line for a fixture: of each part, how many cases are equal among those that have it."""
    found = [comparison for _, comparison in compared]
    code = f"{fixture['repository']} `{fixture['commit'][:7]}`, transformers {fixture['versions']['transformers']}"
    inputs = f"`{fixture['inputs']}`" + (f", {fixture['part']}" if fixture.get("part") else "")
    parts = [share([getattr(each, part) for each in found]) for part in PARTS]
    pixels = share([each.pixels for each in found])
    near = [each for each in found if each.pixels is not None and each.pixels is False and each.close]
    pixels += f", {len(near)} by the filter" if near else ""
    distances = [each.distance for each in found if each.distance is not None]
    return [fixture["model"], inputs, code, str(len(found)), *parts, pixels, distance(max(distances, default=None))]


def share(values: list[bool | None]) -> str:
    """How many are equal of those that were compared.

    >>> share([True, False, None]), share([None])
    ('1 of 2', '')
    """
    known = [value for value in values if value is not None]
    return f"{sum(known)} of {len(known)}" if known else ""


def distance(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}" if value > EQUAL else f"< {EQUAL:.0e}"


def case_row(case: dict[str, Any], found: official_ours.Comparison) -> list[str]:
    """One line of a table of cases."""
    words = {True: "=", False: "**≠**", None: ""}
    expected = case["expected"]
    grid = "×".join(str(side) for side in expected.get("grid", []))
    pixels = {True: "=", False: "filter" if found.close else "**≠**", None: ""}[found.pixels]
    parts = [words[getattr(found, part)] for part in PARTS]
    return [case["name"], f"{expected['ids']['count']:,}", grid, *parts, pixels, distance(found.distance)]


def table(headings: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """A Markdown table, line by line."""
    for row in (headings, ["---"] * len(headings), *rows):
        yield f"| {' | '.join(row)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", action="store_true", help="a table for each fixture, with a line for each case")
    cases = parser.parse_args().cases
    lines: Rows = []
    for name in official_ours.fixture_names():
        fixture = official_ours.load_fixture(name)
        compared = compare(fixture)
        lines.append(summary(fixture, compared))
        if cases:
            rows = (case_row(*each) for each in compared)
            headings = ["case", "tokens", "patches", *PARTS, "pixels", "1 − cos"]
            print(
                f"### {fixture['model']}, inputs `{fixture['inputs']}`\n", *table(headings, rows), sep="\n", end="\n\n"
            )
    if not cases:
        headings = ["model", "inputs", "official code", "cases", *PARTS, "pixels", "largest 1 − cos"]
        print(*table(headings, lines), sep="\n")


if __name__ == "__main__":
    main()
