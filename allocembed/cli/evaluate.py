"""`allocembed eval`: benchmarks. Tables go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markdown import Markdown

from allocembed.benchmarks.request import BenchmarkRequest
from allocembed.cli.options import FLAT, AsJson, Command, at_least
from allocembed.output.console import complain, progress, say

if TYPE_CHECKING:
    from allocembed.benchmarks.campaign import CampaignResults

HIDDEN = ("backbone", "allocator", "benchmark")
"""The first two come from --backbone and --methods, the third from the command's name."""


@partial(Command, hidden=HIDDEN, preset={"benchmark": "mmeb-v2", "out": Path("mmeb-v2-results")})
def mmeb_v2(request: Annotated[BenchmarkRequest, FLAT], as_json: AsJson = False) -> int:
    """MMEB-V2: ten tasks of video retrieval and video questions, as VLM2Vec-V2 evaluates them.

      allocembed eval mmeb-v2 --data MMEB-V2 --tasks MSR-VTT,MSVD --backbone vlm2vec-v2-2b
      torchrun --nproc-per-node 8 -m allocembed eval mmeb-v2 --data MMEB-V2
      CUDA_VISIBLE_DEVICES=0 allocembed eval mmeb-v2 --data MMEB-V2 --shard 1/8    # and so on, up to 8/8

    Args:
        as_json: Print the results as JSON.
    """
    return _run(request, as_json)


@partial(Command, hidden=HIDDEN, preset={"benchmark": "longret", "out": Path("longret-results")})
def longret(request: Annotated[BenchmarkRequest, FLAT], as_json: AsJson = False) -> int:
    """LongRet: find complete long videos by descriptions of moments or of whole videos.

      allocembed longret build --lovr LoVR --vript Vript --out longret
      allocembed eval longret --data longret

    Args:
        as_json: Print the results as JSON.
    """
    return _run(request, as_json)


def _run(request: BenchmarkRequest, as_json: bool) -> int:
    """Run, show, and return the exit status: 1 if a video was left out, as for other commands."""
    at_least(1, limit=request.limit, batch=request.batch)
    tasks = request.load_tasks()
    from allocembed.benchmarks import campaign

    results = campaign.run(request, tasks, progress=progress)
    if results.unfinished:
        say(results.unfinished)
    elif results.first:
        show(results, as_json)
    # torchrun would take it for a crash, and end the other processes.
    return 1 if results.failures and "TORCHELASTIC_RUN_ID" not in os.environ else 0


def show(results: CampaignResults, as_json: bool) -> None:
    """Print the results, and what was written and left out."""
    for path in results.files:
        say(f"→ {path}")
    if as_json:
        print(json.dumps(results.json))
    else:
        Console().print(*(results.tables or [Markdown(results.markdown)]), sep="\n")
    for failure in results.failures:
        complain("left out", failure)
