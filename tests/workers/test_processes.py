"""Worker processes on this machine: they answer, raise, die and start again, and end with their parent."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from allocembed.errors import ConfigError
from allocembed.workers import WorkerOptions, find_workers
from allocembed.workers.processes import check_devices, environment_for, parse_devices


@dataclass(frozen=True)
class AboutProcess:
    """A task that tells its process and the GPUs that it sees."""

    def __call__(self, share):
        return self

    def work(self, items, again):
        time.sleep(0.02)  # so that the other process gets some, too
        return [(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]) for _ in items]


def test_each_process_sees_its_own_device(monkeypatch):
    monkeypatch.setattr("allocembed.workers.processes.check_devices", lambda devices: None)
    with find_workers("processes", WorkerOptions(devices="cuda:0,cuda:5")) as workers:
        reported, deadline = set(), time.monotonic() + 60
        for about in workers.run(AboutProcess(), iter(range(10**6)), lambda item, cause: cause):
            reported.add(about)
            if len(reported) == 2 or time.monotonic() > deadline:  # one may have started long before the other
                break
    assert len(reported) == 2 and {device for _, device in reported} == {"0", "5"}


def test_processes_end_with_the_one_that_started_them():
    program = (
        "from allocembed.workers import WorkerOptions, find_workers\n"
        "from tests.workers.test_processes import AboutProcess\n"
        "import time\n"
        "if __name__ == '__main__':\n"
        "    workers = find_workers('processes', WorkerOptions(devices='cpu'))\n"
        "    [(process, _)] = workers.run(AboutProcess(), iter([1]), None)\n"
        "    print(process, flush=True)\n"
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


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ConfigError, match="there is no cuda:9 here"):
        check_devices(["cpu", "cuda:9"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=2"):
        environment_for("cuda:1")


def test_devices_are_named():
    assert parse_devices("cuda:0, 1") == ["cuda:0", "cuda:1"]
    assert parse_devices("cpu,cpu") == ["cpu", "cpu"]
    for wrong in ("gpu", "cpu:1", "cuda:x", ""):
        with pytest.raises(ConfigError, match="unknown device"):
            parse_devices(wrong)


def test_a_gpu_is_counted_among_those_that_may_be_seen(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert environment_for("cuda:1") == {"CUDA_VISIBLE_DEVICES": "6"}
