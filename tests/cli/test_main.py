"""The command line as a whole: help, global options, outcomes and exit statuses; torch only when it is needed."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from allocembed.cli.main import COMMANDS
from tests.clips import write_video
from tests.command import run

IN_ONE_PROCESS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from allocembed.cli.main import main
answers = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["allocembed", *words]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as stop:
            answers.append([stop.code, said.getvalue()])
print(json.dumps([answers, [name for name in ("torch", "transformers") if name in sys.modules]]))
"""
ANSWERS = [
    (["--help"], 0, ""),
    (["index", "--help"], 0, ""),
    (["train", "--help"], 0, ""),
    (["eval", "mmeb-v2", "--help"], 0, ""),
    (["embed", "nope.mp4"], 1, "left out nope.mp4: no such file or folder"),
    (["allocate", "nope.mp4"], 1, "error: nope.mp4: no such file or folder"),
    (["embed", "nope.mp4", "-b", "nano-qwen33"], 1, "did you mean nano-qwen3?"),
    (["embed", "nope.mp4", "-a", "unifrom"], 1, "did you mean uniform?"),
    (["embed", "a.mp4", "--budgt", "8f"], 2, "did you mean --budget?"),
    (["embd"], 2, "unknown command 'embd' (did you mean embed?)"),
    (["index", "ls", "nowhere"], 1, "there is no index at nowhere"),
    (["search", "nowhere", "a dog"], 1, "there is no index at nowhere"),
    (["serve", "nowhere"], 1, "there is no index at nowhere"),
    (["index", "nowhere", "--to", "new"], 1, "nowhere: no such file or folder"),
    (["compare", "nowhere"], 1, "nowhere: no such file or folder"),
    (["train", "nowhere.toml"], 1, "cannot read nowhere.toml"),
    (["train", "--preset", "nano", "--data", "nowhere.jsonl"], 1, "cannot read nowhere.jsonl"),
    (["eval", "longret", "--data", "nowhere"], 1, "allocembed longret build"),
    (["eval", "nano", "--methods", "base,magic"], 1, "unknown allocator 'magic'"),
    (["longret", "build", "--lovr", "nowhere"], 1, "nowhere"),
    (["demo", "-b", "nano-qwen4"], 1, "did you mean nano-qwen"),
]


def test_help_and_mistakes_are_answered_without_torch_and_leave_nothing(tmp_path):
    command = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps([words for words, _, _ in ANSWERS])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    answers, imported = json.loads(result.stdout)
    for (words, code, said), answer in zip(ANSWERS, answers, strict=True):
        assert answer[0] == code and said in answer[1] and "Traceback" not in answer[1], (words, answer)
    assert not imported and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("words", [["--help"], ["embed", "nope.mp4"], ["embed", "a.mp4", "-b", "nano-qwen33"]])
def test_an_answer_costs_less_than_a_second_of_cpu(words):
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "allocembed", *words], capture_output=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_documented(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = run(*command.split(), "--help")
    assert result.returncode == 0 and result.stdout.startswith(f"usage: allocembed {command} ")
    lines = [line.strip("│ ") for line in result.stdout.splitlines()]
    options = [place for place, line in enumerate(lines) if re.match(r"--?\w", line)]
    assert options
    for place in options:
        same_line = re.search(r" {2,}\S", lines[place])
        assert same_line or re.match(r"\w", lines[place + 1]), f"no help for {lines[place]}"


def test_help_of_embed_names_short_forms_and_defaults(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = run("embed", "--help").stdout
    for option in ("-b STR, --backbone", "-a STR, --allocator", "-o PATH, --out", "--start", "--end", "--question"):
        assert option in shown
    assert "(default: qwen3-vl-embedding-2b)" in shown and "None" not in shown and "--config" not in shown


def test_without_words_the_help_is_printed():
    for words in ([], ["index"], ["eval"]):
        result = run(*words)
        assert result.returncode == 2 and "commands:" in result.stdout


def test_version_is_printed():
    from allocembed import __version__

    assert run("--version").stdout == f"allocembed {__version__}\n"


@pytest.mark.parametrize("words", [["demo"], ["train", "--preset", "nano"]])
def test_ctrl_c_is_one_word_and_the_usual_status(monkeypatch, words, tmp_path):
    monkeypatch.chdir(tmp_path)
    for place in ("allocembed_nano.demo.run_demo", "allocembed.rdpo.run.train"):
        monkeypatch.setattr(place, mock.Mock(side_effect=KeyboardInterrupt))
    result = run(*words)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "stopped\n")


def test_a_bug_is_one_line_with_a_file_to_attach_and_a_traceback_on_request(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("allocembed_nano.demo.run_demo", mock.Mock(side_effect=ZeroDivisionError("half\na message")))
    result = run("demo")
    assert result.returncode == 70 and result.stderr.count("\n") == 1
    said = re.fullmatch(r"bug: ZeroDivisionError: half a message; .* file (.*)\n", result.stderr)
    assert said
    report = Path(said[1]).read_text()
    assert "Traceback" in report and "command: demo" in report and "ZeroDivisionError" in report
    assert "Traceback" in run("demo", "--debug").stderr


def test_debug_shows_the_traceback_of_a_mistake_too():
    shown = run("--debug", "allocate", "nope.mp4")
    assert shown.returncode == 1 and "Traceback" in shown.stderr and "error: nope.mp4" in shown.stderr


def test_what_the_package_logs_is_shown_unless_quiet(monkeypatch, tmp_path):
    import logging

    monkeypatch.chdir(tmp_path)
    notice = mock.Mock(side_effect=lambda *a, **k: logging.getLogger("allocembed").warning("knows only [toys]"))
    monkeypatch.setattr("allocembed_nano.demo.run_demo", notice)
    assert run("demo").stderr == "knows only [toys]\n"
    assert run("demo", "--quiet").stderr == "" and run("demo").stderr == "knows only [toys]\n"


ALLOCEMBED = [sys.executable, "-m", "allocembed"]


def test_a_message_that_cannot_be_written_does_not_cost_the_result(tmp_path, qwen3_folder):
    video, out = write_video(tmp_path / "a.mp4"), tmp_path / "v.npz"
    words = ["embed", str(video), "-b", str(qwen3_folder), "--device", "cpu", "--out", str(out)]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([*ALLOCEMBED, *words], stderr=full).returncode == 0
    assert out.is_file()
    out.unlink()
    read, write = os.pipe()
    os.close(read)
    assert subprocess.run([*ALLOCEMBED, *words], stderr=write).returncode == 0
    os.close(write)
    assert out.is_file()


@pytest.mark.parametrize("words", ["--version", "--help", "allocate {video} -a uniform -b nano-qwen3"])
def test_an_output_that_is_full_is_no_bug(tmp_path, words):
    words = [word.format(video=write_video(tmp_path / "a.mp4")) for word in words.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*ALLOCEMBED, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "error: cannot write the output: No space left on device" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_keeps_what_is_finished_and_leaves_no_half_files(tmp_path, number, status):
    videos = [str(write_video(tmp_path / f"{name}.mp4", 60)) for name in range(60)]
    (tmp_path / "out").mkdir()
    words = ["embed", *videos, "-b", "nano-qwen3", "--device", "cpu", "--out", str(tmp_path / "out" / "v.jsonl")]
    # A shell's background job ignores Ctrl-C, and so would its children.
    run_with_signals = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    run_with_signals += "from allocembed.cli.main import main; sys.argv = ['allocembed', *sys.argv[1:]]; main()"
    process = subprocess.Popen([sys.executable, "-c", run_with_signals, *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(each.stat().st_size for each in (tmp_path / "out").iterdir()):
        time.sleep(0.05)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == status and "stopped" in said, said
    kept = tmp_path / "out" / "v.stopped.jsonl"
    assert list((tmp_path / "out").iterdir()) == [kept] and 0 < len(kept.read_text().splitlines()) < 60


def test_names_cannot_speak_to_the_terminal(tmp_path):
    shutil.copy(write_video(tmp_path / "a.mp4"), tmp_path / "esc\x1b[31m\nred.mp4")
    (tmp_path / "bad\x1b[31m\nleft out.mp4").touch()
    (tmp_path / "esc\x1b[31m\nred.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na red \x9b31mcar\n")
    shown = run("index", tmp_path, "--to", tmp_path / "index", "-b", "nano-qwen3")
    listed = run("index", "ls", tmp_path / "index")
    assert "esc\\x1b[31m\\nred.mp4" in listed.stdout and len(listed.stdout.splitlines()) == 2
    assert "bad\\x1b[31m\\nleft out.mp4" in shown.stderr and "\x1b[31m" not in listed.stdout + shown.stderr
    found = run("search", tmp_path / "index", "red car", "--said")
    assert "\\x9b31m" in found.stdout and "\x9b" not in found.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["allocate", "nope.mp4", "--png", "film.png"],
        ["compare", "nowhere", "--plot", "plot.png"],
        ["eval", "nano", "--sweep", "frames"],
    ],
)
def test_what_draws_without_the_extra_for_plots_says_so_before_any_work(words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.returncode == 1 and "pip install 'allocembed[plot]'" in result.stderr
    assert not list(tmp_path.iterdir())
