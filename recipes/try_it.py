"""The first five minutes without a download: makes a video, embeds it, and shows where the tokens went.

    python recipes/try_it.py [--out out]

The backbone is a nano Qwen3-VL that has not been trained: the path, the budget and the cost are real, the vector means
nothing. With a model of your own: `allocembed embed VIDEO --backbone FOLDER`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from allocembed import world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the video, the model and the results")
    out = parser.parse_args().out
    video, backbone, page = out / "world.mp4", out / "untrained", out / "film.html"
    out.mkdir(parents=True, exist_ok=True)
    print(f"making {video}", flush=True)
    world.write_mp4(world.draw(1, seed=3, kind="short", split="test"), 0, video)
    run(Path(__file__).with_name("untrained_backbone.py"), backbone)
    settings = ["--backbone", backbone, "--allocator", "content", "--budget", "8f"]
    run("-m", "allocembed", "embed", video, *settings, "--out", out / "vectors.npz")
    run("-m", "allocembed", "allocate", video, *settings, "--html", page, "--png", out / "film.png")
    print(f"open {page} in a browser")


def run(*words: object) -> None:
    """Runs this Python with `words`, having said so."""
    print("$ python", *words, flush=True)
    subprocess.run([sys.executable, *map(str, words)], check=True)


if __name__ == "__main__":
    main()
