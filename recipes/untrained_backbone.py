"""Saves an untrained nano backbone in the hub's layout: real architecture, real folder, meaningless vectors.

    python recipes/untrained_backbone.py out/untrained [--family qwen3|qwen2]

For trying the machinery where no model can be downloaded, and for benchmarks that don't look at what vectors mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from nano_model import build_backbone, save_backbone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=("qwen3", "qwen2"), default="qwen3")
    options = parser.parse_args()
    torch.manual_seed(0)
    save_backbone(build_backbone(options.family), options.folder, {"trained": False})
    print(options.folder)


if __name__ == "__main__":
    main()
