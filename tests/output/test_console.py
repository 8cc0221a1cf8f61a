"""Messages and progress on stderr."""

import re
import time

import pytest
from rich.console import Console

from allocembed.output import console


@pytest.fixture
def shown(capsys):
    """Text printed on stderr since the last call."""
    yield lambda: capsys.readouterr().err
    console.set_quiet(False)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_notes_are_printed_as_they_are(shown):
    console.say("[bold]v.npz " + "x" * 200)
    assert shown() == "[bold]v.npz " + "x" * 200 + "\n"


def test_quiet_silences_notes_and_progress_but_not_complaints(shown, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 0.01)
    console.set_quiet(True)
    console.say("a note")
    with console.progress("working", 3) as line:
        line.advance()
        time.sleep(0.1)
    console.complain("error:", "cannot [do] this")
    assert shown() == "error: cannot [do] this\n"


def test_without_a_terminal_progress_is_a_line_now_and_then(shown, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 0.02)
    with console.progress("embedding", 4) as line:
        line.update(1, note="12 tokens")
        time.sleep(0.2)
    lines = shown().splitlines()
    assert lines and re.fullmatch(r"embedding: 1/4, [\d.]+/\w+, [\d:]+ left, 12 tokens", lines[0]), lines
    time.sleep(0.05)
    assert shown() == "", "nothing is printed after the block"


def test_in_a_terminal_progress_is_a_bar_that_disappears(shown, monkeypatch):
    terminal = Console(stderr=True, force_terminal=True, _environ={"TERM": "xterm", "COLUMNS": "100"})
    monkeypatch.setattr(console, "stderr", terminal)
    with console.progress("embedding", 2) as line:
        line.update(1)
        line.advance("note")
    assert re.search(r"embedding.*2/2", shown(), re.DOTALL) and line.done == 2


@pytest.mark.parametrize(("every", "unit", "seconds"), [(0.4, "s", 1), (7.0, "min", 60), (1000.0, "h", 3600)])
def test_the_time_left_agrees_with_the_shown_rate(clock, every, unit, seconds):
    line = console.ProgressLine("embedding", 1000)
    for done in range(1, 101):
        clock[0] += every
        line.update(done)
    count, rate, left = re.fullmatch(r"(\S+), ([\d.]+)/\w+, ([\d:]+) left", line.pace()).groups()
    hours, minutes, rest = (["0", "0", *left.split(":")])[-3:]
    assert count == "100/1,000" and f"/{unit}" in line.pace()
    assert int(hours) * 3600 + int(minutes) * 60 + int(rest) == round(900 * seconds / float(rate))


def test_the_rate_is_that_of_the_last_minute(clock):
    line = console.ProgressLine("indexing", None)
    line.update(100_000)  # known files, counted at once
    for _ in range(200):
        clock[0] += 1
        line.advance()
    assert line.pace() == "100,200, 1.0/s"
