"""An index and videos in object storage: moto's server on this machine, and the same server with its conditions off."""

import json
import time

import numpy as np
import pytest

from allocembed.errors import SearchError, VideoError
from allocembed.files import find_videos
from allocembed.remote.objects import delete, list_objects, look, read, write
from allocembed.search import VideoIndex
from allocembed.search.said.subtitles import Line
from allocembed.search.store import TextSource
from allocembed.search.store.lance import lease
from allocembed.search.store.lance.lease import Lease, LeaseHeld, LeaseRecord
from allocembed.search.verify import verify
from tests.command import run
from tests.object_storage import proxy_of, request, upload


@pytest.fixture
def videos(bucket, object_server, originals) -> str:
    upload(object_server.port, originals[0].parent, f"{bucket.removeprefix('s3://')}/videos")
    return f"{bucket}/videos"


@pytest.fixture
def quick(monkeypatch) -> None:
    """Leases that end after a second."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)


def test_videos_in_a_bucket_get_the_same_vectors_in_an_index_in_a_bucket(bucket, videos, config, embedder, finished):
    index = VideoIndex.create(f"{bucket}/my.index", config, embedder=embedder)
    assert index.add([videos]).embedded == 9
    assert index.add([videos]).unchanged == 9
    local, remote = VideoIndex.open(finished), VideoIndex.open(f"{bucket}/my.index/", embedder=embedder)
    wanted = {file.path.rpartition("/")[2]: local.segments(file.video, "vector") for file in local.files()}
    for file in remote.files():
        found = remote.segments(file.video, "vector")
        expected = wanted.pop(file.path.rpartition("/")[2])
        assert [each.number for each in found] == [each.number for each in expected]
        assert all(np.array_equal(one.vector, two.vector) for one, two in zip(found, expected, strict=True))
    assert not wanted and verify(remote) == []
    assert remote.search("a dog")[0].path.startswith(videos)


def test_keys_that_no_client_accepts_do_not_hide_the_other_objects(bucket, object_server):
    name = bucket.removeprefix("s3://")
    for key in ("a/1.mp4", "a//2.mp4", "a/z.mp4", "b/../3.mp4", "c/%01.mp4", "d/4.mp4"):
        request(object_server.port, "PUT", f"/{name}/{key}", b"x")
    found, unread = find_videos([bucket])
    assert [file.path for file in found] == [f"{bucket}/a/1.mp4", f"{bucket}/a/z.mp4", f"{bucket}/d/4.mp4"]
    assert len(unread) == 3 and all("rename the object" in cause for cause in unread.values())
    with pytest.raises(OSError, match="rename the object"):
        look(f"{bucket}/a//2.mp4")


def test_objects_that_change_or_vanish_are_noticed(bucket, videos, config, embedder):
    index = VideoIndex.create(f"{bucket}/my.index", config, embedder=embedder)
    index.add([f"{videos}/v0.mp4", f"{videos}/v1.mp4"])
    content, _ = read(f"{videos}/v2.mp4")
    write(f"{videos}/v0.mp4", content)
    delete(f"{videos}/v1.mp4")
    assert len(verify(index)) == 2
    report = index.add([videos], prune=True)
    assert (report.embedded, report.moved, report.dropped) == (7, 1, 1)
    assert verify(index) == []
    assert index.remove([f"{videos}/v0.mp4"]) == 1


def test_a_server_that_ignores_conditions_is_refused_with_the_reason(
    bucket, object_server, config, embedder, monkeypatch
):
    for dropped in ("If-None-Match", "If-Match"):
        with proxy_of(object_server.port, dropped) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.variables["AWS_ENDPOINT_URL"])
            with pytest.raises(SearchError, match=rf"ignores the condition of a write \({dropped}\)"):
                VideoIndex.create(f"{bucket}/my.index", config, embedder=embedder)
            assert not list(list_objects(f"{bucket}/my.index"))


def test_a_second_run_is_refused_while_the_first_renews_its_lease(bucket, quick):
    first, second = Lease(f"{bucket}/x"), Lease(f"{bucket}/x")
    first.acquire()
    with pytest.raises(LeaseHeld, match="another run"):
        second.acquire()
    first.check()
    first.release()
    third = Lease(f"{bucket}/x")
    third.acquire()
    third.release()


def test_a_lease_that_nobody_renews_is_taken_over_after_its_time(bucket, quick):
    write(f"{bucket}/x/{lease.LEASE}", LeaseRecord("killed", "machine", time.time() + 1000).encode())
    begun, heir = time.monotonic(), Lease(f"{bucket}/x")
    heir.acquire()
    assert time.monotonic() - begun >= 1.0
    assert LeaseRecord.parse(read(f"{bucket}/x/{lease.LEASE}")[0]).owner == heir.owner
    heir.release()


def test_a_run_whose_lease_was_taken_writes_nothing_more(bucket, quick, config, embedder, originals):
    index = VideoIndex.create(f"{bucket}/my.index", config, embedder=embedder)
    with index.store.locked():
        write(f"{bucket}/my.index/{lease.LEASE}", LeaseRecord("somebody", "else", time.time() + 9).encode())
        time.sleep(0.6)
        with pytest.raises(SearchError, match=r"lease of the index .* was lost"):
            index.store.put_files(find_videos(originals)[0])
        with pytest.raises(SearchError, match=r"lease of the index .* was lost"):
            index.lines.add([(TextSource("a.mp4", "a.srt", "video", "id", 1), [Line(0.0, 1.0, "hello")])], known=())
    assert index.store.file_count() == 0 and index.lines.count() == 0 and not index.lines.sources()


def test_errors_of_object_storage_say_what_to_do(bucket, monkeypatch):
    with pytest.raises(SearchError, match=r"there is no index at s3://.*allocembed index"):
        VideoIndex.open(f"{bucket}/absent.index")
    with pytest.raises(SearchError, match="there is no bucket nothing-here"):
        VideoIndex.open("s3://nothing-here/my.index")
    with pytest.raises(VideoError, match="no such object or bucket"):
        from allocembed.video import open_video

        open_video(f"{bucket}/absent.mp4")
    with pytest.raises(VideoError, match="nothing below this address"):
        find_videos([f"{bucket}/absent"])
    monkeypatch.setattr("allocembed.remote.objects.RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(SearchError, match=r"http://127\.0\.0\.1:9 cannot be reached; check the network"):
        VideoIndex.open(f"{bucket}/my.index")


@pytest.mark.slow
def test_the_command_line_indexes_and_searches_a_bucket(bucket, videos, config, tmp_path):
    place, names = f"{bucket}/my.index", [f"{videos}/v0.mp4", f"{videos}/v1.mp4"]
    options = ["--backbone", config.backbone, "--budget", "64", "--candidates", "4"]
    assert run("index", *names, "--to", place, *options).returncode == 0
    assert run("index", "ls", place).stdout.split() == names
    assert len(json.loads(run("search", place, "a dog", "--folder", videos, "--json").stdout)) == 2
    assert run("index", "verify", place).returncode == 0
    assert "--watch needs folders" in run("index", videos, "--to", place, "--watch").stderr
    assert look(f"{place}/{lease.LEASE}")
    out = tmp_path / "vectors.jsonl"
    assert run("embed", videos, f"{videos}/no.mp4", "--recursive", "--out", out, *options).returncode == 1
    assert [json.loads(line)["source"] for line in out.read_text().splitlines()][:2] == names
