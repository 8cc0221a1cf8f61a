"""Peak memory of `allocembed embed` on a long file against a short one: it must not grow with the video.

    python bench/memory.py [--backbone nano-qwen3] [--minutes 1 30] [--json]

Each file is embedded in a process of its own, whose peak resident memory the system reports when it ends.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from decode import RATE, write_video
from rich.console import Console
from rich.table import Table

MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def peak_megabytes(video: Path, backbone: str, seek: str, allocator: str = "auto") -> float:
    """Peak resident memory of one `embed`, in MB."""
    embed = [sys.executable, "-m", "allocembed", "embed", str(video), "--backbone", backbone, "--seek", seek]
    options = ["--allocator", allocator, "--out", str(video.with_suffix(".npz"))]
    command = [sys.executable, "-c", MEASURE, *embed, *options]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3", help="a small one, so that its weights don't hide the rest")
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 30.0])
    parser.add_argument("--gop", type=int, default=250)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for minutes in options.minutes:
            video = Path(folder) / f"{minutes:g}.mp4"
            write_video(video, round(minutes * 60 * RATE), options.gop)
            rows += [
                {"minutes": minutes, "seek": seek, "peak_mb": round(peak_megabytes(video, options.backbone, seek))}
                for seek in ("exact", "keyframe")
            ]
    if options.json:
        print(json.dumps({"rows": rows}))
        return
    table = Table(title="peak memory of embed, 720p")
    for heading in ("minutes", "seek", "peak, MB"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(f"{row['minutes']:g}", row["seek"], str(row["peak_mb"]))
    Console().print(table)


if __name__ == "__main__":
    main()
