"""A file goes to whoever will be done with it first: the GPU's decoders or the cores."""

import threading
import time

import pytest

from allocembed.video.decoders.nvdec import turns
from allocembed.video.decoders.nvdec.turns import DecoderPlace, Turns

WORK = 1280 * 720


def fill(turns: Turns) -> list[DecoderPlace]:
    """Take all places, each alone."""
    taken = []
    for _ in range(turns.places):
        taken.append(turns.take_place(WORK))
        taken[-1].use_beside(0)
    return taken


def occupied(places: int, gpu: float | None, cores: float | None) -> Turns:
    made = Turns(places)
    fill(made)
    made.gpu, made.cores = (each and each / WORK for each in (gpu, cores))
    return made


@pytest.mark.parametrize(
    ("places", "gpu", "cores", "waits"),
    [(10, 1.0, 0.9, False), (10, 1.0, 1.05, False), (10, 0.1, 0.4, True), (1, 0.1, 0.15, False), (1, 0.1, 0.5, True)],
)
def test_a_place_is_waited_for_while_that_is_faster(places, gpu, cores, waits):
    busy = occupied(places, gpu, cores)
    assert busy.patience(WORK) == pytest.approx(cores * turns.FORGET - gpu if waits else 0.0)
    assert not busy.take_place(WORK)  # nobody gives a place back


def test_a_place_that_becomes_free_is_taken():
    busy = occupied(1, 0.1, 20.0)
    threading.Timer(0.1, busy.free).start()
    assert busy.take_place(WORK)


def test_what_the_cores_take_is_guessed_until_it_is_known():
    made = Turns(1)
    made.note_gpu(1.0, WORK, 5.0)
    assert (made.gpu * WORK, made.cores * WORK) == pytest.approx((1.0, 5.0))
    made.note_cores(3.0, WORK)
    made.note_gpu(1.0, WORK, 5.0)
    assert made.cores * WORK == pytest.approx(3.0)
    made.note_cores(4.0, WORK)
    assert made.cores * WORK == pytest.approx(3.0 + turns.RECENT)


def test_nothing_is_given_to_the_cores_before_the_gpu_has_decoded_a_file(monkeypatch):
    monkeypatch.setattr(turns, "LONGEST_TURN_WAIT", 0.1)
    busy = occupied(1, None, None)
    began = time.monotonic()
    assert not busy.take_place(WORK) and time.monotonic() - began >= 0.1


def test_many_who_wait_make_the_cores_worth_while():
    busy, results = occupied(2, 0.4, 1.2), []
    waiting = [threading.Thread(target=lambda: results.append(busy.take_place(WORK))) for _ in range(3)]
    for thread in waiting:
        thread.start()
        time.sleep(0.05)
    assert busy.patience(WORK) == 0.0 and not busy.take_place(WORK)
    for thread in waiting:
        thread.join()


def test_the_cores_are_tried_again_after_a_while():
    busy = occupied(4, 0.001, 0.003)
    waits = [busy.patience(WORK) > 0 for _ in range(300)]
    assert all(waits[:50]) and not any(waits[250:])


def test_a_thread_with_many_files_open_does_not_wait_for_itself(monkeypatch):
    monkeypatch.setattr(turns, "LONGEST_WAIT", 0.1)
    busy = occupied(1, None, None)
    assert busy.wait_for_place(WORK) is None
    busy.free()
    assert busy.wait_for_place(WORK)


def test_a_place_is_given_back_once_and_only_what_was_decoded_counts():
    busy = Turns(1)
    for decoded in (False, True):
        place = busy.take_place(WORK)
        place.began -= 2.0
        place.give_back(5.0 if decoded else None)
        place.give_back(5.0)
        assert busy.gpu is None if not decoded else busy.gpu * WORK == pytest.approx(2.0, abs=0.5)
    busy.note_gpu(4.0, WORK, 5.0)
    assert busy.gpu * WORK == pytest.approx(2.0 + 2.0 * turns.RECENT, abs=0.5)


def test_larger_pictures_are_expected_to_take_longer():
    busy = occupied(1, 0.01, 0.03)  # for a small picture
    began = time.monotonic()
    assert not busy.take_place(20 * WORK) and time.monotonic() - began > 0.3


def test_half_of_the_free_places_are_beside_that_of_a_file():
    made = Turns(8)
    first = [made.take_place(WORK) for _ in range(4)]
    assert [place.beside for place in first] == [3, 1, 0, 0]
    assert first[0].use_beside(2) == 2
    second = made.take_place(WORK)
    assert second and second.beside == 0
    first[0].give_back(5.0)
    assert made.gpu is None  # a file that was decoded in several places does not tell how long it takes in one
    assert [made.take_place(WORK).beside for _ in range(2)] == [1, 0]


def test_places_that_a_file_does_not_use_go_to_those_who_wait(monkeypatch):
    monkeypatch.setattr(turns, "KEPT_SECONDS", 0.1)
    made = Turns(4)
    unused, used = made.take_place(WORK), made.take_place(WORK)
    assert unused.beside == 1 and used.beside == 0
    began = time.monotonic()
    assert made.take_place(WORK) and made.take_place(WORK)
    assert time.monotonic() - began >= 0.05
    assert unused.use_beside(1) == 0
    for place in (unused, used):
        place.give_back(None)
    assert len(fill(Turns(4))) == 4 and made.take_place(WORK)


def test_places_in_use_are_not_taken_away(monkeypatch):
    monkeypatch.setattr(turns, "KEPT_SECONDS", 0.05)
    monkeypatch.setattr(turns, "LONGEST_TURN_WAIT", 0.2)
    made = Turns(4)
    first = made.take_place(WORK)
    assert first.use_beside(1) == 1 and made.take_place(WORK) and made.take_place(WORK)
    assert made.take_place(WORK) is None
    threading.Timer(0.05, lambda: first.use_beside(0)).start()
    assert made.take_place(WORK)
