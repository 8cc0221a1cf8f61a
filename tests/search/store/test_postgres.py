"""An index in PostgreSQL: what the server says, what is never printed, and the approximate index of wide vectors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pytest

from allocembed.errors import SearchError
from allocembed.files import FileEntry
from allocembed.search import VideoIndex
from allocembed.search.store import EmbeddedSegment, IndexStore, exists
from allocembed.search.store.postgres import PostgresStore
from allocembed.search.verify import verify
from allocembed.testing.stores import SETTINGS, entry, name_of, unit, whole_and_windows
from tests.clips import picture, write_video
from tests.command import run
from tests.postgres import new_schema


@pytest.fixture
def uri(postgres) -> str:
    return new_schema(postgres)


@pytest.fixture
def store(uri) -> PostgresStore:
    return PostgresStore.create(uri, SETTINGS)


def ask(uri: str, *commands: str) -> list[tuple]:
    """Run commands as the owner of the server, with {} for the schema of the index; the rows of the last one."""
    address, _, schema = uri.partition("&schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        for command in commands:
            rows = connection.execute(command.format(schema).encode())
        return rows.fetchall() if rows.description else []


def as_user(uri: str, user: str) -> str:
    return uri.replace("postgres@", f"{user}@")


@pytest.fixture
def guest(uri, store) -> str:
    """The address for a user who may look at the index and nothing else."""
    name = f"guest_{store._database.schema}"
    ask(uri, f"CREATE ROLE {name} LOGIN", f"GRANT USAGE ON SCHEMA {{}} TO {name}")
    ask(uri, f"GRANT SELECT ON ALL TABLES IN SCHEMA {{}} TO {name}")
    return as_user(uri, name)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (("/postgres?", "/nowhere?"), 'database "nowhere" does not exist'),
        (("postgres@", "nobody@"), 'role "nobody" does not exist'),
        (("host=", "host=/nowhere"), "no connection to PostgreSQL at .*: check the address, and that it runs"),
        (("?host=", "?nonsense=1&host="), "cannot read the address"),
    ],
)
def test_a_server_that_cannot_be_used_is_named_in_one_sentence_without_the_password(uri, change, cause):
    uri = uri.replace("postgres@", "postgres:sec%ret@" if change[0] == "?host=" else "postgres:secret@")
    wrong = uri.replace("postgres:", "nobody:") if "nobody" in change[1] else uri.replace(*change)
    for use in (exists, VideoIndex.open, PostgresStore.check_free):
        with pytest.raises(SearchError, match=cause) as caught:
            use(wrong)
        assert "ret" not in str(caught.value).replace("interpreted", "") and "\n" not in str(caught.value)


def test_a_password_is_never_shown(uri, postgres):
    secret = uri.replace("postgres@", "postgres:secret@")
    index = VideoIndex(PostgresStore.create(secret, SETTINGS), SETTINGS.config)
    assert index.store.uri == secret and index.info()["uri"] == uri
    with index.store.locked(), pytest.raises(SearchError) as caught, pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexStore, "patience", 0.0)
        with PostgresStore.open(secret).locked():
            pass
    assert uri in str(caught.value)
    done = run("index", "info", secret)
    assert done.returncode == 0 and "secret" not in done.stdout + done.stderr
    done = run("index", "rm", secret, "/nothing.mp4")
    assert done.returncode == 1 and "secret" not in done.stdout + done.stderr


def test_a_guest_may_search_and_is_told_that_he_may_not_write(guest, store):
    store.add_videos([(name_of(1), whole_and_windows(1))])
    store.put_files([entry("/a.mp4", name_of(1))])
    index = VideoIndex.open(guest)
    assert index.search_vector(unit(1))[0].path == "/a.mp4"
    with pytest.raises(SearchError, match=r"cannot be written, .*permission denied.*ask the owner of the schema"):
        index.remove(["/a.mp4"])
    with pytest.raises(SearchError, match="permission denied for database"):
        PostgresStore.create(guest + "2", SETTINGS)


def test_a_database_without_pgvector_gets_it_or_says_who_can_add_it(uri, postgres):
    ask(uri, "CREATE DATABASE bare", "CREATE ROLE plain LOGIN")
    bare = uri.replace("/postgres?", "/bare?")
    try:
        with pytest.raises(SearchError, match="has no pgvector: ask the owner of the database to run CREATE EXTENSION"):
            PostgresStore.create(as_user(bare, "plain"), SETTINGS)
        assert PostgresStore.create(bare, SETTINGS).count() == 0
    finally:
        ask(uri, "DROP DATABASE bare WITH (FORCE)", "DROP ROLE plain")


def test_a_schema_with_other_tables_is_left_alone(uri):
    ask(uri, "CREATE SCHEMA {}", "CREATE TABLE {}.files (mine text)")
    with pytest.raises(SearchError, match=r"is not empty: choose another one with \?schema=NAME"):
        PostgresStore.create(uri, SETTINGS)
    assert not exists(uri) and ask(uri, "SELECT count(*) FROM {}.files") == [(0,)]


def test_a_table_without_one_of_its_columns_is_named_when_the_index_is_opened(uri, store):
    ask(uri, "ALTER TABLE {}.files DROP COLUMN width")
    with pytest.raises(SearchError, match=r"the table files of the index at .* is damaged: make a new index"):
        VideoIndex.open(uri)


@pytest.mark.parametrize("there", [False, True])
def test_a_schema_that_was_there_before_stays(uri, there):
    if there:
        ask(uri, "CREATE SCHEMA {}")
    index = VideoIndex(PostgresStore.create(uri, SETTINGS), SETTINGS.config)
    assert index.discard_if_empty()
    assert bool(ask(uri, "SELECT 1 FROM pg_namespace WHERE nspname = '{}'")) == there


def test_a_run_whose_session_was_ended_writes_nothing_more_and_the_next_one_works(uri, store):
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid() AND datname = 'postgres'"
    )
    with store.locked():
        store.put_files([entry("/a.mp4")])
        ask(uri, end)
        with pytest.raises(SearchError, match=r"cannot be written, .*run the same command again"):
            store.put_files([entry("/b.mp4")])
    assert [file.path for file in store.files()] == ["/a.mp4"], "readers connect again"
    with store.locked():
        store.put_files([entry("/b.mp4")])
    assert store.file_count() == 2


@pytest.mark.parametrize("dim", [3, 2100, 4500])
def test_vectors_of_any_width_get_an_approximate_index_that_is_used(uri, dim, monkeypatch):
    monkeypatch.setattr(PostgresStore, "exact_up_to", 100)
    store = PostgresStore.create(uri, replace(SETTINGS, probe=(1.0, *[0.0] * (dim - 1))))
    vectors = np.random.default_rng(0).standard_normal((1500, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    store.add_videos(
        (name_of(n), [EmbeddedSegment(0, 0.0, 1.0, 1, 1, 1, vector=each)]) for n, each in enumerate(vectors)
    )
    store.tidy()
    used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE schemaname = '{}' AND indexrelname = 'near'"
    for number in range(0, 1500, 150):
        (video, score), *_ = store.nearest(vectors[number], 5)
        assert video == name_of(number) and score == pytest.approx(1.0, abs=1e-5)
    del store  # a session reports what it has used when it ends
    for _ in range(100):
        if ask(uri, "SELECT pg_sleep(0.05)", used)[0][0] >= 10:
            return
    pytest.fail("the approximate index was not used")


def test_texts_that_a_database_cannot_hold_cost_one_sign(store):
    store.put_files([FileEntry("/a.mp4", error="bad \0 byte")])
    assert store.files()[0].error == "bad  byte"


@pytest.mark.slow
def test_the_command_line_indexes_and_searches_a_database(uri, tmp_path, qwen3_folder):
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(3):
        write_video(videos / f"v{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    (videos / "v1.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\na needle\n")
    options = ["--backbone", qwen3_folder, "--budget", "64", "--candidates", "4"]
    done = run("index", videos, "--to", uri, *options)
    assert done.returncode == 0 and "3 embedded" in done.stderr, done.stderr
    assert "3 unchanged" in run("index", videos, "--to", uri).stderr
    assert [Path(line).name for line in run("index", "ls", uri).stdout.split()] == ["v0.mp4", "v1.mp4", "v2.mp4"]
    assert len(json.loads(run("search", uri, "a dog", "--json").stdout)) == 3
    (hit,) = json.loads(run("search", uri, "needle", "--said", "--longest", "60", "--json").stdout)
    assert hit["line"] == "a needle"
    assert run("index", "verify", uri).returncode == 0 and run("index", "dups", uri).returncode == 0
    assert run("index", "export", uri, "--out", tmp_path / "all.parquet").returncode == 0
    (videos / "v2.mp4").unlink()
    assert "1 removed" in run("index", videos, "--to", uri, "--prune").stderr
    assert run("index", "rm", uri, videos / "v0.mp4").returncode == 0
    assert json.loads(run("index", "info", uri, "--json").stdout)["videos"] == 1
    assert verify(VideoIndex.open(uri)) == []
