"""Compare the pictures of a GPU's decoders with PyAV's, on many codecs, containers and kinds of pictures.

    python bench/nvdec.py [--shape qwen3-vl-2b] [--out FILE.json]
    python bench/nvdec.py --stand-in --shape nano-qwen3 --only "h264 wide pixels.mp4" "hevc 10 bits.mp4"

Writes small videos, reads the same frames of each with both, and prints by how many grey levels they differ, by how
much the vectors of a model do (1 − cos), and which files the GPU left to PyAV. The model is nano-qwen3, or has random
weights of a shape. Beside it stands what one grey level in one value of one frame does to the vector, which is about
the rounding of the model's own format. With `--stand-in` FFmpeg plays the GPU, on a machine without one: its pictures
are the same before they are converted to RGB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from decode import moving_texture
from rich.console import Console
from rich.table import Table
from shapes import make_backbone

from allocembed import AllocEmbed
from allocembed.video import open_video
from allocembed.video.decoders.nvdec.gpu import Nvdec

GROUPS = {"g": "30", "bf": "3", "sc_threshold": "0"}
X265 = "log-level=none:keyint=30:min-keyint=30:open-gop="
VP9 = {"g": "30", "deadline": "realtime", "cpu-used": "8"}
FILES: dict[str, dict[str, Any]] = {
    "h264.mp4": {"options": GROUPS},
    "h264 open groups.mp4": {"options": {**GROUPS, "x264-params": "open-gop=1"}},
    "h264 one group.mp4": {"options": {**GROUPS, "g": "1000"}},
    "h264.mkv": {"options": GROUPS},
    "h264.ts": {"options": GROUPS},
    "h264.flv": {"options": GROUPS},
    "h264 uneven times.mp4": {"options": GROUPS, "uneven": True},
    "h264 258x194.mp4": {"options": GROUPS, "size": (258, 194)},
    "h264 1280x720.mp4": {"options": GROUPS, "size": (1280, 720)},
    "h264 turned.mp4": {"options": GROUPS, "turn": 90},
    "h264 wide pixels.mp4": {"options": GROUPS, "aspect": 1.5},
    "h264 bt709.mp4": {"options": GROUPS, "matrix": 1},
    "h264 full range.mp4": {"options": GROUPS, "pixels": "yuvj420p"},
    "h264 444.mp4": {"options": GROUPS, "pixels": "yuv444p"},
    "h264 10 bits.mp4": {"options": GROUPS, "pixels": "yuv420p10le"},
    "h264 interlaced.mp4": {"options": {**GROUPS, "x264-params": "interlaced=1"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "0"}},
    "hevc open groups.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "1"}},
    "hevc 10 bits.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "0"}, "pixels": "yuv420p10le"},
    "hevc 10 bits bt2020.mp4": {
        "codec": "libx265",
        "options": {"x265-params": X265 + "0:colormatrix=bt2020nc"},
        "pixels": "yuv420p10le",
        "matrix": 9,
    },
    "vp9.webm": {"codec": "libvpx-vp9", "options": VP9},
    "vp9 321x243.webm": {"codec": "libvpx-vp9", "options": VP9, "size": (321, 243)},
    "av1.mp4": {"codec": "libsvtav1", "options": {"g": "30", "preset": "12"}},
    "vp8.webm": {"codec": "libvpx", "options": VP9},
    "mpeg4.mp4": {"codec": "mpeg4", "options": {"g": "30", "bf": "2"}},
}


def write(
    path: Path,
    *,
    codec: str = "libx264",
    options: dict[str, str],
    pixels: str = "yuv420p",
    size: tuple[int, int] = (320, 240),
    turn: int = 0,
    aspect: float = 1.0,
    matrix: int | None = None,
    uneven: bool = False,
    frames: int = 120,
) -> None:
    """Encode a moving texture."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        context: Any = stream.codec_context
        context.time_base = Fraction(1, 75)
        if aspect != 1:
            context.sample_aspect_ratio = Fraction(aspect)
        if matrix is not None:
            context.colorspace = matrix
        if turn:
            stream.set_display_rotation(turn)
        for number, frame in enumerate(moving_texture(frames, *size, seed=3)):
            frame.pts, frame.time_base = number * 3 + (number % 3 if uneven else 0), Fraction(1, 75)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def compare(path: Path, gpu: Nvdec, embedder: AllocEmbed | None) -> dict[str, Any]:
    """Read a file with both."""
    declined, taken = dict(gpu.declined), {"PyAV": {}, "gpu": {}}
    result: dict[str, Any] = {"file": path.name}
    for seek in ("exact", "keyframe"):
        with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
            started = time.perf_counter()
            expected = plain.sample(12, seek)
            taken["PyAV"][seek] = time.perf_counter() - started
            started = time.perf_counter()
            found = fast.sample(12, seek).on_host()
            taken["gpu"][seek] = time.perf_counter() - started
        same = found.indices.tolist() == expected.indices.tolist()
        if same:
            difference = np.abs(found.frames.astype(int) - expected.frames)
            result[seek] = {"mean": float(difference.mean()), "largest": int(difference.max())}
            if embedder is not None:
                vectors = [embedder.encode_video(clip).vector.astype(float) for clip in (expected, found)]
                result[seek]["apart"] = float(1 - vectors[0] @ vectors[1])
                touched = expected.frames.copy()
                touched[0, 0, 0, 0] ^= 1
                other = embedder.encode_video(replace(expected, frames=touched)).vector.astype(float)
                result[seek]["one value"] = float(1 - vectors[0] @ other)
        else:
            result[seek] = {"other frames": found.indices.tolist(), "than": expected.indices.tolist()}
    reasons = [reason for reason, count in gpu.declined.items() if count > declined.get(reason, 0)]
    return result | {"by PyAV because": reasons[0] if reasons else "", "seconds": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", help="also compare vectors of a model of this shape, or of nano-qwen3")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="of a model of a shape")
    parser.add_argument("--only", nargs="+", choices=list(FILES), default=list(FILES), help="these files")
    parser.add_argument("--stand-in", action="store_true", help="FFmpeg plays the GPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    library = None
    if options.stand_in:
        from tests.nvdec import Library

        library = Library()
    gpu = Nvdec(torch.device("cpu" if library else "cuda:0"), shared=False, library=library)
    embedder = None
    if options.shape:
        device = "cpu" if library else "cuda"
        if options.shape == "nano-qwen3":
            embedder = AllocEmbed.from_pretrained(options.shape, "uniform", device=device)
        else:
            embedder = AllocEmbed(make_backbone(options.shape, device, getattr(torch, options.dtype)), "uniform")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            how, path = FILES[name], Path(folder) / name
            try:
                write(path, **how)
                results.append(compare(path, gpu, embedder))
            except Exception as error:
                results.append({"file": name, "failed": f"{type(error).__name__}: {error}"})
            print(results[-1], flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
    table = Table(title=str(gpu.tally()))
    for heading in (
        "file",
        "exact: mean, largest",
        "keyframe: mean, largest",
        "1 − cos",
        "by one value",
        "by PyAV because",
    ):
        table.add_column(heading)
    for one in results:
        cells = [_levels(one.get(seek, {})) for seek in ("exact", "keyframe")]
        gaps = [one.get("exact", {}).get(name) for name in ("apart", "one value")]
        cells += ["" if gap is None else f"{gap:.1e}" for gap in gaps]
        table.add_row(one["file"], *cells, one.get("by PyAV because", "failed"))
    Console(width=140).print(table)


def _levels(found: dict[str, Any]) -> str:
    return f"{found['mean']:.3f}, {found['largest']}" if "mean" in found else "other frames" if found else ""


if __name__ == "__main__":
    main()
