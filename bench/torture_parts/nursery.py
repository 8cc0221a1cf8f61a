"""A process with torch loaded that forks a child for each command it reads; see common.Nursery.

LanceDB is imported in the children only, because its threads would not survive a fork. With gates, a child that
reaches a named point writes `NAME.arrived` into its folder and waits, for a limited time, until `NAME.go` exists.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers  # noqa: F401 (loaded once for all children)
from transformers import AutoModel, AutoTokenizer, Qwen3VLModel  # noqa: F401

import allocembed.embedder
import allocembed.execution.stream  # noqa: F401
from allocembed.cli import main as cli

GATES = ("looked", "create", "add")
GATE_SECONDS = 8.0  # seconds that a child waits at a gate at most


def main() -> None:
    torch.set_num_threads(1)
    print("0", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps(wait(request["wait"], request["timeout"])), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            child(request)
        print(pid, flush=True)


def wait(pid: int, timeout: float) -> int | None:
    """The exit status of a child; None if it had to be killed after the timeout."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def child(request: dict[str, Any]) -> None:
    """Run one command; never return."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 70
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the harness runs in the background
    try:
        if request["settle"] is not None:
            from allocembed.search import watch

            watch.SETTLE = watch.GRACE = request["settle"]
        if request["gates"]:
            build_gates(Path(request["gates"]))
        sys.argv = ["allocembed", *request["words"]]
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def build_gates(folder: Path) -> None:
    """Stop after the look whether the index exists, before it is created, and before videos are added."""
    from allocembed.cli import search
    from allocembed.search.index import VideoIndex

    def stop(name: str) -> None:
        (folder / f"{name}.arrived").touch()
        deadline = time.monotonic() + GATE_SECONDS
        while not (folder / f"{name}.go").exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def gated(name: str, call: Callable[..., Any], after: bool = False) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            if after:
                result = call(*args, **named)
                stop(name)
                return result
            stop(name)
            return call(*args, **named)

        return run

    search.exists = gated("looked", search.exists, after=True)
    VideoIndex.create = gated("create", VideoIndex.create)
    VideoIndex.add = gated("add", VideoIndex.add)


if __name__ == "__main__":
    main()
