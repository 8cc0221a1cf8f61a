"""A file goes to whoever will be done with it first: the card's decoders or the cores."""

import threading
import time

import numpy as np
import pytest

from allocembed.video.decoders import turns
from allocembed.video.decoders.turns import Turns

WORK = 1280 * 720


def occupied(places: int, card: float | None, cores: float | None) -> Turns:
    made = Turns(places)
    assert all(made.take_place(WORK) for _ in range(places))
    made.card, made.cores = (each and each / WORK for each in (card, cores))
    return made


@pytest.mark.parametrize(
    ("places", "card", "cores", "waits"),
    [(10, 1.0, 0.9, False), (10, 1.0, 1.05, False), (10, 0.1, 0.4, True), (1, 0.1, 0.15, False), (1, 0.1, 0.5, True)],
)
def test_a_place_is_waited_for_while_that_is_faster(places, card, cores, waits):
    busy = occupied(places, card, cores)
    began = time.monotonic()
    assert not busy.take_place(WORK)  # nobody gives a place back
    taken = time.monotonic() - began
    assert cores * turns.FORGET - card <= taken < cores if waits else taken < 0.05


def test_a_place_that_becomes_free_is_taken():
    busy = occupied(1, 0.1, 20.0)
    threading.Timer(0.1, lambda: busy.card_done(0.2, WORK)).start()
    assert busy.take_place(WORK) and busy.card * WORK == pytest.approx(0.1 + 0.1 * turns.RECENT)


def test_one_file_tells_what_the_cores_take(monkeypatch):
    monkeypatch.setattr(turns, "UNKNOWN", 0.1)
    busy = occupied(1, None, None)
    assert not busy.take_place(WORK)
    began = time.monotonic()
    assert not busy.take_place(WORK) and time.monotonic() - began >= 0.1
    busy.cores_done(3.0, WORK)
    assert busy.cores * WORK == pytest.approx(3.0)


def test_many_who_wait_make_the_cores_worth_while():
    busy, results = occupied(2, 0.4, 1.2), []
    waiting = [threading.Thread(target=lambda: results.append(busy.take_place(WORK))) for _ in range(3)]
    for thread in waiting:
        thread.start()
        time.sleep(0.05)
    began = time.monotonic()
    assert not busy.take_place(WORK) and time.monotonic() - began < 0.05
    for thread in waiting:
        thread.join()


def test_the_cores_are_tried_again_after_a_while():
    busy = occupied(4, 0.001, 0.003)
    began = time.monotonic()
    patient = [busy.take_place(WORK) or time.monotonic() - began for _ in range(300)]
    waits = np.diff(patient, prepend=0) > 0.0005
    assert waits[:50].all() and not waits[250:].any()


def test_a_thread_with_many_files_open_does_not_wait_for_itself(monkeypatch):
    monkeypatch.setattr(turns, "UNKNOWN", 0.1)
    busy = occupied(1, None, None)
    assert not busy.wait_for_place()
    busy.card_done(0.2, WORK)
    assert busy.wait_for_place()


def test_larger_pictures_are_expected_to_take_longer():
    busy = occupied(1, 0.01, 0.03)  # for a small picture
    began = time.monotonic()
    assert not busy.take_place(20 * WORK) and time.monotonic() - began > 0.3
