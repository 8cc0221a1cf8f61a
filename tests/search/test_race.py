"""Two `index` runs on a new index, started at the same moment: nothing is lost, and settings are never mixed."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allocembed.search import VideoIndex
from allocembed.search.verify import verify
from tests.clips import picture, write_video

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")

pytestmark = pytest.mark.slow
# Both runs have seen that there is no index before either continues. Importing torch takes longer than the runs, so one
# process does that and forks for each race. LanceDB is imported in the children only: its threads would not survive the
# fork.
TWO_RUNS = """
import json, multiprocessing, os, signal, sys, time, torch, transformers
torch.set_num_threads(1)
import allocembed.embedder, allocembed.execution.stream
from transformers import AutoModel, AutoTokenizer, Qwen3VLModel
from allocembed.cli import main as cli, search

def run(barrier, place, backbone, delay, number, folder, budget):
    real = search.exists
    def exists(uri):
        seen = real(uri)
        barrier.wait(60)
        time.sleep(number * delay)
        return seen
    search.exists = exists
    signal.alarm(120)
    sys.stdin.close()
    log = os.open(f"{place}.{number}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    os.dup2(log, 1)
    sys.argv = ["allocembed", "index", folder, "--to", place, "--backbone", backbone, "--budget", budget]
    sys.argv += ["--candidates", "4"]
    code = 70
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    place, backbone, delay, runs = json.loads(line)
    barrier, children = multiprocessing.get_context("fork").Barrier(2), []
    for number, given in enumerate(runs):
        pid = os.fork()
        if pid == 0:
            run(barrier, place, backbone, delay, number, *given)
        children.append(pid)
    print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children), flush=True)
"""
REFUSED = r"error: (another run is indexing into|there is already an index at|the index was made with --budget)"


@pytest.fixture(scope="module")
def races() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", TWO_RUNS], **pipes) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("budgets", [("64", "32"), ("64", "64")])
@pytest.mark.parametrize("delay", [0, 0.15, 0.6])
def test_of_two_runs_on_a_new_index_one_wins_whole_and_the_other_is_told(races, tmp_path, qwen3_folder, budgets, delay):
    place, folders = tmp_path / "index", [tmp_path / "one", tmp_path / "two"]
    for first, folder in enumerate(folders):
        folder.mkdir()
        for number in range(4):
            write_video(folder / f"{number}.mp4", [picture(first * 500 + number * 37 + frame) for frame in range(6)])
    given = [(str(folder), budget) for folder, budget in zip(folders, budgets, strict=True)]
    races.stdin.write(json.dumps([str(place), str(qwen3_folder), delay, given]) + "\n")
    races.stdin.flush()
    statuses = [int(status) for status in races.stdout.readline().split()]
    logs = [Path(f"{place}.{number}.log").read_text() for number in (0, 1)]
    assert sorted(statuses) == [0, 1], logs
    winner = statuses.index(0)
    assert re.search(REFUSED, logs[1 - winner]) and "4 embedded" in logs[winner], logs
    index = VideoIndex.open(place)
    assert index.settings.config.budget == budgets[winner]
    assert {file.path for file in index.files()} == {str(path) for path in folders[winner].iterdir()}
    assert {index.segments(file.video)[0].budget for file in index.files()} == {int(budgets[winner])}
    assert not verify(index)
