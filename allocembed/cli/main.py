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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from allocembed import __version__
from allocembed.cli.options import Command, UsageError
from allocembed.errors import AllocEmbedError, ConfigError, did_you_mean
from allocembed.output.console import complain, say, set_quiet
from allocembed.output.files import FULL
from allocembed.plugins import Names
from allocembed.words import without_passwords

HELP = ("-h", "--help")
COMMANDS: Names[Command] = Names(
    "allocembed.commands",
    {
        "embed": "allocembed.cli.embed:embed",
        "allocate": "allocembed.cli.embed:allocate",
        "compare": "allocembed.cli.compare:compare",
        "index add": "allocembed.cli.search:add",
        "index info": "allocembed.cli.search:info",
        "index ls": "allocembed.cli.search:ls",
        "index rm": "allocembed.cli.search:rm",
        "index verify": "allocembed.cli.search:verify",
        "index dups": "allocembed.cli.search:dups",
        "index export": "allocembed.cli.search:export",
        "search": "allocembed.cli.search:search",
        "serve": "allocembed.cli.serve:serve",
        "mcp": "allocembed.cli.mcp:mcp",
        "export-st": "allocembed.cli.export_st:export_st",
        "train": "allocembed.cli.train:train",
        "eval mmeb-v2": "allocembed.cli.evaluate:mmeb_v2",
        "eval longret": "allocembed.cli.evaluate:longret",
        "longret build": "allocembed.cli.longret:build",
    },
)
"""Commands, also of installed packages, by what users type. Only the module of the command that runs is imported."""
GROUPS = {
    "": "Video embeddings under a hard token budget: each frame gets the resolution it needs.",
    "index": "Index your own videos. `allocembed index FOLDER --to INDEX` is short for `index add`, whose options "
    "`allocembed index add --help` explains.",
    "eval": "Measure methods on a benchmark: Hit@1, mean rank and cost.",
    "longret": "Build the LongRet benchmark from LoVR and Vript.",
}
EXAMPLES = """examples:
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
"""Commands that mostly import: without garbage collection they take three quarters of the processor time."""


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack characters of a name
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
    group, rest = "", list(words)
    while True:
        if group == "index" and rest and rest[0] not in HELP and _name(group, rest[0]) not in COMMANDS:
            rest = ["add", *rest]
        if not rest or rest[0] in HELP:
            _print_help(group)
            return 0 if rest else 2
        name, rest = _name(group, rest[0]), rest[1:]
        if name not in GROUPS:
            return _find(group, name).parse(rest, f"allocembed {name}")() or 0
        group = name


def _name(group: str, word: str) -> str:
    """The name of a command or group in a group.

    >>> _name("", "embed"), _name("index", "add")
    ('embed', 'index add')
    """
    return f"{group} {word}".strip()


def _members(group: str) -> list[str]:
    """The words that may follow a group: its commands and groups."""
    prefix = _name(group, " ").lstrip()
    words = dict.fromkeys(name.removeprefix(prefix).split()[0] for name in COMMANDS if name.startswith(prefix))
    return [word for word in words if _name(group, word) in {*GROUPS, *COMMANDS}]


def _find(group: str, name: str) -> Command:
    if name in COMMANDS:
        return COMMANDS[name]
    word = name.removeprefix(group).strip()
    unknown = f"unknown command {word!r}{did_you_mean(word, _members(group))}; see {_name('allocembed', group)} --help"
    raise UsageError(COMMANDS.absence(name) or unknown)


def _print_help(group: str) -> None:
    prog = _name("allocembed", group)
    lines = [f"usage: {prog} COMMAND ...", "", GROUPS[group], "", "commands:"]
    lines += [f"  {word:<9} {_summary(_name(group, word))}" for word in _members(group)]
    print("\n".join([*lines, "", f"options: {prog} COMMAND --help" if group else EXAMPLES]))


def _summary(name: str) -> str:
    if name in GROUPS:
        return GROUPS[name]
    try:
        return COMMANDS[name].about.splitlines()[0]
    except ConfigError as error:  # of a package that cannot be imported: the others still have their help
        return str(error)


def _save_traceback(words: Sequence[str]) -> str:
    """The traceback with versions and the command line, in a file to attach to a report."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="allocembed-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
    ) as file:
        file.write(f"allocembed {__version__}, Python {sys.version}, {sys.platform}\n")
        file.write(without_passwords(f"command: {' '.join(words)}\n\n{traceback.format_exc()}"))
    return file.name
