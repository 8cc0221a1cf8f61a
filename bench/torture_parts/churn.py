"""Random changes in a folder of videos, and what an index holds of it; see bench/watch.py."""

import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

Held = str | tuple[str, list[tuple[float, str]], np.ndarray]
"""Content, lines and vectors that an index holds of a file; or that it failed."""


class Churn:
    """Random changes in a folder."""

    def __init__(self, folder: Path, pool: list[Path], most: int, source: random.Random) -> None:
        self.folder, self.pool, self.most, self.source = folder, pool, most, source
        self.done = Counter[str]()
        self.names = 0
        self.slow: list[threading.Thread] = []

    def step(self) -> None:
        """One change."""
        kinds = {
            self.add: 5,
            self.add_slowly: 1,
            self.change: 4,
            self.rename: 4,
            self.copy: 1,
            self.remove: 4,
            self.rename_folder: 1,
            self.remove_folder: 0.3,
            self.subtitle: 2,
            self.junk: 1,
        }
        kind = self.source.choices(list(kinds), list(kinds.values()))[0]
        if len(self.files()) >= self.most and kind in (self.add, self.add_slowly, self.copy, self.junk):
            kind = self.remove
        kind()
        self.done[kind.__name__.replace("_", " ")] += 1

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*.mp4") if path.is_file())

    def target(self) -> Path:
        """A new name, sometimes in a folder that does not exist yet."""
        self.names += 1
        folder = self.folder / self.source.choice(("", "a", "b", "a/c", f"d{self.source.randrange(4)}"))
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"f{self.names:04}.mp4"

    def add(self) -> None:
        shutil.copyfile(self.source.choice(self.pool), self.target())

    def add_slowly(self) -> None:
        """In pieces over three seconds, as a copy over the network."""
        content, target, pause = (
            self.source.choice(self.pool).read_bytes(),
            self.target(),
            self.source.uniform(0.1, 0.6),
        )

        def write() -> None:
            try:
                with target.open("wb") as file:
                    for part in range(5):
                        file.write(content[part * len(content) // 5 : (part + 1) * len(content) // 5])
                        file.flush()
                        time.sleep(pause)
            except OSError:
                pass  # its folder was removed

        self.slow.append(threading.Thread(target=write))
        self.slow[-1].start()

    def change(self) -> None:
        if files := self.files():
            shutil.copyfile(self.source.choice(self.pool), self.source.choice(files))

    def rename(self) -> None:
        if files := self.files():
            self.source.choice(files).rename(self.target())

    def copy(self) -> None:
        if files := self.files():
            shutil.copyfile(self.source.choice(files), self.target())

    def remove(self) -> None:
        if files := self.files():
            self.source.choice(files).unlink()

    def folders(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_dir())

    def rename_folder(self) -> None:
        if folders := self.folders():
            self.names += 1
            self.source.choice(folders).rename(self.folder / f"e{self.names}")

    def remove_folder(self) -> None:
        if folders := self.folders():
            shutil.rmtree(self.source.choice(folders), ignore_errors=True)

    def subtitle(self) -> None:
        """Write, change or remove the subtitles of a file."""
        if files := self.files():
            path = self.source.choice(files).with_suffix(".srt")
            if path.exists() and self.source.random() < 0.5:
                path.unlink()
            else:
                word = f"word{self.source.randrange(1000)}"
                path.write_text(f"1\n00:00:00,100 --> 00:00:00,300\n{word} is said\n")

    def junk(self) -> None:
        self.target().write_bytes(self.source.randbytes(2000))

    def wait(self) -> None:
        for thread in self.slow:
            thread.join()


def contents(place: Path) -> dict[str, Held]:
    """Content, lines and vectors that an index holds for each path; or that it failed."""
    from allocembed.search import VideoIndex
    from allocembed.search.store import exists

    if not exists(str(place)):
        return {}
    index = VideoIndex.open(place)
    held: dict[str, Held] = {}
    for file in index.files():
        if file.error:
            held[file.path] = "failed"
            continue
        segments = index.segments(file.video, "vector")
        vectors = np.concatenate([each.vector for each in segments])
        lines = [(line.start, line.text) for line in index.lines.lines_of(file.video)]
        held[file.path] = (file.video, lines, vectors)
    return held


def differences(found: dict[str, Held], wanted: dict[str, Held], surplus: bool = True) -> list[str]:
    """How two indexes differ; without `surplus`, only in what is missing or other."""
    lines = [f"absent: {path}" for path in sorted(wanted.keys() - found.keys())]
    lines += [f"surplus: {path}" for path in sorted(found.keys() - wanted.keys()) if surplus]
    both = sorted(found.keys() & wanted.keys())
    return lines + [f"other: {path}" for path in both if not same(found[path], wanted[path])]


def same(one: Held, other: Held) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    # Sums depend on what shares a batch, in the last bits.
    alike = one[2].shape == other[2].shape and np.allclose(one[2], other[2], atol=1e-4)
    return one[:2] == other[:2] and alike
