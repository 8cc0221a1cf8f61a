"""Measure everything that docs/internals/results.md says about the nano models, and print its tables.

    python recipes/results.py --out out/results --jobs 6          # hours on a CPU, minutes on a GPU
    python recipes/results.py --out out/results --jobs 6 --only "main-*"
    python docs/make_tables.py recipes/results.py                 # puts them into the page

Each measurement is a command whose JSON is stored in OUT; finished ones are not repeated. The tables are made from
those files alone. A table is printed once all its measurements are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import tokens

from allocembed.benchmarks import report
from allocembed.benchmarks.metrics import Score
from allocembed_nano.nanoret import LAYOUT

BACKBONES = ("nano-qwen3", "nano-qwen2", "nano-gemma")
SETS = {"short": "short-clip,short-video", "long": "long-clip,long-video", "qa": "qa"}
SEEDS = {"shipped": [], "fresh": ["--seed", "1"]}
UNTRAINED = "base,full,uniform,content,select"
BUDGETS = {"16f": "48", "20f": "60"}  # with their candidates; 8f with 24 is the default
EVAL = ["-m", "allocembed", "eval", "nano", "--json", "--dtype", "bfloat16"]  # as on a GPU by default


def jobs() -> dict[str, list[str]]:
    """All measurements: their names and the arguments of python."""
    found = {}
    for backbone in BACKBONES:
        for which, seed in SEEDS.items():
            for name, subsets in SETS.items():
                rest = ["--backbone", backbone, "--subsets", subsets, *seed]
                found[f"main-{backbone}-{which}-{name}"] = [*EVAL, "--methods", UNTRAINED, *rest]
                found[f"learned-{backbone}-{which}-{name}"] = [*EVAL, "--methods", "learned", *rest]
    for budget, candidates in BUDGETS.items():
        for name in ("short", "long"):
            rest = ["--subsets", SETS[name], "--budget", budget, "--candidates", candidates]
            found[f"budget-{budget}-{name}"] = [*EVAL, "--methods", "base,full,uniform", *rest]
            found[f"learned-budget-{budget}-{name}"] = [*EVAL, "--methods", "learned", *rest]
    for name, subsets in SETS.items():
        found[f"learned-limits-{name}"] = ["recipes/limits.py", "--json", "--dtype", "bfloat16", "--subsets", subsets]
    found["learned-tokens"] = ["recipes/tokens.py", "--json"]
    found["sweep"] = [*EVAL, "--sweep", "frames", "--out", "docs/internals", "--limit", "250"]
    return found


def measure(name: str, command: list[str], out: Path) -> str | None:
    """Run one measurement unless its result is there; return its error, if any."""
    path = out / f"{name}.json"
    if path.exists():
        return None
    started = time.monotonic()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode:
        return f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
    scratch = path.with_suffix(".part")
    scratch.write_text(done.stdout)
    scratch.rename(path)
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return None


def rows(out: Path, pattern: str) -> list[Score]:
    """Scores of all measurements whose name matches, methods in the order of the paper's table."""
    lines = [line for path in sorted(out.glob(f"{pattern}.json")) for line in json.loads(path.read_text())["rows"]]
    fields = ("method", "subset", "hit@1", "mean_rank", "cost", "over_budget", "n")
    found = [Score(*(line[field] for field in fields)) for line in lines]
    order = list(report.TITLES)
    places = {subset: number for number, subset in enumerate(LAYOUT.videos)}
    known = lambda method: order.index(method) if method in order else len(order)  # noqa: E731
    return sorted(found, key=lambda row: (known(row.method), row.method, places[row.subset]))


def way(found: list[Score]) -> str:
    """The position of Learned between Uniform and Full, over the retrieval subsets."""
    averages = {summary.method: summary.averages["retrieval"] for summary in report.summarise(found, LAYOUT)}
    learned, uniform, full = (averages[method] for method in ("learned", "uniform", "full"))
    share = (learned - uniform) / (full - uniform)
    return f"AllocEmbed is {share:.0%} of the way from Uniform ({uniform:.1f}) to Full Resolution ({full:.1f})."


def page(out: Path) -> str:
    """Each section that has been measured."""
    have = {name for name in jobs() if (out / f"{name}.json").exists()}
    sections = [(f"main-{backbone}-{which}", backbone, which) for backbone in BACKBONES for which in SEEDS]
    parts: list[str] = []
    for prefix, backbone, which in sections:
        if all(f"{prefix}-{name}" in have for name in SETS):
            parts.append(main_section(out, backbone, which, have))
    if all(f"learned-limits-{name}" in have for name in SETS):
        parts.append(limits_section(out))
    for budget, candidates in BUDGETS.items():
        if all(
            f"{prefix}-{budget}-{name}" in have
            for prefix in ("budget", "learned-budget")
            for name in SETS
            if name != "qa"
        ):
            parts.append(budget_section(out, budget, candidates))
    if "learned-tokens" in have:
        table = tokens.table(json.loads((out / "learned-tokens.json").read_text()))
        parts.append(f"## Where the tokens go\n\n`python recipes/tokens.py`\n\n{table}")
    if Path("docs/internals/sweep_frames.md").exists():  # it compares no allocators, so an earlier one stays valid
        parts.append(SWEEP + Path("docs/internals/sweep_frames.md").read_text())
    return "\n".join(parts)


SWEEP = """## More frames, and a fixed budget

`allocembed eval nano --sweep frames --limit 250 --out docs`

![Hit@1 over the number of frames](sweep_frames.png)

"""


def main_section(out: Path, backbone: str, which: str, have: set[str]) -> str:
    found = rows(out, f"main-{backbone}-{which}-*")
    position = ""
    if all(f"learned-{backbone}-{which}-{name}" in have for name in SETS):
        found += rows(out, f"learned-{backbone}-{which}-*")
        position = way(found) + (" It never saw this backbone in training." if backbone != BACKBONES[0] else "") + "\n"
    command = " ".join(["allocembed eval nano --backbone", backbone, *SEEDS[which]])
    layout = replace(LAYOUT, title=f"NanoRet, {backbone}")
    return f"## {backbone}, {which} videos\n\n`{command}`\n\n{report.markdown(found, layout)}\n{position}"


def limits_section(out: Path) -> str:
    found = rows(out, "main-nano-qwen3-shipped-*") + rows(out, "learned-nano-qwen3-shipped-*")
    found = [row for row in found if row.method in ("uniform", "full", "learned")] + rows(out, "learned-limits-*")
    table = report.markdown_table("Hit@1 in percent, nano-qwen3", _by_subset(found))
    return f"## What allocation could do, and what the question is worth\n\n`python recipes/limits.py`\n\n{table}"


def budget_section(out: Path, budget: str, candidates: str) -> str:
    found = rows(out, f"budget-{budget}-*") + rows(out, f"learned-budget-{budget}-*")
    layout = replace(LAYOUT, title=f"NanoRet, nano-qwen3, {candidates} candidate frames")
    command = f"allocembed eval nano --budget {budget} --candidates {candidates}"
    return f"## A budget of {budget}\n\n`{command}`\n\n{report.markdown(found, layout)}\n{way(found)}\n"


def _by_subset(found: list[Score]) -> list[list[str]]:
    subsets = [subset for subset in LAYOUT.videos if any(row.subset == subset for row in found)]
    lines = [["method", *subsets]]
    for method in dict.fromkeys(row.method for row in found):
        hits = {row.subset: f"{row.hit1:.1f}" for row in found if row.method == method}
        lines.append([report.TITLES.get(method, method), *(hits.get(subset, "") for subset in subsets)])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/results"))
    parser.add_argument("--jobs", type=int, default=1, help="measurements at a time")
    parser.add_argument(
        "--only", action="append", default=[], help="run only those whose name matches; may be repeated"
    )
    parser.add_argument("--limit", type=int, help="use only the first N videos, to try the script; prints no tables")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = {
        name: command + (["--limit", str(options.limit)] if options.limit else [])
        for name, command in jobs().items()
        if not options.only or any(fnmatch(name, pattern) for pattern in options.only)
    }
    with ThreadPoolExecutor(options.jobs) as pool:
        failures = [each for each in pool.map(lambda job: measure(*job, options.out), chosen.items()) if each]
    for failure in failures:
        print(failure, file=sys.stderr)
    missing = [name for name in jobs() if not (options.out / f"{name}.json").exists()]
    if not options.limit:
        print(page(options.out))
    print(f"{len(missing)} of {len(jobs())} measurements are missing", file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
