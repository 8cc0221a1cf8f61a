"""The contract of an `IndexStore`, as tests to be inherited:

    from allocembed.testing.stores import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store_address(self, tmp_path) -> str:
            return f"myscheme://{tmp_path}/videos"

`store_address` gives each test a new address, at which nothing is yet. The store must be registered under its scheme
(`allocembed.stores`), and another process, which is killed in the middle of its commits, must be able to import it. No
model is needed. `pytest.register_assert_rewrite("allocembed.testing")` in a conftest.py explains failures.
"""

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allocembed.config import EmbedConfig
from allocembed.errors import SearchError
from allocembed.files import FileEntry, find_videos, fingerprint
from allocembed.search.duplicates import find_duplicates
from allocembed.search.export import export
from allocembed.search.filters import Filters, Rule
from allocembed.search.index import VideoIndex
from allocembed.search.said.subtitles import Line
from allocembed.search.said.words import words
from allocembed.search.settings import IndexSettings
from allocembed.search.store import (
    LARGE_COLUMNS,
    STORES,
    EmbeddedSegment,
    IndexBusy,
    IndexStore,
    TextSource,
    exists,
    place_of,
    store_of,
)
from allocembed.search.verify import verify

DIM = 16
SETTINGS = IndexSettings(EmbedConfig(backbone="contract", dim=DIM), probe=(1.0, *[0.0] * (DIM - 1)), inputs="contract")
ODD = ["/it's/a b.mp4", "/100%/ü\n.mp4", '/"q"/\\n_.mp4', "/videos/走れ 🙂.mp4", "s3://bucket/a.mp4", "/" + "x" * 3900]
VIDEOS_AT_ONCE, WINDOWS = 3, 4  # of a commit of the process that is killed
WRITER = """
import sys
import numpy as np
from allocembed.plugins import load_place
from allocembed.search.said.subtitles import Line
from allocembed.search.store import EmbeddedSegment, STORES, TextSource
from allocembed.testing.stores import VIDEOS_AT_ONCE, WINDOWS, entry, name_of, whole_and_windows

scheme, place, uri = sys.argv[1:]
STORES[scheme] = load_place(place)
store = STORES[scheme].open(uri)
with store.locked():
    print("locked", flush=True)
    for commit in range(10_000):
        numbers = range(VIDEOS_AT_ONCE * commit, VIDEOS_AT_ONCE * (commit + 1))
        names = [name_of(number) for number in numbers]
        store.add_videos((name, whole_and_windows(number, WINDOWS)) for name, number in zip(names, numbers))
        print("videos", commit, flush=True)
        store.put_files([entry(f"/killed/{name}.mp4", name) for name in names])
        print("files", commit, flush=True)
        source = TextSource(names[0], "inside", names[0], f"source {commit}", WINDOWS)
        store.lines.add([(source, [Line(float(n), n + 1.0, f"line {n}") for n in range(WINDOWS)])], known=())
        print("lines", commit, flush=True)
"""


def name_of(number: int) -> str:
    """A fingerprint."""
    return f"{number:016x}{number:016x}"


def unit(number: int) -> np.ndarray:
    """A random direction (DIM,)."""
    vector = np.random.default_rng(number).standard_normal(DIM).astype(np.float32)
    return vector / np.linalg.norm(vector)


def whole_and_windows(number: int, windows: int = 0) -> list[EmbeddedSegment]:
    """A video and its windows, each with all that a store keeps."""
    return [
        EmbeddedSegment(
            part, part / 3, part + 1.5, 7, 8, 9, {"ü": [part, None]}, bytes([part, 0, 255]), unit(number + 1000 * part)
        )
        for part in range(windows + 1)
    ]


def entry(path: str, video: str = "", **values: object) -> FileEntry:
    """A file."""
    return replace(FileEntry(path, video, 5, 10**18, 4.0, 640, 360), **values)


def meets(file: FileEntry, rule: Rule) -> bool:
    """The meaning of a rule."""
    value, limit = getattr(file, rule.column), rule.value
    if rule.operator == "starts with":
        return str(value).startswith(str(limit))
    return {"<": value < limit, "<=": value <= limit, ">=": value >= limit}[rule.operator]


def killed_writer(uri: str, log: Path, seconds: float) -> str:
    """Let another process commit to an index, kill it some seconds after its first commit; return what it has said."""
    kind = store_of(uri)
    scheme = next(name for name in STORES if STORES[name] is kind)
    command = [sys.executable, "-c", WRITER, scheme, f"{kind.__module__}:{kind.__qualname__}", uri]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with log.open("w") as output, subprocess.Popen(command, stdout=output, env=environment) as process:
        deadline = time.monotonic() + 120
        while "videos" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, "the writer has failed"
            time.sleep(0.01)
        time.sleep(seconds)
        process.kill()
    return log.read_text()


class StoreContract:
    """Inherit it, and say where a new index may be."""

    @pytest.fixture
    def store_address(self) -> str:
        raise NotImplementedError("give a fixture store_address")

    @pytest.fixture
    def uri(self, store_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(IndexStore, "patience", 0.0)
        return place_of(store_address)

    @pytest.fixture
    def store(self, uri: str) -> IndexStore:
        return store_of(uri).create(uri, SETTINGS)

    @pytest.fixture
    def index(self, store: IndexStore) -> VideoIndex:
        """Thirty videos with three windows each, every third with lines."""
        with store.locked():
            store.add_videos((name_of(number), whole_and_windows(number, 3)) for number in range(30))
            store.put_files([entry(f"/videos/{number:02}.mp4", name_of(number)) for number in range(30)])
            for number in range(0, 30, 3):
                self.say(store, number, "a needle" if number == 9 else "hay and straw", f"number{number}")
        return VideoIndex(store, store.settings.config)

    def say(self, store: IndexStore, number: int, *texts: str) -> TextSource:
        """Add lines to a video, one every two seconds."""
        name, lines = name_of(number), [Line(2.0 * at, 2.0 * at + 1, text) for at, text in enumerate(texts)]
        source = TextSource(name, "inside", name, f"{name} {hash(texts)}", len(lines))
        store.lines.add([(source, lines)], known=store.lines.ids())
        return source

    # ---- places and settings

    def test_an_index_is_made_opened_and_discarded(self, uri: str) -> None:
        kind = store_of(uri)
        assert not exists(uri)
        with pytest.raises(SearchError, match=r"there is no index at .*allocembed index"):
            kind.open(uri)
        kind.check_free(uri)
        made = kind.create(uri, SETTINGS)
        assert exists(uri) and kind.open(uri).settings == SETTINGS == made.settings
        with pytest.raises(SearchError, match="already an index"):
            kind.create(uri, SETTINGS)
        with pytest.raises(SearchError, match="already an index"):
            kind.check_free(uri)
        with made.locked():
            made.discard()
        assert not exists(uri)
        assert kind.create(uri, SETTINGS).count() == 0, "its place is free again"

    def test_an_empty_index_answers_everything(self, store: IndexStore) -> None:
        assert store.files() == [] == store.nearest(unit(0), 5) == store.lines.find(["word"], 5)
        assert store.videos() == set() == store.lines.videos() == store.lines.ids()
        assert store.segments() == {} == store.files_at(["/a"]) == store.segments_of([]) == store.lines.counts()
        assert store.whole_vectors()[1].shape == (0, DIM) and store.lines.sources() == []
        assert not any(store.totals().values())
        with store.locked():
            store.tidy()
            store.lines.tidy()
            assert store.drop_doubles() == 0
            store.add_videos([])
            store.put_files([])
            store.drop_files([])
            store.drop_videos([])

    # ---- rows

    def test_segments_come_back_as_they_were_added(self, uri: str, store: IndexStore) -> None:
        made = {name_of(number): whole_and_windows(number, number) for number in (0, 3, 12)}
        store.add_videos(made.items())
        store = store_of(uri).open(uri)
        for found in (store.segments(LARGE_COLUMNS), store.segments_of([*made, name_of(99)], LARGE_COLUMNS)):
            assert found.keys() == made.keys()
            for video, segments in made.items():
                for one, two in zip(segments, found[video], strict=True):
                    assert {**vars(one), "vector": None} == {**vars(two), "vector": None}
                    assert two.vector.dtype == np.float32 and np.array_equal(one.vector, two.vector)
        (small, *_) = store.segments()[name_of(3)]
        assert (small.film, small.picture, small.vector.size) == ({}, b"", 0)
        assert store.picture(name_of(3), 2) == bytes([2, 0, 255]) and store.picture(name_of(3), 9) is None
        assert store.videos() == made.keys() and store.known_videos([*made, "x"]) == made.keys()
        videos, vectors = store.whole_vectors()
        assert set(videos) == made.keys() and vectors.dtype == np.float16 and vectors.shape == (3, DIM)
        assert store.whole_vectors([name_of(3), "x"])[0] == [name_of(3)] and store.count() == 18
        store.drop_videos([name_of(12), "x"])
        assert store.videos() == {name_of(0), name_of(3)}

    def test_files_are_added_replaced_and_dropped(self, uri: str, store: IndexStore) -> None:
        files = {path: entry(path, name_of(number)) for number, path in enumerate(ODD)}
        files["/bad.mp4"] = FileEntry("/bad.mp4", "", 2**40, -1, error='it\'s not a video; "mend" it\n%s')
        store.add_files(list(files.values()))
        changed = replace(files[ODD[0]], video=name_of(77), changed=2**62, duration=1e-3)
        store.put_files([changed, entry("/new.mp4", name_of(1))])
        files |= {changed.path: changed, "/new.mp4": entry("/new.mp4", name_of(1))}
        store = store_of(uri).open(uri)
        assert {file.path: file for file in store.files()} == files and store.file_count() == len(files)
        assert store.files_at([*ODD, "/none"]) == {path: files[path] for path in ODD}
        assert {file.path for file in store.files_of([name_of(1), ""])} == {ODD[1], "/new.mp4"}, "none with an error"
        store.drop_files([*ODD, "/none"])
        assert {file.path for file in store.files()} == {"/bad.mp4", "/new.mp4"}

    def test_thousands_of_names_are_asked_for_at_once(self, store: IndexStore) -> None:
        names = [name_of(number) for number in range(2500)]
        store.add_videos((name, whole_and_windows(number)) for number, name in enumerate(names))
        store.put_files([entry(f"/{name}.mp4", name) for name in names])
        assert store.known_videos(names) == set(names) == store.segments_of(names).keys()
        assert len(store.files_at(f"/{name}.mp4" for name in names)) == 2500 == len(store.files_of(names))
        store.drop_videos(names[:2400])
        store.drop_files(f"/{name}.mp4" for name in names[:2400])
        assert store.count() == 100 == store.file_count()

    def test_totals_add_up_without_loading_rows(self, index: VideoIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        index.store.put_files([FileEntry("/bad.mp4", error="bad")])
        for name in ("files", "segments"):
            monkeypatch.setattr(index.store, name, lambda *_: pytest.fail("all rows were loaded"))
        totals = {"videos": 30, "files": 30, "failed": 1, "vectors": 120, "seconds": 120.0, "tokens": 840}
        assert index.store.totals() == totals
        assert index.info().items() >= {**totals, "lines": 20, "segments": "auto"}.items()

    # ---- filters

    @pytest.mark.parametrize(
        "values",
        [
            {"folder": "/it's"},
            {"folder": "/100%"},
            {"folder": "/_ideos"},
            {"folder": "s3://bucket"},
            {"after": "2001-01-01"},
            {"before": "2001-01-01T12:00"},
            {"shortest": 4.0},
            {"longest": 3.5},
            {"least_height": 360},
            {"folder": "/videos", "after": "1678-01-01", "before": "2261-12-31", "longest": 1e9, "least_height": 100},
        ],
        ids=str,
    )
    def test_filters_mean_their_rules(self, store: IndexStore, values: dict[str, object]) -> None:
        source = random.Random(0)
        files = [
            entry(
                f"{path}/{number}.mp4",
                name_of(100 * number + place),
                changed=source.choice([10**18, 9 * 10**17, -(10**17)]),
                duration=source.choice([3.0, 3.5, 4.0]),
                width=source.choice([640, 360, 200]),
                height=source.choice([640, 360, 359]),
                error=source.choice(["", "", "bad"]),
            )
            for place, path in enumerate(["/it's", "/it's/deep", "/it", "/100%", "/1000", "/videos", "s3://bucket/x"])
            for number in range(12)
        ]
        store.put_files(files)
        filters = Filters(**values)  # pyright: ignore[reportArgumentType]
        wanted = {each.video for each in files if not each.error and all(meets(each, rule) for rule in filters.rules())}
        assert store.matching(filters) == wanted and len(wanted) < len(files)
        every = [file.video for file in files]
        assert {file.video for file in store.files_of(every, filters)} == wanted

    # ---- nearest

    def test_the_nearest_are_found_exactly(self, index: VideoIndex) -> None:
        query = unit(12345)
        parts = index.store.segments(("vector",))
        scores = {(video, each.number): float(each.vector @ query) for video in parts for each in parts[video]}
        order = sorted(scores, key=lambda key: -scores[key])
        found = index.store.nearest(query, 40)
        assert [video for video, _ in found] == [video for video, _ in order[:40]]
        assert np.allclose([score for _, score in found], [scores[key] for key in order[:40]], atol=1e-4)
        among = {video for video, _ in order[60:70]}
        wanted = [video for video, _ in order if video in among]
        assert [video for video, _ in index.store.nearest(query, 1000, among=among, share=0.3)] == wanted
        assert index.store.nearest(query, 5, among=set()) == []

    def test_a_large_index_finds_nearly_all_of_the_nearest(self, store: IndexStore, monkeypatch) -> None:
        monkeypatch.setattr(type(store), "exact_up_to", 500)
        with store.locked():
            store.add_videos((name_of(number), whole_and_windows(number)) for number in range(2000))
            store.put_files([entry(f"/{number % 50}/{number}.mp4", name_of(number)) for number in range(2000)])
            store.tidy()
            late = [(name_of(number), whole_and_windows(number)) for number in range(2000, 2050)]
            store.add_videos(late)
            store.put_files([entry(f"/late/{number}.mp4", name_of(number)) for number in range(2000, 2050)])
            store.tidy()
        vectors, index = np.stack([unit(number) for number in range(2050)]), VideoIndex(store, SETTINGS.config)
        hits = total = 0
        for query in (unit(5000 + number) for number in range(20)):
            best = {name_of(int(number)) for number in np.argsort(-(vectors @ query))[:10]}
            hits += len(best & {hit.video for hit in index.search_vector(query, top=10)})
            total += 10
            inside = range(0, 2000, 50)  # one folder of forty videos: few, and anywhere
            (first,) = index.search_vector(query, top=1, filters=Filters(folder="/0"))
            assert first.video == name_of(max(inside, key=lambda number: vectors[number] @ query))
        assert hits >= 0.9 * total
        assert all(index.search_vector(each[0].vector, top=1)[0].video == video for video, each in late)

    # ---- what was said

    def test_lines_are_found_by_their_words_in_any_script(self, store: IndexStore) -> None:
        texts = (
            "走れメロス!",
            "die TÜR ist offen",
            "it's a bus",
            "हिन्दी की किताब",
            "interest rates rise",
            "我们去北京",
        )
        source = self.say(store, 1, *texts)
        assert store.lines.lines_of(name_of(1)) == [Line(2.0 * n, 2.0 * n + 1, text) for n, text in enumerate(texts)]
        for text, query in zip(texts, ("メロス", "tur", "bus", "किताब", "rate", "北京"), strict=True):
            (found, *_) = store.lines.find(words(query), 5)
            assert (found.text, found.video, found.words) == (text, name_of(1), " ".join(words(text))), query
        assert store.lines.find(["elephant"], 5) == [] == store.lines.find(["bu"], 5) == store.lines.find([], 5)
        assert store.lines.sources() == [source] and store.lines.counts() == {source.source: 6}
        assert store.lines.count() == 6 and store.lines.videos() == {name_of(1)}

    def test_the_most_relevant_lines_come_first(self, store: IndexStore) -> None:
        for number in range(20):
            self.say(store, number, "the common word again", "a rare common pair" if number == 7 else "common")
        found = store.lines.find(["rare", "common"], 50)
        assert found[0].text == "a rare common pair" and len(found) == 40
        assert [line.relevance for line in found] == sorted((line.relevance for line in found), reverse=True)
        assert {line.video for line in store.lines.find(["common"], 50, among={name_of(3)})} == {name_of(3)}
        assert len(store.lines.find(["common"], 3)) == 3 and store.lines.find(["common"], 3, among=set()) == []

    def test_sources_are_replaced_and_swept(self, store: IndexStore) -> None:
        path, name = "/videos/a.mp4", name_of(1)
        store.put_files([entry(path, name)])
        old, new = (TextSource(path, "/videos/a.srt", name, each, 1, 3, 4) for each in ("old", "new"))
        inside, other = self.say(store, 1, "from the stream"), self.say(store, 2, "of no file")
        store.lines.add([(old, [Line(0.0, 1.0, "before")])], known=())
        store.lines.add([(new, [Line(0.0, 1.0, "after")])], known=())
        assert set(store.lines.sources()) == {new, inside, other} and store.lines.ids() >= {"old", "new"}
        store.lines.sweep(store.files())
        assert set(store.lines.sources()) == {new, inside} and store.lines.find(["before"], 5) == []
        assert store.lines.counts() == {"new": 1, inside.source: 1}
        store.lines.add([(replace(new, size=9), [Line(0.0, 1.0, "after")])], known={"new"})
        assert store.lines.counts()["new"] == 1, "known lines are not added again"
        store.lines.drop_sources([new.key])
        store.lines.drop_lines(["new"])
        assert store.lines.sources() == [inside] and store.lines.count() == 1

    # ---- through VideoIndex

    def test_pictures_and_words_are_searched_together(self, index: VideoIndex, tmp_path: Path) -> None:
        query = unit(4)
        assert index.search_vector(query, top=3)[0].video == name_of(4)
        assert {hit.video for hit in index.search("needle", vector=query, top=2)} == {name_of(4), name_of(9)}
        (hit,) = index.search("needle", said=True)
        assert (hit.video, hit.line, hit.line_start) == (name_of(9), "a needle", 0.0)
        assert index.search("needle", said=True, filters=Filters(speech=False)) == []
        spoken = index.search_vector(query, top=30, filters=Filters(speech=True))
        assert {hit.video for hit in spoken} == {name_of(number) for number in range(0, 30, 3)}
        assert not index.discard_if_empty() and find_duplicates(index) == []
        assert export(index, tmp_path / "all.npz") == 120
        index.store.add_videos([(name_of(99), whole_and_windows(4))])
        index.store.put_files([entry("/copy.mp4", name_of(99), width=9999)])
        assert [[Path(each.file.path).name for each in group] for group in find_duplicates(index)] == [
            ["copy.mp4", "04.mp4"]
        ]
        assert index.search_vector(query, top=1, dedupe=True)[0].copies == 1
        assert index.remove(["/videos/04.mp4"]) == 1 and name_of(4) not in index.store.videos()

    def test_several_threads_search_at_once(self, index: VideoIndex) -> None:
        def search(number: int) -> bool:
            (hit,) = index.search(f"number{number}", said=True, top=1)
            return hit.video == name_of(number) == index.search_vector(unit(number), top=1)[0].video

        with ThreadPoolExecutor(6) as threads:
            assert all(threads.map(search, [*range(0, 30, 3)] * 4))

    # ---- one writer, many readers

    def test_a_second_writer_is_refused_and_readers_are_not(self, uri: str, index: VideoIndex) -> None:
        other = store_of(uri).open(uri)
        with index.store.locked():
            with pytest.raises(IndexBusy, match="another run"), other.locked():
                pytest.fail("two writers")
            index.store.add_videos([(name_of(50), whole_and_windows(50))])
            index.store.put_files([entry("/50.mp4", name_of(50))])
            assert other.nearest(unit(50), 1)[0][0] == name_of(50), "readers see what was committed last"
            other.add_videos([(name_of(51), whole_and_windows(51))])  # as workers do, whose driver holds the lock
        with other.locked():
            assert other.known_videos([name_of(50), name_of(51)]) == {name_of(50), name_of(51)}

    def test_the_files_of_a_moment_stay_what_they_were(self, index: VideoIndex) -> None:
        before = index.store.as_of_now()
        index.store.put_files([entry("/new.mp4", name_of(1)), entry("/videos/00.mp4", name_of(1), size=77)])
        index.store.drop_files(["/videos/01.mp4"])
        assert before.file_count() == 30 == len(before.files_at(f"/videos/{number:02}.mp4" for number in range(99)))
        assert before.files_at(["/videos/00.mp4", "/new.mp4"]).popitem()[1].size == 5
        assert index.store.file_count() == 30 and index.store.files_at(["/videos/00.mp4"]).popitem()[1].size == 77

    def test_content_that_two_processes_have_added_is_left_once(self, store: IndexStore) -> None:
        added = (name_of(1), whole_and_windows(1, 3))
        with store.locked():
            store.add_videos([added, (name_of(2), whole_and_windows(2))])
            store.add_videos([added])
            doubles = store.drop_doubles()
            assert doubles in (0, 4) and store.drop_doubles() == 0
        assert [each.number for each in store.segments()[name_of(1)]] == [0, 1, 2, 3] and store.count() == 5

    @pytest.mark.slow
    def test_a_killed_writer_leaves_whole_commits_and_no_lock(
        self, uri: str, store: IndexStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(IndexStore, "patience", 30.0)
        source, reader = random.Random(1), store_of(uri).open(uri)
        for _ in range(3):
            said = killed_writer(uri, tmp_path / "said", source.uniform(0.0, 0.6))
            done = {what: VIDEOS_AT_ONCE * said.count(f"{what} ") for what in ("videos", "files")}
            stored = reader.segments()
            assert all([each.number for each in stored[video]] == list(range(WINDOWS + 1)) for video in stored)
            assert len(stored) % VIDEOS_AT_ONCE == 0 == reader.file_count() % VIDEOS_AT_ONCE
            assert stored.keys() >= {name_of(number) for number in range(done["videos"])} and done["videos"]
            assert reader.file_count() >= done["files"]
            assert set(reader.lines.counts().values()) <= {WINDOWS}, "no source has a part of its lines"
            with reader.locked():  # nobody holds it any more
                reader.drop_videos(stored)
                reader.drop_files([file.path for file in reader.files()])
                reader.lines.sweep([])
            assert not any(reader.totals().values()) and reader.lines.count() == 0

    # ---- damage

    def test_what_is_missing_is_found_by_verify(self, store: IndexStore, tmp_path: Path) -> None:
        for name in "abc":
            (tmp_path / f"{name}.mp4").write_bytes(name.encode())
        files = [replace(each, video=fingerprint(each.path), width=1) for each in find_videos([tmp_path])[0]]
        with store.locked():
            store.put_files(files)
            store.add_videos((file.video, whole_and_windows(number, 1)) for number, file in enumerate(files))
            source = TextSource(files[0].video, "inside", files[0].video, "id", 1)
            store.lines.add([(source, [Line(0.0, 1.0, "said")])], known=())
        index = VideoIndex(store, SETTINGS.config)
        assert verify(index) == []
        store.drop_videos([files[1].video])
        store.lines.drop_lines(["id"])
        (tmp_path / "c.mp4").write_bytes(b"other")
        missing, changed, lines = verify(index)
        assert "b.mp4: its vectors are missing" in missing and "c.mp4: the file has changed" in changed
        assert "0 of its 1 lines are there" in lines
        store.add_videos([(files[1].video, whole_and_windows(1, 1))])
        store.lines.add([(source, [Line(0.0, 1.0, "said")])], known=())
        assert [problem for problem in verify(index) if "c.mp4" not in problem] == []
