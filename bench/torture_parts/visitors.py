"""kill -9 of `index --watch` amid changes, and clients of `mcp` that send nonsense, leave, or are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torture_parts.churn import Churn, Held, contents, differences
from torture_parts.common import INDEX_OPTIONS, check_index, environment, judge, vectors

if TYPE_CHECKING:
    from torture_parts.kills import Victim

SETTLE = 0.3  # seconds that the watch waits for a file
INITIALISE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "torture", "version": "1"}}
NONSENSE = (
    b"garbage",
    b"{}",
    b"[[[",
    b"null",
    b"\x00\xff\xfe",
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": 5}}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "frame", "arguments": {"video": "../x"}}}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "resources/read", "params": {"uri": "file:///etc/passwd"}}',
)


def kill_watch(victim: Victim, folder: Path, model: Path, kills: int) -> None:
    """After kills amid changes, a run by hand ends in an index equal to one made from scratch."""
    outcome, source, pool = victim.outcome, victim.source, sorted((folder / "videos").iterdir())
    for number, some in enumerate(victim.rounds(kills)):
        live, place, whole = (folder / f"{name}{number}" for name in ("live", "watched", "afresh"))
        live.mkdir()
        churn = Churn(live, pool, 8, source)
        for _ in range(4):
            churn.add()

        def command(to: Path, live: Path = live) -> tuple[object, ...]:
            return ("index", live, "--to", to, "--backbone", model, *INDEX_OPTIONS)

        for _ in range(some):
            committed = contents(place)
            child = victim.nursery.start(*command(place), "--watch", settle=SETTLE)
            deadline = time.monotonic() + source.uniform(0.3, 4)
            while child.runs() and time.monotonic() < deadline:
                time.sleep(source.uniform(0, 0.3))
                churn.step()
            child.kill()
            status = victim.nursery.wait(child)
            judge(outcome, 0 if status == -9 else status, child.text(), "watch before the kill")
            if status != -9:
                outcome.fault("crashes", f"watch ended by itself with {status}: {child.text()[-400:]}")
            victim.killed += 1
            outcome.runs += 1
            outcome.notes["watch: killed"] += 1
            check_kept(victim, committed, contents(place))
        churn.wait()
        for to, more in ((place, ["--prune"]), (whole, [])):
            judge(outcome, *victim.nursery.run(*command(to), *more), "index after watch")
        for line in differences(contents(place), contents(whole)):
            outcome.fault("lost", f"watch after {some} kills: {line}")


def check_kept(victim: Victim, before: dict[str, Held], after: dict[str, Held]) -> None:
    """Count files that were in the index, are on the disk as they were, and are not in the index any more."""
    from allocembed.files import fingerprint

    for path, held in before.items():
        if isinstance(held, str) or path in after:
            continue
        try:
            same = fingerprint(path) == held[0]
        except OSError:
            same = False
        if same:
            victim.outcome.fault("lost", f"watch: {path} was committed and is gone")


def kill_mcp(victim: Victim, folder: Path, model: Path, kills: int) -> None:
    """A server whose client leaves ends by itself; a killed one changes nothing; equal searches get equal answers."""
    place, outcome, source = folder / "whole", victim.outcome, victim.source
    if not place.exists():
        command = ("index", folder / "videos", "--to", place, "--backbone", model, *INDEX_OPTIONS)
        judge(outcome, *victim.nursery.run(*command), "index for mcp")
    wanted, answers = vectors(place), set[str]()
    for number in range(kills):
        log = folder / f"mcp{number}.log"
        with log.open("wb") as file:
            words = [sys.executable, "-m", "allocembed", "mcp", str(place)]
            server = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=environment()
            )
        try:
            answers |= talk(server, source)
        except (OSError, ValueError) as error:
            outcome.fault("lost", f"mcp: no answer: {type(error).__name__}: {error}: {log.read_text()[-400:]}")
        by_signal = source.random() < 0.3
        if by_signal:
            server.kill()
        for pipe in (server.stdout, server.stdin):
            close(pipe)
        try:
            status = server.wait(30)
        except subprocess.TimeoutExpired:
            outcome.fault("hangs", "mcp: the server stays after its client has left")
            server.kill()
            status = server.wait()
        text = log.read_text(errors="replace")
        judge(outcome, 0 if by_signal else status, text, "mcp")
        outcome.runs += 1
        outcome.notes["mcp: killed" if by_signal else "mcp: clients that left"] += 1
    if len(answers) > 1:
        outcome.fault("wrong", "mcp: equal searches got different answers")
    check_index(outcome, place, wanted, "mcp")


def talk(server: subprocess.Popen[bytes], source: random.Random) -> set[str]:
    """Ask a server, with nonsense in between, and stop at a random point. Return the answers to the one search."""
    send, answers = sender(server), set[str]()
    send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALISE})
    receive(server, 1)
    send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    search = {"name": "search", "arguments": {"query": "a red car", "said": False}}
    for number in range(2, 2 + source.randrange(5)):
        for _ in range(source.randrange(4)):
            send(source.choice(NONSENSE))
        send({"jsonrpc": "2.0", "id": number * 100, "method": "tools/call", "params": search})
        if source.random() < 0.3:
            return answers  # while it works
        result = receive(server, number * 100)["result"]["structuredContent"]["result"]
        answers.add(json.dumps([(hit["video"], round(hit["score"], 4)) for hit in result]))
    if source.random() < 0.3 and server.stdin:
        server.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "meth')
        server.stdin.flush()
    return answers


def sender(server: subprocess.Popen[bytes]) -> Callable[[dict[str, Any] | bytes], None]:
    assert server.stdin
    pipe = server.stdin

    def send(message: dict[str, Any] | bytes) -> None:
        pipe.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
        pipe.flush()

    return send


def receive(server: subprocess.Popen[bytes], number: int) -> dict[str, Any]:
    """The answer to a request. Raise ValueError if the server ends."""
    assert server.stdout
    for line in server.stdout:
        answer = json.loads(line)
        if answer.get("id") == number:
            return answer
    raise ValueError("the server has ended")


def close(pipe: Any) -> None:
    with suppress(OSError):  # what was not sent yet cannot be sent any more
        pipe.close()
