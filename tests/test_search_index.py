"""VideoIndex with a tiny random model: what is embedded, what is not, what is kept, and what is refused."""

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from allocembed.embedder import AllocEmbed
from allocembed.search import SearchError, VideoIndex
from allocembed.search.export import export
from allocembed.search.verify import verify
from tests.clips import picture, write_video

pytest.importorskip("lancedb", reason="LanceDB is not installed: pip install -e '.[search]'")


@pytest.fixture(scope="module")
def embedder(qwen3_folder) -> AllocEmbed:
    return AllocEmbed.from_pretrained(qwen3_folder, budget="64", candidates=4)


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> list[Path]:
    """Eight different videos of two seconds, and one of twelve, which is cut into windows."""
    folder = tmp_path_factory.mktemp("originals")
    for number in range(8):
        write_video(folder / f"v{number}.mp4", [picture(number * 37 + frame) for frame in range(0, 50, 5)])
    return [*sorted(folder.glob("v*.mp4")), write_video(folder / "windows.mp4", 300)]


@pytest.fixture
def folder(tmp_path, originals) -> Path:
    made = tmp_path / "videos"
    made.mkdir()
    for path in originals:
        shutil.copy2(path, made)
    return made


def create(place: Path, embedder: AllocEmbed, **settings) -> VideoIndex:
    about = {"budget": "64", "candidates": 4, **settings}
    return VideoIndex.create(place, embedder.backbone.name, embedder=embedder, **about)


@pytest.fixture
def index(tmp_path, folder, embedder) -> VideoIndex:
    made = create(tmp_path / "index", embedder)
    made.add([folder])
    return made


def test_every_video_gets_the_vector_that_encode_video_gives(index, folder, embedder):
    for file in index.files():
        stored = index.pieces(file["video"], ("vector",))[0]
        alone = embedder.encode_video(file["path"])
        assert np.allclose(stored["vector"], alone.vector, atol=1e-5)
        assert stored["cost"] == alone.cost <= stored["budget"] == 64


def test_a_longer_video_has_windows_that_keep_their_quarter_of_the_budget(index, folder):
    file = next(file for file in index.files() if file["path"].endswith("windows.mp4"))
    whole, *windows = index.pieces(file["video"])
    assert [window["number"] for window in windows] == [1, 2] and (whole["start"], whole["end"]) == (0, 12)
    assert [(window["start"], window["end"]) for window in windows] == [(0, 6), (6, 12)]
    assert all(window["cost"] <= window["budget"] == 16 for window in windows)
    assert all(len(index.pieces(other["video"])) == 1 for other in index.files() if other["path"] != file["path"])
    hit = index.search_vector(np.asarray(index.pieces(file["video"], ("vector",))[2]["vector"]), top=1)[0]
    assert (hit.start, hit.end, hit.segment) == (6, 12, 2) and hit.score == pytest.approx(1, abs=1e-5)
    assert hit.cost == whole["cost"] + sum(window["cost"] for window in windows)
    info = index.info()
    assert (info["videos"], info["files"], info["vectors"], info["failed"]) == (9, 9, 11, 0)
    assert info["tokens"] == sum(piece["cost"] for each in index.files() for piece in index.pieces(each["video"]))


def test_nothing_is_embedded_twice_whatever_it_is_called(index, folder, tmp_path):
    assert index.add([folder]).unchanged == 9
    os.utime(folder / "v0.mp4")
    touched = index.add([folder])
    assert (touched.embedded, touched.unchanged) == (0, 9), "a new date alone changes nothing"
    folder.rename(tmp_path / "renamed")
    renamed = index.add([tmp_path / "renamed"])
    assert (renamed.embedded, renamed.moved, renamed.missing) == (0, 9, 0)
    assert all(file["path"].startswith(str(tmp_path / "renamed")) for file in index.files())
    shutil.copy(tmp_path / "renamed" / "v0.mp4", tmp_path / "renamed" / "copy.mp4")
    assert index.add([tmp_path / "renamed"]).embedded == 0
    assert len(index.files()) == 10 and index.info()["videos"] == 9
    assert not verify(index)


def test_five_files_more_than_a_hundred_are_five_and_a_new_name_for_the_folder_is_none(tmp_path, embedder):
    folder, index = tmp_path / "many", create(tmp_path / "index", embedder)
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
    assert sum("is gone" in problem for problem in verify(index)) == 2
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
        ("dead.mp4", "a link to a file that is not there")
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
    index.store.drop_files(file["path"] for file in lost)
    added = index.add([folder])
    assert (added.embedded, added.moved, added.unchanged) == (0, 4, 5)
    assert all(file["duration"] > 0 for file in index.files()) and not verify(index)


def test_an_index_refuses_to_be_mixed(index, tmp_path, qwen2_folder, qwen3_folder, embedder):
    place = tmp_path / "index"
    for given, flag in (
        ({"budget": "128"}, "--budget"),
        ({"allocator": "content"}, "--allocator"),
        ({"segments": "3"}, "--segments"),
        ({"backbone": str(qwen2_folder)}, "--backbone"),
    ):
        with pytest.raises(SearchError, match=flag):
            VideoIndex.open(place, **given)
    other = AllocEmbed.from_pretrained(qwen2_folder, budget="64", candidates=4)
    with pytest.raises(SearchError, match="gives other vectors"):
        VideoIndex.open(place, embedder=other)
    VideoIndex.open(place, budget="64", allocator="uniform", backbone=str(qwen3_folder))
    with pytest.raises(SearchError, match="already"):
        create(place, embedder)
    with pytest.raises(SearchError, match="there is no index"):
        VideoIndex.open(tmp_path / "nowhere")
    with pytest.raises(SearchError, match="not an index and not empty"):
        create(tmp_path / "videos", embedder)


def test_a_read_only_index_is_searched_but_not_written(index, folder, monkeypatch):
    """Root may write anywhere, so the system's refusal is played."""
    write_video(folder / "new.mp4", 5)
    before = index.info()
    real = os.open

    def refuse(path, flags, *rest, **named):
        if str(path).endswith("indexing.lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SearchError, match="cannot be written"):
        index.add([folder])
    assert index.search("anything", top=3) and index.info() == before


def test_two_runs_do_not_index_at_once(index, folder):
    with index.store.locked(), pytest.raises(SearchError, match="another run is indexing"):
        VideoIndex.open(index.store.uri).add([folder])


def test_a_full_disk_is_said_and_loses_nothing(tmp_path, folder, embedder):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (disk / "filler").write_bytes(b"x" * _free(disk))
        with pytest.raises(SearchError, match=r"cannot make the index, .*: its disk is full: make room"):
            create(disk / "index", embedder)
        (disk / "filler").unlink()
        index = create(disk / "index", embedder)
        index.add([folder / "v0.mp4"])
        (disk / "filler").write_bytes(b"x" * (_free(disk) - 4096))
        with pytest.raises(SearchError, match="disk is full: make room"):
            index.add([folder])
        assert [Path(hit.path).name for hit in index.search("anything", top=5)] == ["v0.mp4"]
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert index.add([folder]).embedded == 8 and not verify(index)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def test_queries_without_end_or_content_are_refused(index):
    for bad, words in (("", "empty"), (" \n", "empty"), ("x" * 1_000_000, "1,000,000 characters")):
        with pytest.raises(SearchError, match=words):
            index.search(bad)
    assert len(index.search("ein Hündchen 🐕 \u202e 走る'; drop table videos; --", top=4)) == 4
    assert index.search("anything", min_score=1.0) == []
    scores = [hit.score for hit in index.search("anything", top=100)]
    assert len(scores) == 9 and scores == sorted(scores, reverse=True)


def test_an_example_finds_itself(index, folder):
    hit = index.search_like(folder / "v3.mp4", top=1)[0]
    assert Path(hit.path).name == "v3.mp4" and hit.score == pytest.approx(1, abs=1e-4)


def test_searches_while_indexing_see_whole_videos_only(index, folder, originals):
    for number in range(20, 32):
        write_video(folder / f"new{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    seen, reader = [], VideoIndex.open(index.store.uri, embedder=index.embedder)

    def ask(_) -> None:
        seen.append(len(reader.search("anything", top=50)))

    index.add([folder], progress=ask)
    assert seen[0] == 9 and seen == sorted(seen) and len(reader.search("anything", top=50)) == 21


def test_what_was_done_before_an_interrupt_is_kept(tmp_path, folder, embedder, monkeypatch):
    from allocembed.search import pipeline

    real = pipeline.embed_files

    def interrupted(*given, **how):
        for number, embedded in enumerate(real(*given, **how)):
            if number == 3:
                raise KeyboardInterrupt
            yield embedded

    index = create(tmp_path / "stopped", embedder)
    monkeypatch.setattr(pipeline, "embed_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.add([folder])
    assert len(index.files()) == 3
    monkeypatch.undo()
    assert index.add([folder]).embedded == 6


def test_windows_are_written_with_their_video_or_not_at_all(index, folder, monkeypatch):
    from allocembed.search import pipeline

    write_video(folder / "again.mp4", 280)

    def broken(*_):
        raise RuntimeError("a fault in the middle")
        yield

    monkeypatch.setattr(pipeline.segments, "read_windows", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        index.add([folder])
    assert index.info()["vectors"] == 11
    monkeypatch.undo()
    assert index.add([folder]).embedded == 1 and index.info()["vectors"] == 14


def test_the_vectors_are_the_same_however_many_read(embedder, originals):
    from allocembed.search.pipeline import embed_files

    made, paths = [], [str(path) for path in originals]
    for readers in (1, 3):
        found = {each.path: each.pieces for each in embed_files(embedder, paths, "3", readers=readers)}
        made.append([piece.vector for path in paths for piece in found[path]])
    assert len(made[0]) == len(originals) + 4 and np.allclose(made[0], made[1], atol=1e-5)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_export_holds_every_vector_with_its_file(index, tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    assert export(index, path) == 11
    if suffix == ".npz":
        saved = np.load(path)
        paths, vectors, numbers = saved["paths"], saved["vectors"], saved["number"]
    else:
        from pyarrow import parquet

        table = parquet.read_table(path).to_pydict()
        paths, vectors, numbers = table["path"], np.array(table["vector"]), table["number"]
    assert len(set(paths)) == 9 and vectors.shape == (11, 32) and sorted(numbers) == [0] * 9 + [1, 2]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    with pytest.raises(SearchError, match="must end in"):
        export(index, tmp_path / "out.txt")


def test_a_large_index_is_looked_up_and_searched_approximately(index, folder, monkeypatch):
    from allocembed.search import store

    exact = [hit.video for hit in index.search("anything", top=9)]
    monkeypatch.setattr(store, "LOOKUP_UP_TO", 5)
    monkeypatch.setattr(store, "EXACT_UP_TO", 5)
    write_video(folder / "new.mp4", [picture(5000 + frame) for frame in range(10)])
    assert index.add([folder]).embedded == 1
    assert {column for made in index.store.vectors.list_indices() for column in made.columns} == {"video", "vector"}
    assert set(exact) < {hit.video for hit in index.search("anything", top=10)}
    write_video(folder / "newer.mp4", [picture(6000 + frame) for frame in range(10)])
    assert index.add([folder]).embedded == 1
    assert len(index.search("anything", top=20)) == 11, "what came after the index was built is found, too"


def test_verify_names_what_is_wrong(index, folder):
    assert not verify(index)
    (folder / "v0.mp4").write_bytes(b"other")
    index.store.drop_videos([index.files()[1]["video"]])
    problems = verify(index)
    assert len(problems) == 2 and "has changed" in problems[0] and "missing" in problems[1]
    index.add([folder / "v1.mp4"])
    assert len(verify(index)) == 1
