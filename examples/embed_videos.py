"""Embed videos under a token budget and compare them with a sentence.

python examples/embed_videos.py talk.mp4 holiday.mov --query "someone draws a circle"
"""

from __future__ import annotations

import argparse

from allocembed import AllocEmbed, Failure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Embed videos and compare them with a sentence.")
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--query", required=True)
    parser.add_argument("--backbone", default="qwen3-vl-embedding-2b")
    parser.add_argument("--budget", default="8f")
    given = parser.parse_args(arguments)

    embedder = AllocEmbed.from_pretrained(given.backbone, budget=given.budget)
    query = embedder.encode_text(given.query, instruction=embedder.backbone.query_instruction)
    for result in embedder.stream(given.videos):
        if isinstance(result, Failure):
            print(f"left out {result.error}")
        else:
            score = float(result.vector @ query.vector)
            print(f"{score:6.3f}  {result.cost:6,} of {result.allocation.budget:,} tokens  {result.source}")


if __name__ == "__main__":
    main()
