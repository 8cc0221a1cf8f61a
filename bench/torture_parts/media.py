"""Damaged videos through `sample`, `windows` and `index`: each is read, or refused with a VideoError.

In the index, each video has subtitles beside it, damaged ones where the video is damaged. What is said in the healthy
ones must be found.
"""

import json
import random
import select
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torture_parts.common import (
    INDEX_OPTIONS,
    Nursery,
    Outcome,
    Settings,
    check_index,
    environment,
    judge,
    save_model,
    vectors,
)
from torture_parts.media_worker import damage

FULL = 5_000
BATCH = 250  # files of one index
WORKERS = 2
TIMEOUT = 30.0  # seconds per file
FORMS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("libx264", "mp4", {"g": "10", "bf": "2"}),
    ("libx264", "mkv", {"g": "60", "bf": "3"}),
    ("libx264", "avi", {"g": "12", "bf": "0"}),
    ("libx264", "ts", {"g": "12"}),
    ("mpeg4", "mp4", {"g": "8"}),
    ("mpeg4", "avi", {"g": "12", "bf": "2"}),
    ("mpeg4", "mkv", {"g": "50"}),
    ("libvpx-vp9", "webm", {"g": "20", "deadline": "realtime", "cpu-used": "8"}),
    ("libvpx-vp9", "mp4", {"g": "20", "deadline": "realtime", "cpu-used": "8"}),
    ("mjpeg", "avi", {}),
    ("mjpeg", "mkv", {}),
    ("mjpeg", "mp4", {}),
)
WORDS = ("ant", "bear", "cat", "deer", "eagle", "fox", "goat", "horse", "ibex", "jackal", "koala", "lion")
"""Said in the healthy videos, one each."""


def run(settings: Settings) -> Outcome:
    outcome, total = Outcome("media"), settings.count(FULL)
    originals, damaged = settings.folder / "originals", settings.folder / "damaged"
    for folder in (originals, damaged):
        folder.mkdir()
    write_originals(originals)
    model = save_model(settings.folder / "model")
    with Nursery(settings.folder / "logs") as nursery:
        command = ("index", originals, "--to", settings.folder / "whole", "--backbone", model, *INDEX_OPTIONS)
        judge(outcome, *nursery.run(*command), "index of the originals")
        healthy = vectors(settings.folder / "whole")
        for first in range(0, total, BATCH):
            numbers = range(first, min(first + BATCH, total))
            with ThreadPoolExecutor(WORKERS) as pool:
                jobs = [numbers[worker::WORKERS] for worker in range(WORKERS)]
                list(pool.map(lambda job: read_all(outcome, job, originals, settings.seed, damaged), jobs))
            for original in originals.iterdir():
                shutil.copy2(original, damaged / original.name)
            write_subtitles(damaged, random.Random(f"{settings.seed} {first}"))
            index(outcome, nursery, damaged, model, healthy, f"files {numbers[0]} to {numbers[-1]}")
            for path in damaged.iterdir():
                path.unlink()
    return outcome


def write_originals(folder: Path) -> None:
    from tests.clips import picture, write_video

    for number, (codec, suffix, options) in enumerate(FORMS):
        pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        pictures = [picture(number * 53 + frame) for frame in range(50)]
        write_video(folder / f"{number:02}-{codec}.{suffix}", pictures, codec=codec, options=options, pixels=pixels)


def write_subtitles(folder: Path, source: random.Random) -> None:
    """Subtitles beside all videos; those beside damaged ones are damaged too."""
    for path in sorted(folder.iterdir()):
        healthy = "-" in path.stem
        word = WORDS[int(path.stem[:2])] if healthy else "nothing"
        times = ("00:00:00,200 --> 00:00:00,900", "00:00:01,000 --> 00:00:01,500")
        text = "".join(f"{number}\n{time}\nhere is the {word}\n\n" for number, time in enumerate(times * 20, 1))
        if source.random() < 0.5:
            text = "WEBVTT\n\n" + text.replace(",", ".")
        suffix = ".vtt" if text.startswith("WEBVTT") else ".srt"
        content = text.encode() if healthy else damage(text.encode(), source)
        path.with_suffix(suffix).write_bytes(content)


def read_all(outcome: Outcome, numbers: range, originals: Path, seed: int, damaged: Path) -> None:
    """Read damaged files in a process of their own, which is replaced when it dies or hangs."""
    with tempfile.TemporaryFile("w+") as errors:
        script = str(Path(__file__).with_name("media_worker.py"))
        words = [sys.executable, script, str(originals), str(seed), str(damaged), "keep"]

        def start() -> subprocess.Popen[str]:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process: subprocess.Popen[str] = subprocess.Popen(words, stderr=errors, env=environment(), **pipes)
            _answer(process)
            return process

        process = start()
        for number in numbers:
            assert process.stdin
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            answer = _answer(process)
            outcome.runs += 1
            if answer is None or not answer:
                hung = answer is None
                process.kill()
                status = process.wait()
                outcome.fault("hangs" if hung else "crashes", f"file {number} of seed {seed}: status {status}")
                process = start()
                continue
            for way, result in zip(("sample", "windows", "windows --seek keyframe"), json.loads(answer), strict=True):
                if result in ("read", "VideoError"):
                    outcome.notes[f"{way}: {result}"] += 1
                else:
                    outcome.fault("crashes", f"file {number} of seed {seed}: {way}: {result}")
        if process.stdin:
            process.stdin.close()
        process.wait(30)


def _answer(process: subprocess.Popen[str]) -> str | None:
    """The next line; empty if the process has ended, None after the timeout."""
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], TIMEOUT * 3)
    return process.stdout.readline() if ready else None


def index(outcome: Outcome, nursery: Nursery, folder: Path, model: Path, healthy: dict, what: str) -> None:
    """Index a folder with healthy files among damaged ones, and check the vectors of the healthy ones."""
    place = folder.parent / "index"
    command = ("index", folder, "--to", place, "--backbone", model, *INDEX_OPTIONS)
    status, text = nursery.run(*command, timeout=TIMEOUT * 10)
    if judge(outcome, status, text, f"index of {what}"):
        names = {path.name for path in folder.iterdir() if path.suffix not in (".srt", ".vtt")}
        listed = _files(place)
        outcome.notes["index: embedded"] += sum(not error for error in listed.values())
        outcome.notes["index: left out"] += sum(bool(error) for error in listed.values())
        for name in names ^ listed.keys():
            outcome.fault("lost", f"index of {what}: {name} is not listed")
        found = vectors(place)
        sound = {key: found[key] for key in found.keys() - healthy.keys()} | healthy
        check_index(outcome, place, sound, f"index of {what}")
        check_said(outcome, nursery, place, random.Random(what), what)
    shutil.rmtree(place, ignore_errors=True)


def check_said(outcome: Outcome, nursery: Nursery, place: Path, source: random.Random, what: str) -> None:
    """Find the lines of each healthy video, and one of them with `search --said`, without a model."""
    from allocembed.search import VideoIndex

    index = VideoIndex.open(str(place))
    names = {
        int(Path(file.path).stem[:2]): Path(file.path).name for file in index.files() if "-" in Path(file.path).stem
    }
    for number, name in names.items():
        found = [Path(hit.path).name for hit in index.search(WORDS[number], said=True, top=1)]
        if found != [name]:
            outcome.fault("lost", f"what is said in {name} of {what} is not found, but {found}")
        outcome.notes["said: found"] += found == [name]
    number = source.choice(sorted(names))
    status, text = nursery.run("search", place, WORDS[number], "--said")
    if judge(outcome, status, text, f"search --said in {what}") and names[number] not in text:
        outcome.fault("lost", f"search --said in {what} does not list {names[number]}: {text[-300:]}")


def _files(place: Path) -> dict[str, str]:
    from allocembed.search import VideoIndex

    return {Path(file.path).name: file.error for file in VideoIndex.open(str(place)).files()}
