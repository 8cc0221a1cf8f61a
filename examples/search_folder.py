"""Index a folder of videos and ask it a question.

python examples/search_folder.py ~/Videos videos.index "a dog jumps into a lake"
"""

from __future__ import annotations

import argparse
from pathlib import Path

from allocembed import EmbedConfig
from allocembed.search import VideoIndex


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Index a folder and search it.")
    parser.add_argument("folder")
    parser.add_argument("index")
    parser.add_argument("query")
    parser.add_argument("--backbone", default="qwen3-vl-embedding-2b")
    given = parser.parse_args(arguments)

    config = EmbedConfig(backbone=given.backbone, budget="8f")
    if Path(given.index).exists():
        index = VideoIndex.open(given.index, config)
    else:
        index = VideoIndex.create(given.index, config, segments="auto")
    report = index.add([given.folder])
    print(f"{report.embedded} videos embedded, {report.tokens:,} tokens")
    for hit in index.search(given.query, top=5):
        print(f"{hit.score:6.3f}  {hit.start:.0f}–{hit.end:.0f} s  {hit.path}")


if __name__ == "__main__":
    main()
