"""kill -9 at random moments of indexing: the next run resumes, and every file is indexed exactly once."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from allocembed.search import VideoIndex
from allocembed.search.verify import verify
from tests.clips import picture, write_video
from tests.search.said.test_reading import write_lines

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")

pytestmark = pytest.mark.slow
KILLS = 10
BATCH = 5
# Starting Python and torch takes longer than the work, so one process does that and forks for every run. LanceDB is
# imported in the children only: its threads would not survive the fork.
NURSERY = """
import os, sys, torch, transformers
torch.set_num_threads(1)
import allocembed.embedder, allocembed.execution.stream
from transformers import AutoModel, AutoTokenizer, Qwen3VLModel
from allocembed.cli import main as cli
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        sys.argv = ["allocembed", *line.split()]
        sys.stdin.close()
        code = 1
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """Runs `allocembed` commands in processes that can be killed."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", NURSERY], **pipes)
        assert self.process.stdout.readline() == "ready\n"

    def start(self, *words: object) -> int:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> int:
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.process.stdin.close()
    made.process.wait()


def test_ten_kills_lose_nothing_and_repeat_nothing(nursery, tmp_path, qwen3_folder):
    source = random.Random(6)
    reserve, folder, place = tmp_path / "reserve", tmp_path / "videos", tmp_path / "index"
    reserve.mkdir()
    folder.mkdir()
    for number in range(BATCH * (KILLS + 1)):
        frames = 150 if number % 5 == 0 else 10  # every fifth is long enough for windows
        write_video(reserve / f"v{number:02}.mp4", [picture(number * 37 + frame) for frame in range(frames)])
    waiting = sorted(reserve.iterdir())
    command = ("index", folder, "--backbone", qwen3_folder, "--segments", "3", "--budget", "64", "--candidates", "4")
    command += ("--commit", "2")

    def add_some() -> None:
        for path in waiting[:BATCH]:
            write_lines(folder / f"{path.stem}.srt", f"this is {path.stem}", "and more")
            path.rename(folder / path.name)
        del waiting[:BATCH]

    add_some()
    started = time.monotonic()
    nursery.start(*command, "--to", place)
    assert nursery.end() == 0
    usual = time.monotonic() - started
    killed = 0
    while waiting:
        add_some()
        run = nursery.start(*command, "--to", place)
        time.sleep(source.uniform(0.15, 0.85) * usual)  # the first run, which makes the index, is slower
        with suppress(ProcessLookupError):  # it may just have ended
            os.kill(run, signal.SIGKILL)
        killed += nursery.end() == -signal.SIGKILL
    nursery.start(*command, "--to", place)
    assert nursery.end() == 0
    assert killed >= KILLS // 2, "most of the kills must hit a run that is still working"
    index = VideoIndex.open(place)
    assert not verify(index), "no vector twice, none missing"
    assert {Path(file.path).name for file in index.files()} == {path.name for path in folder.glob("*.mp4")}
    assert all(len(index.segments(file.video)) == (3 if file.duration > 3 else 1) for file in index.files())
    info = index.info()
    assert info["lines"] == 2 * BATCH * (KILLS + 1), "no line twice, none missing"
    assert [Path(hit.path).stem for hit in index.search("v07", said=True)] == ["v07"]
    assert (info["videos"], info["files"], info["failed"]) == (BATCH * (KILLS + 1), BATCH * (KILLS + 1), 0)


def test_a_kill_while_the_index_is_made_leaves_none_or_a_whole_one(nursery, tmp_path, qwen3_folder):
    source = random.Random(7)
    write_video(tmp_path / "one.mp4", 10)
    place = tmp_path / "index"
    for _ in range(3):
        run = nursery.start("index", tmp_path / "one.mp4", "--to", place, "--backbone", qwen3_folder)
        time.sleep(source.uniform(0.05, 0.6))
        with suppress(ProcessLookupError):
            os.kill(run, signal.SIGKILL)
        nursery.end()
    nursery.start("index", tmp_path / "one.mp4", "--to", place, "--backbone", qwen3_folder)
    assert nursery.end() == 0
    assert VideoIndex.open(place).info()["videos"] == 1
