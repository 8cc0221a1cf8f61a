"""How long it takes to index 100 videos with each model, estimated from what was measured.

    python bench/hours.py

The rates of a CPU are those of `bench/cpu.py`, and those of a GPU those of `bench/pipeline.py` and `bench/latency.py`.
A video costs as many tokens as its segments say, and time is taken to grow with the tokens. Decoding is left out,
except for the two models on a GPU that were measured from files.
"""

import json
from pathlib import Path

from allocembed.benchmarks.report import markdown_table
from allocembed.search.segments import BUDGET_SHARE, window_count

CPU = Path(__file__).parent.parent / "docs/internals/measured/cpu.json"
NAMES = {"siglip2-base": "siglip2-base-naflex", "qwen3-vl-2b": "the 2B models (Qwen3-VL)"}
# Videos a second on one H200. 2B: from files, exact, keyframe every 2 s. 8B: from frames on the GPU.
GPU = {"`qwen3-vl-embedding-2b`": 12.4, "the 2B models of Qwen2-VL": 8.7, "`qwen3-vl-embedding-8b`": 1 / 0.118}
VIDEOS, SHORT, LONG = 100, 600.0, 3600.0  # seconds


def factor(seconds: float) -> float:
    """Cost of a video of this length with its segments, in units of the whole video."""
    return 1 + window_count(seconds, "auto") / BUDGET_SHARE


def spelled(hours: float) -> str:
    """Hours, or minutes below one.

    >>> spelled(0.01), spelled(0.3), spelled(9.66)
    ('1 min', '18 min', '9.7 h')
    """
    return f"{hours:.1f} h" if hours >= 1 else f"{max(1, round(60 * hours))} min"


def row(name: str, machine: str, per_second: float) -> list[str]:
    hours = VIDEOS / per_second / 3600
    return [name, machine, spelled(hours), *(spelled(hours * factor(length)) for length in (SHORT, LONG))]


def main() -> None:
    found = json.loads(CPU.read_text(encoding="utf-8"))
    rows = [["model", "machine", "`--segments off`", "10 minutes each", "an hour each"]]
    for run in sorted(found["runs"], key=lambda run: -run["videos_per_minute"]):
        name = NAMES.get(run["model"], run["model"])
        name = name if " " in name else f"`{name}`"
        inputs = f", `--inputs {run['inputs']}`" if run["inputs"] else ""
        machine = f"{found['cores']} CPU cores, {run['dtype']}"
        rows.append(row(name + inputs, machine, run["videos_per_minute"] / 60))
    rows += [row(name, "one H200", rate) for name, rate in GPU.items()]
    print(markdown_table(f"Time to index {VIDEOS} videos, estimated", rows))


if __name__ == "__main__":
    main()
