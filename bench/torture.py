"""Attack the package and count what breaks: damaged files, kills, writers in parallel, a failing disk, and more.

    python bench/torture.py [--only NAME …] [--seed N] [--scale 1.0] [--out FILE.json]

Each part prints one line with its counts. The exit status is 1 if anything bad happened. At scale 1 the parts run
5,000 damaged files, 150 kills, 60 races of writers, every failure of the disk, 1,000,000 allocations and 10,000
requests; see docs/internals/torture.md.
"""

import argparse
import importlib
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
PARTS = ("media", "kills", "writers", "disk", "allocations", "soak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every count (default 1)")
    parser.add_argument("--out", type=Path, help="write the counts to this JSON file")
    given = parser.parse_args()
    from torture_parts.common import Outcome, Settings

    outcomes: list[Outcome] = []
    for name in given.only:
        part = importlib.import_module(f"torture_parts.{name}")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"torture-{name}-", ignore_cleanup_errors=True) as folder:
            outcome: Outcome = part.run(Settings(Path(folder), given.seed, given.scale))
        outcome.seconds = time.monotonic() - started
        print(outcome.line(), flush=True)
        for example in outcome.examples:
            print(f"    {example}", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    if given.out:
        about = {"date": time.strftime("%Y-%m-%d"), "seed": given.seed, "scale": given.scale}
        about |= {"python": platform.python_version(), "machine": platform.machine()}
        given.out.write_text(json.dumps(about | {"parts": [each.as_dict() for each in outcomes]}, indent=1) + "\n")
    sys.exit(0 if all(outcome.clean for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
