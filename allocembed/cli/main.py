"""Entry point of `allocembed`: finds the command, runs it, and turns every outcome into a message and an exit status.

Status 1: an error that the user can fix. 2: words that cannot be understood. 70: a bug. 130: stopped with Ctrl-C.
141: nobody reads the output any more. 143: stopped with SIGTERM.
"""

import atexit
import gc
import io
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

from allocembed import __version__
from allocembed.cli.options import Command, UsageError
from allocembed.errors import AllocEmbedError, did_you_mean
from allocembed.output.console import complain, say, set_quiet
from allocembed.output.files import FULL
from allocembed.words import without_passwords

COMMANDS: dict[str, str | dict[str, str]] = {
    "demo": "demo.demo",
    "embed": "embed.embed",
    "allocate": "embed.allocate",
    "compare": "compare.compare",
    "index": {name: f"search.{name}" for name in ("add", "info", "ls", "rm", "verify", "dups", "export")},
    "search": "search.search",
    "serve": "serve.serve",
    "mcp": "mcp.mcp",
    "export-st": "export_st.export_st",
    "train": "train.train",
    "eval": {"nano": "evaluate.nano", "mmeb-v2": "evaluate.mmeb_v2", "longret": "evaluate.longret"},
    "longret": {"build": "longret.build"},
}
"""Where each command is; only the module of the command that runs is imported."""
GROUPS = {
    "allocembed": "Video embeddings under a hard token budget: each frame gets the resolution it needs.",
    "allocembed index": "Index your own videos. `allocembed index FOLDER --to INDEX` is short for `index add`, whose "
    "options `allocembed index add --help` explains.",
    "allocembed eval": "Measure methods on a benchmark: Hit@1, mean rank and cost.",
    "allocembed longret": "Build the LongRet benchmark from LoVR and Vript.",
}
EXAMPLES = """examples:
  allocembed demo                                      try everything on toy videos
  allocembed embed talk.mp4 --out vectors.npz          one vector per video
  allocembed index ~/Videos --to videos.index          then: allocembed search videos.index "a red car"
  allocembed COMMAND --help                            options of a command

options of all commands:
  --quiet    print results and errors only
  --debug    print the traceback of an error

allocembed --version prints the version.
"""


NOTES = logging.Handler()
"""Shows what the package logs, such as a model's notice."""
NOTES.emit = lambda record: say(record.getMessage())
SHORT = ("search",)
"""Commands that mostly import: without garbage collection they take two thirds of the time."""


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character must not cost the result
    logging.getLogger("allocembed").addHandler(NOTES)
    words = sys.argv[1:]
    set_quiet("--quiet" in words)
    if words[:1] and words[0] in SHORT:
        gc.disable()
        atexit.register(_skip_collection)
    try:
        with terminated_as_interrupted():
            status = run([word for word in words if word not in ("--debug", "--quiet")])
            sys.stdout.flush()
    except KeyboardInterrupt as stop:
        complain("stopped")
        status = 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:  # whoever reads the output, such as head, has seen enough
        _discard_output()
        status = 141
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        if isinstance(error, AllocEmbedError):
            complain("error:", str(error))
            status = 2 if isinstance(error, UsageError) else 1
        elif isinstance(error, OSError) and error.errno in FULL:  # of stdout: errors of files are our own
            _discard_output()
            complain("error:", f"cannot write the output: {error.strerror}; make room there, or choose another place")
            status = 1
        else:
            summary = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            complain("bug:", f"{summary}; please report it with the file {_save_traceback(words)}")
            status = 70
    gc.enable()
    sys.exit(status)


class Terminated(KeyboardInterrupt):
    """The process was asked to end, as by systemd or a batch system."""


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: what is finished is kept, and no half-written files stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _discard_output() -> None:
    """Let what is left for stdout go nowhere: Python would complain at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _skip_collection() -> None:
    """At the end, do not look through all of torch for garbage. Triton's bindings count on it, and complain."""
    if "triton" not in sys.modules:
        gc.freeze()


def run(words: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    try:
        os.getcwd()  # noqa: PTH109 (pathlib is not needed here)
    except FileNotFoundError:
        raise UsageError("the current folder no longer exists: go to another one") from None
    if "--version" in words[:1]:
        print(f"allocembed {__version__}")
        return 0
    prog, known = "allocembed", COMMANDS
    rest = list(words)
    while True:
        if prog == "allocembed index" and rest and rest[0] not in (*known, "-h", "--help"):
            rest = ["add", *rest]
        if not rest or rest[0] in ("-h", "--help"):
            _print_help(prog, known)
            return 0 if rest else 2
        name, *rest = rest
        if name not in known:
            raise UsageError(f"unknown command {name!r}{did_you_mean(name, list(known))}; see {prog} --help")
        prog, found = f"{prog} {name}", known[name]
        if isinstance(found, str):
            return _load(found).parse(rest, prog)() or 0
        known = found


def _load(place: str) -> Command:
    module, name = place.split(".")
    return getattr(import_module(f"allocembed.cli.{module}"), name)


def _print_help(prog: str, known: Mapping[str, str | Mapping[str, str]]) -> None:
    lines = [f"usage: {prog} COMMAND ...", "", GROUPS[prog], "", "commands:"]
    for name, place in known.items():
        summary = _load(place).about.splitlines()[0] if isinstance(place, str) else GROUPS[f"{prog} {name}"]
        lines.append(f"  {name:<9} {summary}")
    print("\n".join([*lines, "", EXAMPLES if prog == "allocembed" else f"options: {prog} COMMAND --help"]))


def _save_traceback(words: Sequence[str]) -> str:
    """The traceback with versions and the command line, in a file to attach to a report."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="allocembed-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        file.write(f"allocembed {__version__}, Python {sys.version}, {sys.platform}\n")
        file.write(without_passwords(f"command: {' '.join(words)}\n\n{traceback.format_exc()}"))
    return file.name
