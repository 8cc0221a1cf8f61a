"""Follow `allocembed embed` of one file: which modules run, how deep the calls go, where the file is opened.

    python bench/walk.py [VIDEO] [--backbone nano-qwen3] [--allocator uniform]

Modules are those of allocembed in which a function ran; importing them does not count. Depth counts the frames of
allocembed on the stack of one thread.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import av

import allocembed
from allocembed.cli.main import main as run_command

PACKAGE = str(Path(allocembed.__file__).parent)
START = "open_video"


@dataclass
class Walk:
    """Modules and stacks seen in one run."""

    modules: Counter[str] = field(default_factory=Counter)
    deepest: list[str] = field(default_factory=list)
    opening: list[str] = field(default_factory=list)
    """The frames of allocembed on the stack when FFmpeg opens the file."""

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function: look at each call in the package, and at the call that opens the file."""
        runs = event == "call" and frame.f_code.co_flags & CO_OPTIMIZED  # not the body of a module or class
        if runs and (module := module_of(frame)):
            self.modules[module] += 1
            stack = frames_of(frame)
            if len(stack) > len(self.deepest) and not any(each.endswith(":<module>") for each in stack):
                self.deepest = stack

    def open(self, *arguments: Any, **options: Any) -> Any:
        """`av.open`, noted. It is compiled, so a profile function does not see it."""
        self.opening = self.opening or frames_of(sys._getframe(1))
        return OPEN(*arguments, **options)


OPEN = av.open


def module_of(frame: FrameType) -> str:
    """The module of allocembed that a frame belongs to, or nothing."""
    name = frame.f_code.co_filename
    return name.removeprefix(PACKAGE).strip("/").removesuffix(".py") if name.startswith(PACKAGE) else ""


def frames_of(frame: FrameType | None) -> list[str]:
    """The frames of allocembed on a stack, outermost first."""
    found = []
    while frame is not None:
        if module := module_of(frame):
            found.append(f"{module}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def write_video(path: Path) -> Path:
    """Two seconds of grey."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 192, 144, "yuv420p"
        for _ in range(50):
            container.mux(stream.encode(av.VideoFrame(192, 144, "yuv420p")))
        container.mux(stream.encode(None))
    return path


def follow(video: Path, backbone: str, allocator: str) -> Walk:
    """Run the command, watched."""
    walk, out = Walk(), video.with_suffix(".npz")
    sys.argv = ["allocembed", "embed", str(video), "--device=cpu", f"--out={out}", "--quiet"]
    sys.argv += [f"--backbone={backbone}", f"--allocator={allocator}"]
    av.open = walk.open
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        with suppress(SystemExit):
            run_command()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        av.open = OPEN
    return walk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path, nargs="?", help="default: two seconds of grey")
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--allocator", default="uniform")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder, given.video.name if given.video else "grey.mp4")
        if given.video:
            shutil.copy(given.video, video)
        else:
            write_video(video)
        walk = follow(video, given.backbone, given.allocator)
    names = [frame.partition(":")[2].rpartition(".")[2] for frame in walk.opening]
    since = len(names) - names.index(START) if START in names else 0
    print(f"modules        {len(walk.modules)}")
    for module, calls in sorted(walk.modules.items()):
        print(f"  {module:40} {calls:6} calls")
    print(f"greatest depth {len(walk.deepest)}\n  " + "\n  ".join(walk.deepest))
    print(f"opened at      {len(walk.opening)}, {since} from {START}\n  " + "\n  ".join(walk.opening))


if __name__ == "__main__":
    main()
