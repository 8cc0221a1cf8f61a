"""Files that are embedded, skipped or kept, with a tiny random model."""

import os
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from allocembed.config import EmbedConfig
from allocembed.files import fingerprint
from allocembed.search import SearchError, VideoIndex, embedding, worker
from allocembed.search.verify import verify
from allocembed.video import VideoSource
from allocembed.video.decoders import pyav
from allocembed.video.decoders.pyav import PyAV
from allocembed.video.packets import Demuxer
from tests.clips import picture, write_video

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


def test_every_video_gets_the_vector_that_encode_video_gives(index, folder, embedder):
    for file in index.files():
        stored = index.segments(file.video, "vector")[0]
        alone = embedder.encode_video(file.path)
        assert np.allclose(stored.vector, alone.vector, atol=1e-5)
        assert stored.cost == alone.cost <= stored.budget == 64


def test_a_longer_video_has_windows_that_keep_their_quarter_of_the_budget(index, folder):
    file = next(file for file in index.files() if file.path.endswith("windows.mp4"))
    whole, *windows = index.segments(file.video)
    assert [window.number for window in windows] == [1, 2] and (whole.start, whole.end) == (0, 12)
    assert [(window.start, window.end) for window in windows] == [(0, 6), (6, 12)]
    assert all(window.cost <= window.budget == 16 for window in windows)
    assert all(len(index.segments(other.video)) == 1 for other in index.files() if other.path != file.path)
    hit = index.search_vector(index.segments(file.video, "vector")[2].vector, top=1)[0]
    assert (hit.start, hit.end, hit.segment) == (6, 12, 2) and hit.score == pytest.approx(1, abs=1e-5)
    assert hit.cost == whole.cost + sum(window.cost for window in windows)
    info = index.info()
    assert (info["videos"], info["files"], info["vectors"], info["failed"]) == (9, 9, 11, 0)
    assert info["tokens"] == sum(piece.cost for each in index.files() for piece in index.segments(each.video))


def test_nothing_is_embedded_twice_whatever_it_is_called(index, folder, tmp_path):
    assert index.add([folder]).unchanged == 9
    os.utime(folder / "v0.mp4")
    touched = index.add([folder])
    assert (touched.embedded, touched.unchanged) == (0, 9), "a new date alone changes nothing"
    folder.rename(tmp_path / "renamed")
    renamed = index.add([tmp_path / "renamed"])
    assert (renamed.embedded, renamed.moved, renamed.missing) == (0, 9, 0)
    assert all(file.path.startswith(str(tmp_path / "renamed")) for file in index.files())
    shutil.copy(tmp_path / "renamed" / "v0.mp4", tmp_path / "renamed" / "copy.mp4")
    assert index.add([tmp_path / "renamed"]).embedded == 0
    assert len(index.files()) == 10 and index.info()["videos"] == 9
    assert not verify(index)


@pytest.mark.slow
def test_five_files_more_than_a_hundred_are_five_and_a_new_name_for_the_folder_is_none(tmp_path, empty):
    folder, index = tmp_path / "many", empty
    folder.mkdir()
    for number in range(100):
        write_video(folder / f"{number}.mp4", [picture(number * 7 + frame) for frame in range(2)])
    assert index.add([folder]).embedded == 100
    for number in range(100, 105):
        write_video(folder / f"{number}.mp4", [picture(number * 7 + frame) for frame in range(2)])
    added = index.add([folder])
    assert (added.embedded, added.unchanged) == (5, 100)
    folder.rename(tmp_path / "other")
    renamed = index.add([tmp_path / "other"])
    assert (renamed.embedded, renamed.moved, len(index.files())) == (0, 105, 105)


def test_new_and_changed_files_alone_are_embedded(index, folder):
    for number in (20, 21):
        write_video(folder / f"new{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    write_video(folder / "v0.mp4", [picture(999 + frame) for frame in range(10)])
    added = index.add([folder])
    assert (added.embedded, added.unchanged) == (3, 8)
    assert index.info()["videos"] == 11, "the old content of the changed file is gone"
    assert not verify(index)


def test_what_is_gone_stays_until_it_is_pruned(index, folder):
    (folder / "v0.mp4").unlink()
    (folder / "v1.mp4").unlink()
    kept = index.add([folder])
    assert (kept.missing, kept.dropped, len(index.files())) == (2, 0, 9)
    assert sum("no longer exists" in problem for problem in verify(index)) == 2
    pruned = index.add([folder], prune=True)
    assert (pruned.missing, pruned.dropped, len(index.files()), index.info()["videos"]) == (0, 2, 7, 7)
    assert index.remove([folder / "v2.mp4"]) == 1 and index.info()["videos"] == 6
    with pytest.raises(SearchError, match="not in the index"):
        index.remove([folder / "v2.mp4"])


def test_broken_files_are_left_out_with_their_reasons_and_tried_again_when_asked(index, folder):
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("no video")
    first = index.add([folder])
    assert (first.embedded, len(first.failed)) == (0, 2)
    assert {Path(path).name: cause.split(";")[0] for path, cause in first.failed}["empty.mp4"] == "the file is empty"
    again = index.add([folder])
    assert (again.skipped, again.failed) == (2, [])
    shutil.copy(folder / "v0.mp4", folder / "text.mp4")
    retried = index.add([folder], retry_failed=True)
    assert (retried.moved, [Path(path).name for path, _ in retried.failed]) == (1, ["empty.mp4"])
    assert index.info()["failed"] == 1 and index.info()["videos"] == 9


def test_links_that_lead_nowhere_are_named_and_those_whose_file_is_away_keep_their_vectors(index, folder, tmp_path):
    (folder / "dead.mp4").symlink_to(tmp_path / "later.mp4")
    first = index.add([folder])
    assert [(Path(path).name, cause.split(";")[0]) for path, cause in first.failed] == [
        ("dead.mp4", "a link to a file that does not exist")
    ]
    again = index.add([folder], prune=True)
    assert (again.skipped, again.missing, again.dropped, again.done) == (1, 0, 0, again.total)
    write_video(tmp_path / "later.mp4", [picture(700 + frame) for frame in range(10)])
    assert index.add([folder]).embedded == 1
    (tmp_path / "later.mp4").rename(tmp_path / "away")
    away = index.add([folder])
    assert (away.failed, away.missing, index.info()["videos"]) == ([], 1, 10)
    (tmp_path / "away").rename(tmp_path / "later.mp4")
    assert index.add([folder]).unchanged == 10
    (folder / "dead.mp4").unlink()
    assert index.add([folder], prune=True).dropped == 1


@pytest.fixture
def refuse(monkeypatch):
    """Root may look anywhere, so the system's refusal is played: the folder can be neither listed nor entered."""

    def begin(folder: Path) -> None:
        for name, hidden in (("scandir", folder), ("stat", f"{folder}/")):
            monkeypatch.setattr(os, name, partial(_refused, getattr(os, name), str(hidden)))

    return begin


def _refused(real, hidden: str, path=".", *rest, **named):
    if str(path).startswith(hidden):
        raise PermissionError(13, "Permission denied", str(path))
    return real(path, *rest, **named)


def test_a_folder_that_can_not_be_read_is_named_and_keeps_its_vectors(index, folder, refuse):
    closed = folder / "closed"
    closed.mkdir()
    shutil.move(folder / "v0.mp4", closed / "v0.mp4")
    assert index.add([folder]).moved == 1
    refuse(closed)
    for prune in (False, True):
        added = index.add([folder, closed], prune=prune)
        assert added.failed == [(str(closed), "cannot be read (Permission denied); check its permissions")]
        assert (added.unchanged, added.missing, added.dropped, added.done) == (8, 0, 0, added.total)
    assert index.info()["videos"] == 9
    refused = f"{closed / 'v0.mp4'}: cannot be read (Permission denied); check its permissions"
    assert verify(index) == [refused]
    assert "v0.mp4" in {Path(hit.path).name for hit in index.search("anything", top=9)}


def test_vectors_without_their_file_are_used_and_not_made_again(index, folder):
    """A kill between the two commits leaves just that."""
    lost = index.files()[:4]
    index.store.drop_files(file.path for file in lost)
    added = index.add([folder])
    assert (added.embedded, added.moved, added.unchanged) == (0, 4, 5)
    assert all(file.duration > 0 for file in index.files()) and not verify(index)


@pytest.mark.slow
def test_searches_while_indexing_see_whole_videos_only(index, folder, originals):
    for number in range(20, 32):
        write_video(folder / f"new{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    seen, reader = [], VideoIndex.open(index.store.uri, embedder=index.embedder)

    def ask(_) -> None:
        seen.append(len(reader.search("anything", top=50)))

    index.add([folder], progress=ask)
    assert seen[0] == 9 and seen == sorted(seen) and len(reader.search("anything", top=50)) == 21


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_whatever_stops_a_run_what_is_finished_is_kept(empty, folder, monkeypatch, error):
    real = worker.embed_videos

    def interrupted(*given, **named):
        for number, embedded in enumerate(real(*given, **named)):
            if number == 3:
                raise error
            yield embedded

    monkeypatch.setattr(worker, "embed_videos", interrupted)
    with pytest.raises(error):
        empty.add([folder])
    assert len(empty.files()) == 3
    monkeypatch.undo()
    assert empty.add([folder]).embedded == 6


def test_windows_are_written_with_their_video_or_not_at_all(index, folder, monkeypatch):
    write_video(folder / "again.mp4", 280)

    def broken(*_, **__):
        raise RuntimeError("a fault in the middle")
        yield

    monkeypatch.setattr(VideoSource, "windows", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        index.add([folder])
    assert index.info()["vectors"] == 11
    monkeypatch.undo()
    assert index.add([folder]).embedded == 1 and index.info()["vectors"] == 14


@pytest.mark.slow
def test_the_vectors_are_the_same_bits_however_many_read(embedder, originals):
    made, contents = [], {str(path): fingerprint(path) for path in originals}
    for readers in (1, 3):
        found = {each.path: each.segments for each in embedding.embed_videos(embedder, contents, "3", readers)}
        made.append([segment.vector for path in contents for segment in found[path]])
    assert len(made[0]) == len(originals) + 4 and np.array_equal(made[0], made[1])


def test_each_video_is_opened_once_and_its_packets_are_not_listed(empty, originals, monkeypatch):
    opened, open_file = Counter(), Demuxer.open

    def count_open(demuxer):
        opened[demuxer.source] += 1
        return open_file(demuxer)

    monkeypatch.setattr(Demuxer, "open", count_open)
    monkeypatch.delattr(pyav, "table_from_packets")
    assert empty.add([originals[0].parent]).embedded == 9
    assert opened == {str(path): 1 for path in originals}


def test_a_file_that_is_replaced_during_the_run_does_not_get_the_vector_of_another(empty, folder, monkeypatch):
    """As when a camera rotates its files: the content is recognised early and read late."""
    real = VideoSource.sample

    def rotate(video, *given):
        if video.source.endswith("v1.mp4") and (folder / "v0.mp4").exists():
            (folder / "v0.mp4").replace(folder / "v1.mp4")
        return real(video, *given)

    monkeypatch.setattr(VideoSource, "sample", rotate)
    report = empty.add([folder / "v0.mp4", folder / "v1.mp4"], readers=1)
    assert [Path(path).name for path, _ in report.failed] == ["v1.mp4"] and "replaced" in report.failed[0][1]
    monkeypatch.undo()
    again = empty.add([folder / "v1.mp4"])
    assert (again.embedded, again.moved) == (0, 1) and not verify(empty)


def test_a_part_of_each_video_is_indexed_with_its_own_times(tmp_path, folder, config):
    index = VideoIndex.create(tmp_path / "part", replace(config, start=1.0, end=11.0))
    index.add([folder / "windows.mp4"])
    whole, *windows = index.segments(index.files()[0].video)
    assert (whole.start, whole.end, index.files()[0].duration) == (1, 11, 10)
    assert [(window.start, window.end) for window in windows] == [(1, 6), (6, 11)]


def test_a_backbone_with_single_frame_chunks_is_indexed(tmp_path, folder, siglip_folder):
    index = VideoIndex.create(tmp_path / "other", EmbedConfig(backbone=str(siglip_folder), budget="4f", candidates=4))
    assert index.add([folder]).embedded == 9
    assert Path(index.search_like(folder / "v3.mp4", top=1)[0].path).name == "v3.mp4"
    assert all(segment.cost <= segment.budget for file in index.files() for segment in index.segments(file.video))


@pytest.mark.parametrize("back", [False, True])
def test_a_path_that_had_another_file_only_while_it_was_read_is_reported_and_picked_up(
    empty, folder, monkeypatch, back
):
    """The content is right before and after reading, but not in between."""
    path, away, other = folder / "v1.mp4", folder / "away", folder / "v0.mp4"
    shutil.copy2(path, folder / "copy")
    real_open, real_sample = PyAV.open, VideoSource.sample

    def open_another(decoders, video):
        if Path(video.file).name == path.name:
            path.rename(away)
            other.rename(path)
        return real_open(decoders, video)

    def sample(video, *given):
        clip = real_sample(video, *given)
        if video.source.endswith(path.name):
            path.rename(other)
            (away if back else folder / "copy").rename(path)
        return clip

    monkeypatch.setattr(PyAV, "open", open_another)
    monkeypatch.setattr(VideoSource, "sample", sample)
    report = empty.add([path], readers=1)
    assert [(Path(name).name, cause) for name, cause in report.failed] == [("v1.mp4", embedding.CHANGED)]
    assert empty.info()["vectors"] == 0
    monkeypatch.undo()
    again = empty.add([path])
    assert (again.embedded, again.skipped, again.failed) == (1, 0, []) and not verify(empty)


def test_sizes_that_a_kill_between_the_tables_left_out_are_read_again(index, folder):
    whole = {file.path: (file.width, file.height, file.duration) for file in index.files()}
    index.store.drop_files(file.path for file in index.files()[:4])
    unsized = [replace(file, width=0, height=0) for file in index.files()[-2:]]
    index.store.put_files(unsized)  # as an earlier version left them
    assert index.add([folder]).embedded == 0
    assert {file.path: (file.width, file.height, file.duration) for file in index.files()} == whole
    assert min(width for width, _, _ in whole.values()) > 0


@pytest.mark.parametrize("year", [1500, 2300])
def test_a_date_beyond_what_an_index_can_hold_ends_no_run(tmp_path, folder, config, embedder, year):
    seconds = (year - 1970) * 31_556_952
    (folder / "v1.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na needle\n")
    for name in ("v0.mp4", "v1.srt"):
        os.utime(folder / name, ns=(seconds * 10**9, seconds * 10**9))
    if (folder / "v0.mp4").stat().st_mtime_ns != seconds * 10**9:
        pytest.skip("this file system does not hold such dates")
    index = VideoIndex.create(tmp_path / "dated", config, embedder=embedder)
    first, again = index.add([folder]), index.add([folder])
    assert first.embedded and not first.failed and first.lines == 1
    assert (again.embedded, again.lines, again.unchanged) == (0, 0, first.embedded + first.moved)
    assert verify(index) == []
