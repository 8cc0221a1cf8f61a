"""Two and three `index` processes on one new index at the same time: nothing is lost, nothing is there twice.

Each process stops at three gates: after it has looked whether the index exists, before it creates the index, and before
it adds videos. They are let through one at a time, in every order of two processes and in random orders of three.
"""

import random
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from torture_parts.common import (
    INDEX_OPTIONS,
    Child,
    Nursery,
    Outcome,
    Settings,
    check_index,
    judge,
    save_model,
    save_videos,
    vectors,
)

FULL = 60
GATES = ("looked", "create", "add")
ARRIVAL = 1.5  # seconds to wait for a process that may have ended, or waits for a lock


def run(settings: Settings) -> Outcome:
    outcome, source = Outcome("writers"), random.Random(settings.seed)
    model = save_model(settings.folder / "model")
    folders = [settings.folder / f"videos{writer}" for writer in range(3)]
    for writer, folder in enumerate(folders):
        save_videos(folder, 3, first=writer * 3)
        save_videos(folder, 1, first=9)  # the same content under each folder
    for folder in folders:
        (folder / "v009.mp4").rename(folder / f"v009-{folder.name}.mp4")
    with Nursery(settings.folder / "logs") as nursery:
        whole = settings.folder / "whole"
        judge(outcome, *nursery.run("index", *folders, "--to", whole, "--backbone", model, *INDEX_OPTIONS), "reference")
        wanted = vectors(whole)
        orders = list(schedules(source, settings.count(FULL)))
        for number, order in enumerate(orders):
            place = settings.folder / f"index{number}"
            race(outcome, nursery, settings.folder / f"gates{number}", order, folders, place, model)
            outcome.runs += 1
            kept = {path.name for writer in set(order) for path in folders[writer].iterdir()}
            # A run that was refused says so, and is repeated by its user.
            again = [folders[writer] for writer in sorted(set(order))]
            command = ("index", *again, "--to", place, "--backbone", model, *INDEX_OPTIONS)
            judge(outcome, *nursery.run(*command), f"order {order}: the run after")
            expected = {key: vector for key, vector in wanted.items() if key[0] in kept}
            check_index(outcome, place, expected, f"order {order}")
    return outcome


def schedules(source: random.Random, count: int) -> Iterator[list[int]]:
    """The writer that passes its next gate, step by step: all orders of two writers, then random ones of three."""
    steps = 2 * len(GATES)
    pairs = [[int(step in first) for step in range(steps)] for first in combinations(range(steps), len(GATES))]
    source.shuffle(pairs)
    pairs = pairs[: max(1, count // 2)]
    yield from pairs
    for _ in range(count - len(pairs)):
        order = [0, 1, 2] * len(GATES)
        source.shuffle(order)
        yield order


def race(
    outcome: Outcome, nursery: Nursery, gates: Path, order: list[int], folders: list[Path], place: Path, model: Path
) -> None:
    """Let the writers through their gates in this order; what a run says it embedded must be in the index."""
    children: dict[int, Child] = {}
    for writer in sorted(set(order)):
        (gates / str(writer)).mkdir(parents=True)
        command = ("index", folders[writer], "--to", place, "--backbone", model, *INDEX_OPTIONS)
        children[writer] = nursery.start(*command, gates=gates / str(writer))
    passed = dict.fromkeys(children, 0)
    for writer in order:
        gate = gates / str(writer) / GATES[passed[writer]]
        passed[writer] += 1
        deadline = time.monotonic() + (10 if passed[writer] == 1 else ARRIVAL)
        waiting = children[writer].runs
        while not gate.with_suffix(".arrived").exists() and time.monotonic() < deadline and waiting():
            time.sleep(0.005)
        gate.with_suffix(".go").touch()
    done = []
    for writer, child in children.items():
        status, text = nursery.wait(child), child.text()
        judge(outcome, status, text, f"order {order}: writer {writer}")
        outcome.notes["finished" if status == 0 else "refused"] += 1
        if status == 0:
            done.append(writer)
    if not done:
        outcome.fault("lost", f"order {order}: no writer finished")
        return
    names = {name for name, _ in vectors(place)}
    for writer in done:
        for path in folders[writer].iterdir():
            if path.name not in names:
                outcome.fault("lost", f"order {order}: writer {writer} finished, {path.name} is not in the index")
