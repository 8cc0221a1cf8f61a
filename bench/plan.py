"""A plan on paper: hours, storage, index build and search for many videos on many GPUs.

    python bench/plan.py                       # ten million videos on 64 GPUs
    python bench/plan.py --measure 100000      # build an index of 100,000 synthetic vectors, and print time and size

The rates are those of one H200 with 16 cores, for files of one minute (docs/internals/performance.md, "Decoders of the
GPU").
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from allocembed.benchmarks.report import markdown_table

KEYFRAME, EXACT = 8.94, 8.22  # videos a second, whole videos only, on one GPU that also decodes
GPU = KEYFRAME  # videos a second that the GPU can embed: it is 93 % busy then
SHARE = 4  # tokens of a video with segments, relative to the whole video
SEGMENTS = 12
PARTITION, PROBES = 4096, 20


def plan(videos: int, gpus: int, dim: int, picture: int) -> list[tuple[str, str]]:
    vectors = videos * (1 + SEGMENTS)
    partitions = vectors // PARTITION
    rows = [("videos, GPUs, vectors", f"{videos:,}, {gpus}, {vectors:,} ({1 + SEGMENTS} a video)")]
    for what, rate in (
        ("whole videos, --seek keyframe", KEYFRAME),
        ("whole videos, --seek exact", EXACT),
        ("with segments, bound by the model", GPU / SHARE),
    ):
        rows.append((what, f"{rate:.2f} videos/s a GPU: {videos / rate / gpus / 3600:.1f} hours"))
    rows += [
        ("vectors, float32", f"{dim * 4:,} bytes each: {vectors * dim * 4 / 1e12:.2f} TB"),
        ("pictures", f"{picture:,} bytes each: {vectors * picture / 1e12:.2f} TB"),
        ("approximate index, one byte a dimension", f"{vectors * dim / 1e12:.2f} TB in {partitions:,} partitions"),
        ("to assign vectors to partitions", f"{2 * vectors * partitions * dim:.1e} multiplications and additions"),
        ("memory to train it, 256 vectors a partition", f"{256 * partitions * dim * 4 / 1e9:.0f} GB"),
        ("read by a search", f"{PROBES} partitions: {PROBES * PARTITION * dim / 1e6:.0f} MB"),
    ]
    for commit in (16, 256):
        seconds = commit / (KEYFRAME * gpus)
        rows.append((f"commits of vectors, --commit {commit}", f"{videos / commit:,.0f}, one in {seconds:.2f} s"))
    return rows


def measure(count: int, dim: int) -> None:
    from allocembed.config import EmbedConfig
    from allocembed.search.settings import IndexSettings
    from allocembed.search.store import EmbeddedSegment
    from allocembed.search.store.lance import LanceStore

    source = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        settings = IndexSettings(EmbedConfig(backbone="nano-qwen3"), probe=(0.0,) * dim)
        store = LanceStore.create(f"{folder}/x.index", settings)
        for first in range(0, count, 10_000):
            made = source.standard_normal((10_000, dim)).astype(np.float32)
            made /= np.linalg.norm(made, axis=1, keepdims=True)
            segments = [EmbeddedSegment(0, 0.0, 1.0, 1, 1, 1, vector=vector) for vector in made]
            store.add_videos((f"{first + number:032x}", [each]) for number, each in enumerate(segments))
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        begun, cpu = time.monotonic(), time.process_time()
        store.tidy()
        took, cpu = time.monotonic() - begun, time.process_time() - cpu
        index = sum(path.stat().st_size for path in Path(folder).rglob("_indices/**/*") if path.is_file())
    print(
        f"{count:,} vectors of {dim} dimensions: {written / count:,.0f} bytes each; merged and indexed in {took:.1f} s "
        f"({cpu / count * 1e6:,.0f} CPU seconds a million); the index takes {index / count:,.0f} bytes a vector"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=10_000_000)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--dim", type=int, default=2048, help="of Qwen3-VL-Embedding-2B")
    parser.add_argument("--picture", type=int, default=10_000, help="bytes of a picture; index info of your own tells")
    parser.add_argument("--measure", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen.measure, chosen.dim)
        return
    rows = plan(chosen.videos, chosen.gpus, chosen.dim, chosen.picture)
    print(markdown_table("", [["what", "how much"], *([*row] for row in rows)]))


if __name__ == "__main__":
    main()
