"""A file goes to whoever will be done with it first: the card's decoders or the cores."""

import threading
import time

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
    threading.Timer(0.1, busy.free).start()
    assert busy.take_place(WORK)


def test_one_file_tells_what_the_cores_take(monkeypatch):
    monkeypatch.setattr(turns, "LONGEST", 0.1)
    busy = occupied(1, None, None)
    assert not busy.take_place(WORK)
    began = time.monotonic()
    assert not busy.take_place(WORK) and time.monotonic() - began >= 0.1
    busy.note_cores(3.0, WORK)
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
    waits = [busy.patience(WORK) > 0 for _ in range(300)]
    assert all(waits[:50]) and not any(waits[250:])


def test_a_thread_with_many_files_open_does_not_wait_for_itself(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE", 0.1)
    busy = occupied(1, None, None)
    assert busy.wait_for_place(WORK) is None
    busy.free()
    assert busy.wait_for_place(WORK)


def test_a_place_is_given_back_once_and_only_what_was_decoded_counts():
    busy = Turns(1)
    for decoded in (False, True):
        place = busy.take_place(WORK)
        place.began -= 2.0
        place.give_back(decoded=decoded)
        place.give_back(decoded=True)
        assert busy.card is None if not decoded else busy.card * WORK == pytest.approx(2.0, abs=0.5)
    busy.note_card(4.0, WORK)
    assert busy.card * WORK == pytest.approx(2.0 + 2.0 * turns.RECENT, abs=0.5)


def test_larger_pictures_are_expected_to_take_longer():
    busy = occupied(1, 0.01, 0.03)  # for a small picture
    began = time.monotonic()
    assert not busy.take_place(20 * WORK) and time.monotonic() - began > 0.3
