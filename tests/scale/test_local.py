"""Worker processes on this machine: they answer, raise, die and start again, and end with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from allocembed.errors import ConfigError, SearchError
from allocembed.scale.local import LocalProcesses, check_cards, environment_for, parse_devices
from allocembed.scale.pool import DIED, WorkerPool
from allocembed.search import VideoIndex
from tests.clips import picture, write_video
from tests.command import run


class Worker:
    """Doubles numbers. A 13 kills the process, a 7 raises, and starting with "unable" fails."""

    def __init__(self, how: str = "") -> None:
        if how == "unable":
            raise SearchError("there is no such index: make one")

    def ready(self) -> int:
        return os.getpid()

    def work(self, items, again=False):
        if 13 in items:
            os.kill(os.getpid(), signal.SIGKILL)
        if 7 in items:
            raise ValueError("seven")
        time.sleep(0.01 * len(items))  # so that the other process gets some, too
        return [(item, os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")) for item in items]


def pool(processes: LocalProcesses, *arguments: str) -> WorkerPool:
    cluster = SimpleNamespace(ray=processes, workers=len(processes.devices), resources=dict)
    return WorkerPool(cluster, Worker, *arguments)


@pytest.fixture
def two():
    processes = LocalProcesses(["cuda:0", "cuda:5"])
    yield processes
    processes.close()


def test_every_item_gets_one_result_from_one_of_the_processes(two):
    workers = pool(two)
    for slot in workers.slots:
        two.get(slot.actor.ready.remote())  # else one may do everything before the other has started
    done = list(workers.run(iter(range(20, 60)), lambda item, cause: (item, cause)))
    assert sorted(item for item, *_ in done) == list(range(20, 60))
    assert len({pid for _, pid, _ in done}) == 2 and os.getpid() not in {pid for _, pid, _ in done}
    assert {card for *_, card in done} == {"0", "5"}


def test_an_item_that_kills_its_process_is_given_up_alone(two):
    items = [1, 2, 13, 3, 4, 7, 5, 6]
    done = list(pool(two).run(iter(items), lambda item, cause: (item, cause)))
    assert sorted(item for item, *_ in done) == sorted(items)
    given_up = {item: cause for item, cause, *rest in done if not rest}
    assert given_up == {13: DIED.format(3), 7: "it cannot be read (ValueError: seven)"}


def test_a_process_that_cannot_start_ends_the_run_with_its_error(two):
    with pytest.raises(SearchError, match="there is no such index: make one"):
        list(pool(two, "unable").run(iter([1, 2]), lambda item, cause: item))


def test_processes_end_with_the_one_that_started_them():
    program = (
        "from allocembed.scale.local import LocalProcesses\n"
        "from tests.scale.test_local import Worker\n"
        "import time\n"
        "if __name__ == '__main__':\n"
        "    processes = LocalProcesses(['cpu'])\n"
        "    actor = processes.remote(Worker).options().remote()\n"
        "    print(processes.get(actor.ready.remote()), flush=True)\n"
        "    time.sleep(60)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the process is still there")


def test_calls_and_answers_larger_than_a_line_holds_do_not_block(two):
    actor = two.remote(Worker).options().remote()
    large = ["x" * 1_000_000]
    answers = [actor.work.remote(large) for _ in range(3)]
    assert [two.get(answer)[0][0] for answer in answers] == large * 3


def test_a_card_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ConfigError, match="there is no cuda:9 here"):
        check_cards(["cpu", "cuda:9"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=2"):
        environment_for("cuda:1")


def test_a_function_is_called_in_a_process_of_its_own(two):
    answer = two.remote(os.getpid).options().remote()
    assert two.get(answer) != os.getpid()


def test_devices_are_named():
    assert parse_devices("cuda:0, 1") == ["cuda:0", "cuda:1"]
    assert parse_devices("cpu,cpu") == ["cpu", "cpu"]
    for wrong in ("gpu", "cpu:1", "cuda:x", ""):
        with pytest.raises(ConfigError, match="unknown device"):
            parse_devices(wrong)


def test_a_card_is_counted_among_those_that_may_be_seen(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert environment_for("cuda:1") == {"CUDA_VISIBLE_DEVICES": "6"}


@pytest.mark.slow
def test_two_processes_index_a_folder_and_a_kill_loses_nothing(tmp_path, qwen3_folder):
    """Nothing twice, nothing lost, and the same vectors as from one process."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(9):
        write_video(videos / f"{number}.mp4", [picture(20 * number + index) for index in range(6)])
    (videos / "bad.mp4").write_bytes(b"nothing")
    common = ["-b", qwen3_folder, "--candidates", 4, "--budget", "2f", "--allocator", "uniform", "--segments", "off"]
    assert run("index", videos, "--to", tmp_path / "one", *common, "--device", "cpu").returncode == 1

    words = [str(word) for word in ("index", videos, "--to", tmp_path / "two", *common, "--devices", "cpu,cpu")]
    first = subprocess.Popen([sys.executable, "-m", "allocembed", *words, "--commit", "1"], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(children := workers_of(first.pid)) < 2 and time.monotonic() < until:  # one alone makes the index
        time.sleep(0.02)
    os.kill(children[-1], signal.SIGKILL)
    assert first.wait(timeout=120) == 1  # a file is bad
    assert run("index", videos, "--to", tmp_path / "two", *common, "--devices", "cpu,cpu").returncode == 1

    one, two = (vectors_in(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 9 and one == two

    (videos / "0.mp4").rename(videos / "renamed.mp4")
    assert run("index", videos, "--to", tmp_path / "two", *common, "--devices", "cpu,cpu").returncode == 1
    listed = run("index", "ls", tmp_path / "two").stdout
    assert "renamed.mp4" in listed and "0.mp4" not in listed


def workers_of(parent: int) -> list[int]:
    """Processes that it started to work, not those of Python itself."""
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)]  # without -ww, long lines are cut off
    found = subprocess.run(command, capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "spawn_main" in line]


def vectors_in(folder: Path) -> dict[str, bytes]:
    """The vector of each file, by name."""
    store = VideoIndex.open(folder, device="cpu").store
    names = {file.video: Path(file.path).name for file in store.files() if not file.error}
    held = store.segments(large=["vector"])
    assert all(len(segments) == 1 for segments in held.values())
    return {names[video]: segments[0].vector.tobytes() for video, segments in held.items()}


@pytest.mark.slow
def test_a_video_that_has_changed_has_one_row(tmp_path, qwen3_folder):
    from pyarrow import parquet

    videos, out = tmp_path / "videos", tmp_path / "v.parquet"
    videos.mkdir()
    for number in range(3):
        write_video(videos / f"{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    words = ("embed", videos, "--recursive", "-b", qwen3_folder, "--devices", "cpu", "-o", out)
    assert run(*words).returncode == 0
    before = dict(zip(*(parquet.read_table(out).to_pydict()[name] for name in ("source", "vector")), strict=True))
    changed = str(write_video(videos / "1.mp4", [picture(200 + frame) for frame in range(12)]))
    result = run(*words)
    assert result.returncode == 0 and "1 of 3 videos embedded, 2 were there" in result.stderr
    after = parquet.read_table(out).to_pydict()
    assert sorted(after["source"]) == sorted(before)
    same = {source: before[source] == vector for source, vector in zip(after["source"], after["vector"], strict=True)}
    assert [source for source, equal in same.items() if not equal] == [changed]
