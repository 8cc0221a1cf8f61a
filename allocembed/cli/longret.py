"""`allocembed longret`: builds the LongRet benchmark from its two sources."""

from pathlib import Path
from typing import Annotated

from allocembed.cli.options import UNSET, Command, Out, UsageError, at_least
from allocembed.output.console import progress, say


@Command
def build(
    lovr: Annotated[Path | None, UNSET] = None,
    vript: Annotated[Path | None, UNSET] = None,
    out: Out = Path("longret"),
    seed: int = 0,
    workers: int = 8,
) -> None:
    """Pair complete videos with clip and video queries; report how the result differs from the paper's.

      allocembed longret build --lovr LoVR --vript Vript --out longret

    Args:
        lovr: Folder of LoVR's download: caption_data/, and the videos joined from the clips anywhere in it.
        vript: Folder of Vript's download: vript_captions/ and vript_long_videos/, zipped or not.
        out: Folder for the benchmark, and for the videos that are taken out of zip files.
        seed: Chooses which captions of a video become clip queries.
        workers: Videos measured at a time.
    """
    if lovr is None and vript is None:
        raise UsageError("there is no source to build from: give --lovr FOLDER, --vript FOLDER or both")
    at_least(0, seed=seed)
    at_least(1, workers=workers)
    from allocembed.benchmarks.composition import build_benchmark

    with progress("measuring videos") as shown:
        text, files = build_benchmark(lovr, vript, out, seed=seed, workers=workers, progress=shown.update)
    print(text)
    for path in files:
        say(f"→ {path}")
