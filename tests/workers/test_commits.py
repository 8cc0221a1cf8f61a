"""Finished results are committed: by number, by the clock, and whatever ends the work."""

import threading
import time

import pytest

from allocembed.workers.commits import Commits


def test_portions_are_committed_when_they_are_full_and_the_rest_at_the_end():
    committed: list[list[int]] = []
    with Commits(committed.append, most=2, seconds=60) as commits:
        for number in range(5):
            commits.add(number)
            assert sum(map(len, committed)) >= number + 1 - 1, "never more than two are finished and not committed"
    assert committed == [[0, 1], [2, 3], [4]]


def test_the_clock_commits_while_nothing_else_is_finished():
    committed, happened = [], threading.Event()
    with Commits(lambda portion: (committed.extend(portion), happened.set()), most=100, seconds=0.1) as commits:
        for _ in range(2):
            commits.add("finished")
            assert happened.wait(30), "the next one may take hours"
            happened.clear()
        assert committed == ["finished", "finished"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_ends_the_work_what_is_finished_is_committed(error):
    committed: list[list[int]] = []
    with pytest.raises(error), Commits(committed.append, most=100, seconds=60) as commits:
        commits.add(1)
        raise error
    assert committed == [[1]]


@pytest.mark.parametrize("seconds", [0.05, 60])
def test_a_commit_that_fails_ends_the_work_with_its_error(seconds):
    def fail(portion: list[int]) -> None:
        raise OSError("the disk is full")

    deadline = time.monotonic() + 30
    with pytest.raises(OSError, match="the disk is full"), Commits(fail, most=100, seconds=seconds) as commits:
        commits.add(1)
        while seconds < 1 and time.monotonic() < deadline:
            time.sleep(0.02)
            commits.add(2)
