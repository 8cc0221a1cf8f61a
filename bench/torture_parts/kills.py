"""kill -9 at random moments of `index`, `train`, `eval`, `serve`, `index --watch` and `mcp`: what was committed stays.

After a kill the command is run again, until it ends by itself. Its result then equals that of a run nobody disturbed.
"""

import http.client
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torture_parts.common import (
    INDEX_OPTIONS,
    Nursery,
    Outcome,
    Settings,
    address,
    check_index,
    judge,
    save_model,
    save_videos,
    vectors,
)
from torture_parts.visitors import kill_mcp, kill_watch

FULL = 150
KILLS = 3  # of one run, before it may end


class Victim:
    """A command to kill, and what its result must be."""

    def __init__(self, name: str, outcome: Outcome, nursery: Nursery, source: random.Random) -> None:
        self.name, self.outcome, self.nursery, self.source = name, outcome, nursery, source
        self.usual = 1.0
        self.killed = 0

    def rounds(self, kills: int) -> Iterator[int]:
        """How often to kill each run, until there were `kills` in all; kills that came too late do not count."""
        while self.killed < kills:
            yield min(KILLS, kills - self.killed)

    def attack(self, kills: int, words: Callable[[], tuple[object, ...]], look: Callable[[], None]) -> None:
        """Kill a command at `kills` random moments, look at what is left each time, then let it end.

        A run that had ended before its kill does not count.
        """
        while kills:
            child = self.nursery.start(*words())
            started, wanted = time.monotonic(), self.source.uniform(0.05, 0.85) * self.usual
            while child.runs() and time.monotonic() < started + wanted:
                time.sleep(0.005)
            took = time.monotonic() - started
            child.kill()
            status = self.nursery.wait(child)
            if status != -9:
                judge(self.outcome, status, child.text(), f"{self.name} before the kill")
            look()
            if status != -9:
                self.usual = max(took, 0.8 * self.usual)  # the machine is faster than when it was timed
                break  # finished: there is nothing left to kill
            self.outcome.notes[f"{self.name}: killed"] += 1
            self.outcome.runs += 1
            self.killed += 1
            kills -= 1
        status, text = self.nursery.run(*words())
        if judge(self.outcome, status, text, f"{self.name} after the kills") and status:
            self.outcome.fault("lost", f"{self.name} does not resume: {text[-400:]}")

    def time(self, *words: object) -> None:
        """Run a command undisturbed, to know how long it takes."""
        started = time.monotonic()
        status, text = self.nursery.run(*words)
        self.usual = time.monotonic() - started
        if judge(self.outcome, status, text, f"{self.name} undisturbed") and status:
            self.outcome.fault("crashes", f"{self.name} undisturbed: {text[-400:]}")


def run(settings: Settings) -> Outcome:
    outcome, source, total = Outcome("kills"), random.Random(settings.seed), settings.count(FULL)
    model = save_model(settings.folder / "model")
    save_videos(settings.folder / "videos", 8)
    parts = (kill_index, kill_train, kill_eval, kill_serve, kill_watch, kill_mcp)
    with Nursery(settings.folder / "logs") as nursery:
        for number, part in enumerate(parts):
            name = part.__name__.removeprefix("kill_")
            share = total // len(parts) + (number < total % len(parts))
            if share:
                part(Victim(name, outcome, nursery, source), settings.folder, model, share)
    return outcome


def kill_index(victim: Victim, folder: Path, model: Path, kills: int) -> None:
    def words(place: Path) -> tuple[object, ...]:
        return ("index", folder / "videos", "--to", place, "--backbone", model, *INDEX_OPTIONS)

    victim.time(*words(folder / "whole"))
    wanted = vectors(folder / "whole")
    for number, some in enumerate(victim.rounds(kills)):
        place = folder / f"index{number}"
        committed: set[tuple[str, int]] = set()

        def look(place: Path = place, committed: set[tuple[str, int]] = committed) -> None:
            from allocembed.search.store import exists

            if not exists(str(place)):
                if committed:
                    victim.outcome.fault("lost", "index: the whole index is gone")
                return
            found = vectors(place)
            for key in committed - found.keys():
                victim.outcome.fault("lost", f"index: {key} was committed and is gone")
            committed |= found.keys()

        victim.attack(some, lambda place=place: words(place), look)
        check_index(victim.outcome, place, wanted, f"index after {some} kills")


def kill_train(victim: Victim, folder: Path, model: Path, kills: int) -> None:
    from allocembed.rdpo.checkpoint import STATE_FILE, read_state

    nano = save_nano(folder / "nano")

    def config(out: Path) -> Path:
        from tests.small_runs import small

        file = out.with_suffix(".toml")
        file.write_text(small(nano, out).as_toml())
        return file

    def result(out: Path) -> tuple[dict[str, torch.Tensor], list[int]]:
        state = read_state(out / "state")
        weights = {f"{part} {name}": value for part in ("policy", "mean") for name, value in state[part].items()}
        lines = map(json.loads, (out / "train.jsonl").read_text().splitlines())
        return weights, [line["step"] for line in lines if line["kind"] == "step"]

    victim.time("train", config(folder / "unbroken"))
    weights, steps = result(folder / "unbroken")
    for number, some in enumerate(victim.rounds(kills)):
        out = folder / f"train{number}"
        file, reached = config(out), [0]

        def look(out: Path = out, reached: list[int] = reached) -> None:
            step = read_state(out / "state")["progress"]["step"] if (out / "state" / STATE_FILE).exists() else 0
            if step < reached[-1]:
                victim.outcome.fault("lost", f"train: step {reached[-1]} was saved, the state is at {step}")
            reached.append(step)

        def words(file: Path = file, out: Path = out) -> tuple[object, ...]:
            begun = (out / "state" / STATE_FILE).exists()
            if not begun:
                shutil.rmtree(out, ignore_errors=True)  # nothing was saved yet
            return ("train", file, *(["--resume"] if begun else []))

        victim.attack(some, words, look)
        found, logged = result(out)
        if found.keys() != weights.keys() or any(not torch.equal(found[name], weights[name]) for name in weights):
            victim.outcome.fault("wrong", f"train: other weights after {some} kills")
        if logged != steps:
            victim.outcome.fault("lost", f"train: the log has the steps {logged}, not {steps}")


def kill_eval(victim: Victim, folder: Path, model: Path, kills: int) -> None:
    def words(table: Path) -> tuple[object, ...]:
        options = ("--methods", "uniform", "--subsets", "short-clip", "--limit", "4", "--backbone", "nano-qwen3")
        return ("eval", "nano", *options, "--markdown", table)

    victim.time(*words(folder / "whole.md"))
    wanted = (folder / "whole.md").read_text()
    for number, some in enumerate(victim.rounds(kills)):
        table = folder / f"table{number}.md"

        def look(table: Path = table) -> None:
            if table.exists() and table.read_text() != wanted:
                victim.outcome.fault("lost", "eval: a table that is not whole")

        victim.attack(some, lambda table=table: words(table), look)
        if not table.exists() or table.read_text() != wanted:
            victim.outcome.fault("wrong", f"eval: another table after {some} kills")


def kill_serve(victim: Victim, folder: Path, model: Path, kills: int) -> None:
    """Kill a server amid requests; the index is unchanged, and the next server gives the same answer."""
    place = folder / "whole"
    if not place.exists():
        command = ("index", folder / "videos", "--to", place, "--backbone", model, *INDEX_OPTIONS)
        judge(victim.outcome, *victim.nursery.run(*command), "index for serve")
    wanted = vectors(place)
    first: Any = None
    for _ in range(kills):
        child = victim.nursery.start("serve", place, "--port", "0")
        if victim.source.random() < 0.3:
            time.sleep(victim.source.uniform(0.1, 2.0))  # amid its start
        elif (found := address(child.log, child.runs)) is None:
            victim.outcome.fault("crashes", f"serve did not start: {child.text()[-400:]}")
        else:
            for _ in range(victim.source.randrange(1, 10)):
                connection = http.client.HTTPConnection(*found, timeout=60)
                connection.request("GET", "/api/search?q=a%20red%20car")
                answer = [(hit["video"], round(hit["score"], 5)) for hit in json.loads(connection.getresponse().read())]
                connection.close()
                first = first or answer
                if answer != first:
                    victim.outcome.fault("wrong", "serve: another answer than the server before")
        child.kill()
        status = victim.nursery.wait(child)
        victim.outcome.notes[f"serve: {'killed' if status == -9 else 'ended before'}"] += 1
        victim.outcome.runs += 1
    check_index(victim.outcome, place, wanted, "serve")


def save_nano(folder: Path) -> Path:
    """An untrained nano checkpoint."""
    import sys

    from torture_parts.common import ROOT

    sys.path.insert(0, str(ROOT / "recipes"))
    from nano_model import build_backbone, save_backbone  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    save_backbone(build_backbone("qwen3", tiny=True), folder, {})
    return folder
