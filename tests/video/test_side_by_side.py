"""One file in several sessions of a GPU at once, through the stand-in for its library."""

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from allocembed.threads import POLL_SECONDS
from allocembed.video import open_video
from allocembed.video.decoders.nvdec import decoder as nvdec
from allocembed.video.decoders.nvdec.gpu import Nvdec
from allocembed.video.decoders.nvdec.groups import GroupDecoder
from allocembed.video.decoders.nvdec.sessions import Session
from tests.clips import write_video
from tests.nvdec import Library, stand_in

X265 = "log-level=none:keyint=40:min-keyint=40:scenecut=0:open-gop="
FILES = {
    "b_frames.mp4": {"options": {"g": "40", "bf": "3", "sc_threshold": "0"}},
    "no_b_frames.mp4": {"options": {"g": "40", "bf": "0", "sc_threshold": "0"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "0"}},
    "hevc_open_groups.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "1"}},
    "hevc_ten_bits.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": X265 + "0"}},
    "open_groups.mp4": {"options": {"g": "40", "bf": "3", "sc_threshold": "0", "x264-params": "open-gop=1"}},
}
FRAMES, SAMPLED = 440, 9  # far enough from each other that each is decoded from its own keyframe


def make(folder: Path, name: str) -> Path:
    return write_video(folder / name, FRAMES, **FILES[name])


@pytest.fixture
def used(monkeypatch):
    """The decoders that have decoded groups side by side, their threads, and the groups."""
    found, decode = [], GroupDecoder.decode_whole

    def noted(decoder, table, group):
        found.append((decoder, threading.get_ident(), group))
        return decode(decoder, table, group)

    monkeypatch.setattr(GroupDecoder, "decode_whole", noted)
    return found


def prepare(gpu: Nvdec, path: Path, count: int = 4) -> Nvdec:
    """Make sessions for files like this one, by reading several at once."""
    with ExitStack() as stack:
        for video in [stack.enter_context(open_video(path, decoders=gpu)) for _ in range(count)]:
            video.sample(1)
    assert len(gpu._idle) == count
    return gpu


def all_free(gpu: Nvdec) -> bool:
    place = gpu.turns.take_place(1)
    beside = place.beside
    place.give_back(None)
    return beside == (gpu.places - 1) // 2


@pytest.mark.parametrize("name", FILES)
def test_frames_are_those_of_pyav(tmp_path, used, name):
    path = make(tmp_path, name)
    gpu = prepare(stand_in(), path)
    for count in (5, SAMPLED, 40):
        with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
            expected, found = plain.sample(count), fast.sample(count)
        assert np.array_equal(found.frames.numpy(), expected.frames)
    assert not gpu.declined and all_free(gpu)
    if name != "open_groups.mp4":
        assert len({decoder for decoder, *_ in used}) > 1 and len({thread for _, thread, _ in used}) > 1


def test_files_wait_for_no_session_that_would_have_to_be_made(tmp_path, used):
    path, library = make(tmp_path, "b_frames.mp4"), Library()
    gpu = stand_in(library)
    with open_video(path, decoders=gpu) as video:
        video.sample(SAMPLED)
    assert not used and library.sessions == 1 and all_free(gpu)


def test_a_file_uses_no_more_than_half_of_the_free_places(tmp_path, used):
    path = make(tmp_path, "no_b_frames.mp4")
    gpu = prepare(stand_in(), path)
    with open_video(path, decoders=gpu) as first, open_video(path, decoders=gpu) as second:
        first.sample(SAMPLED)
        assert 1 < len({decoder for decoder, *_ in used}) <= 4
        used.clear()
        second.sample(SAMPLED)
        assert len({decoder for decoder, *_ in used}) <= 2
    assert all_free(gpu)


@pytest.mark.parametrize("after", [2, 6, 12])
def test_what_is_left_after_an_error_is_decoded_by_pyav(tmp_path, used, after):
    path, library = make(tmp_path, "b_frames.mp4"), Library()
    gpu = prepare(stand_in(library), path)
    library.breaks_at = library.packets + after
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(SAMPLED).frames.numpy(), plain.sample(SAMPLED).frames)
    assert used and list(gpu.declined) == ["RuntimeError on the GPU"]
    assert not any(slot.sessions for slot in gpu._idle) and all_free(gpu)


@pytest.mark.parametrize("after", [10, 40, 70])
def test_a_picture_that_the_gpu_loses_is_noticed(tmp_path, used, after):
    path, library = make(tmp_path, "b_frames.mp4"), Library()
    gpu = prepare(stand_in(library), path)
    library.loses = library.frames + after
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(SAMPLED).frames.numpy(), plain.sample(SAMPLED).frames)
    assert used and list(gpu.declined) == ["unusual times"]


def test_leaving_early_ends_the_threads_and_frees_the_places(tmp_path, used):
    path = make(tmp_path, "no_b_frames.mp4")
    gpu, threads = prepare(stand_in(), path), threading.active_count()
    with open_video(path, decoders=gpu) as video:
        pictures = video.decoder.pictures(video.table, [20, 60, 100, 140, 180, 220])
        while not used:
            next(pictures)
        pictures.close()
        assert threading.active_count() == threads
    assert all_free(gpu) and len(gpu._idle) == 4
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(fast.sample(SAMPLED).frames.numpy(), plain.sample(SAMPLED).frames)


def test_closing_a_video_ends_the_threads_of_its_windows(tmp_path, used):
    path, library = make(tmp_path, "no_b_frames.mp4"), Library()
    gpu, threads = prepare(stand_in(library), path), threading.active_count()
    video = open_video(path, decoders=gpu)
    windows = video.windows(4, 3)
    next(windows)
    assert used and threading.active_count() > threads
    video.close()
    assert threading.active_count() == threads and all_free(gpu) and len(gpu._idle) == 4
    made = library.packets
    windows.close()
    assert library.packets == made


def test_sessions_end_after_an_error_whoever_refers_to_them(tmp_path, monkeypatch, used):
    ended, end = set(), Session.end
    monkeypatch.setattr(Session, "end", lambda session: end(session) or ended.add(session))
    path, library = make(tmp_path, "b_frames.mp4"), Library()
    gpu = prepare(stand_in(library), path)
    library.breaks_at = library.packets + 6
    with open_video(path, decoders=gpu) as video:
        video.sample(SAMPLED)
    assert used and len(ended) == 4 and all(session.decoder is None for session in ended)


def test_keyframes_are_decoded_in_one_session_and_other_frames_in_several(tmp_path, used):
    path = make(tmp_path, "b_frames.mp4")
    gpu = prepare(stand_in(), path)
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        keys = fast.table.keys.tolist()[:6]
        exact = [key + 20 for key in keys]
        found = {index: pixels for index, _, pixels in fast.decoder.pictures(fast.table, exact, keys)}
        expected = {index: pixels for index, _, pixels in plain.decoder.pictures(plain.table, exact, keys)}
    assert len(found) == 12 and all(np.array_equal(found[index], expected[index]) for index in expected)
    assert sorted(index for *_, group in used for index in group.wanted) == exact


@pytest.mark.parametrize(("pictures", "most"), [(100, 4), (2, 2), (1, 0)])
def test_pictures_that_wait_fit_into_memory(tmp_path, monkeypatch, used, pictures, most):
    path = make(tmp_path, "no_b_frames.mp4")
    monkeypatch.setattr(nvdec, "WAITING_BYTES", pictures * 64 * 48 * 3)
    gpu = prepare(stand_in(), path)
    with open_video(path, decoders=gpu) as video:
        list(video.decoder.pictures(video.table, [20, 60, 100, 140, 180, 220]))  # one of each group
    assert len({decoder for decoder, *_ in used}) <= most and bool(used) == bool(most)


def test_groups_that_are_open_cost_no_time(tmp_path):
    path = make(tmp_path, "open_groups.mp4")
    gpu = prepare(stand_in(), path)
    with open_video(path, decoders=gpu) as video:
        video.table  # noqa: B018 (found before the clock starts)
        began = time.monotonic()
        list(video.decoder.pictures(video.table, [20, 60, 100, 140]))
        assert time.monotonic() - began < POLL_SECONDS


def test_windows_are_those_of_pyav(tmp_path, used):
    path = make(tmp_path, "b_frames.mp4")
    gpu = prepare(stand_in(), path)
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        for expected, found in zip(plain.windows(3, 2), fast.windows(3, 2), strict=True):
            assert np.array_equal(found.frames.numpy(), expected.frames)
    assert used
