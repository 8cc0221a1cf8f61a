"""The server, asked as browsers and as others ask: what it gives, and what it doesn't."""

import asyncio
import http.client
import json
import os
import shutil
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest

from allocembed.search import SearchError, VideoIndex
from tests.clips import picture, write_video

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("fastapi", reason="pip install 'allocembed[search]'")

from allocembed.search.web import connections
from tests.served import Client, serving

pytestmark = pytest.mark.slow  # whole runs, servers and command lines


@pytest.fixture(scope="module")
def index(tmp_path_factory, config, embedder) -> VideoIndex:
    folder = tmp_path_factory.mktemp("served")
    (folder / "videos").mkdir()
    for number in range(4):
        write_video(folder / "videos" / f"v{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    write_video(folder / "videos" / "long.mp4", 300)
    (folder / "secret.mp4").write_text("not indexed")
    made = VideoIndex.create(folder / "index", config, embedder=embedder)
    made.add([folder / "videos"])
    return made


@pytest.fixture(scope="module")
def client(index):
    with serving(index) as made:
        yield made


def video_id(index: VideoIndex, name: str) -> str:
    return next(file.video for file in index.files() if Path(file.path).name == name)


def test_a_search_gives_hits_without_folders(client, index):
    hits = client.search("a dog", top=3)
    assert len(hits) == 3 and all("/" not in hit["path"] for hit in hits)
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert [hit["video"] for hit in hits] == [hit.video for hit in index.search("a dog", top=3)]
    assert client.search("a dog", min_score=1) == []


def test_a_video_tells_where_its_tokens_went(client, index):
    about = client.json(f"/api/videos/{video_id(index, 'long.mp4')}")
    assert about["name"] == "long.mp4" and len(about["segments"]) == 2
    assert about["film"]["cost"] == sum(chunk["tokens"] for chunk in about["film"]["chunks"]) <= 64
    assert about["cost"] == about["film"]["cost"] + sum(segment["cost"] for segment in about["segments"])
    assert all(chunk["colour"].startswith("#") for chunk in about["film"]["chunks"])


def test_pictures_are_pictures(client, index):
    for name in ("film.jpg", "segments/1.jpg", "segments/2.jpg"):
        response = client.get(f"/api/videos/{video_id(index, 'long.mp4')}/{name}")
        assert response.status == 200 and response.body[:3] == b"\xff\xd8\xff"
    assert client.get(f"/api/videos/{video_id(index, 'long.mp4')}/segments/3.jpg").status == 404


def test_files_come_whole_or_by_range(client, index):
    path = f"/api/videos/{video_id(index, 'long.mp4')}/file"
    content = Path(next(file.path for file in index.files() if file.path.endswith("long.mp4"))).read_bytes()
    whole = client.get(path)
    assert whole.status == 200 and whole.body == content and whole.headers["Content-Type"] == "video/mp4"
    part = client.get(path, {"Range": "bytes=100-299"})
    assert part.status == 206 and part.body == content[100:300]
    assert client.get(path, {"Range": f"bytes={len(content) + 5}-"}).status == 416


def test_similar_videos_leave_out_the_one_asked_about(client, index):
    video = video_id(index, "v1.mp4")
    found = client.json(f"/api/videos/{video}/similar")
    assert len(found) == 4 and video not in {hit["video"] for hit in found}
    longer = client.json(f"/api/videos/{video}/similar?shortest=5")
    assert [hit["path"] for hit in longer] == ["long.mp4"]
    assert client.get(f"/api/videos/{video}/similar?folder=nowhere").status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.mp4",
        "/api/videos/../../secret.mp4/file",
        "/api/videos/..%2f..%2fsecret.mp4/file",
        "/api/videos/%2e%2e/%2e%2e/etc/passwd",
        "/api/videos/" + "0" * 32 + "/file",
        "/api/videos/' or 1=1 --/file".replace(" ", "%20"),
        "/api/videos/" + "A" * 32 + "/film.jpg",
        "/api/videos/" + "0" * 32 + "/segments/1.jpg",
        "/api/videos/%00/file",
        "//etc/passwd",
    ],
)
def test_no_path_leads_to_a_file_that_is_not_indexed(client, path):
    response = client.get(path)
    assert response.status in (404, 422), response.body
    assert b"not indexed" not in response.body and b"root:" not in response.body


@pytest.mark.parametrize(
    "path",
    [
        "/api/search",
        "/api/search?q=",
        "/api/search?q=%20%20",
        "/api/search?q=" + "x" * 2001,
        "/api/search?q=" + "x" * 1_000_000,
        "/api/search?q=a&top=0",
        "/api/search?q=a&top=1000000",
        "/api/search?q=a&min_score=nan",
        "/api/search?q=%3C%7Cvideo_pad%7C%3E",
    ],
)
def test_bad_queries_are_refused_and_the_server_lives_on(client, path):
    try:
        assert client.get(path).status in (400, 414, 422, 431)
    except (ConnectionError, OSError):
        assert len(path) > 100_000, "only a request beyond all measure may be hung up on"
    assert client.search("still there", top=1)


def test_any_unicode_is_a_query(client):
    for words in ("ein Hündchen", "走る犬", "🐕‍🦺", "a\u202eb", "'; drop table vectors; --", "<script>", "%00"):
        assert client.search(words, top=1)
    assert client.get("/api/search?q=%ff%fe").status in (200, 400)


def test_only_reading_is_allowed(client):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert client.get("/api/search?q=a", method=method).status == 405
    for method in ("GET", "PUT", "OPTIONS"):  # without OPTIONS, another site's page cannot send a picture
        assert client.get("/api/search/image", method=method).status == 405


def test_another_site_s_name_for_this_machine_is_refused(client):
    assert client.get("/api/info", {"Host": "evil.example"}).status == 400
    headers = client.get("/").headers
    assert "default-src 'none'" in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
    assert "unsafe-inline" not in headers["Content-Security-Policy"]


def test_a_token_is_asked_of_everyone(index):
    with serving(index, token="a secret ☃") as client:
        for path in ("/", "/page/page.js", "/api/info", "/api/search?q=a", "/openapi.json"):
            assert client.get(path).status == 401
            assert client.get(path, {"Authorization": "Bearer wrong"}).status == 401
        page = client.get("/?token=wrong")
        assert page.headers["Content-Type"].startswith("text/html") and b'name="token"' in page.body
        assert json.loads(client.get("/api/info").body)["detail"].startswith("a token is needed")
        first = client.get("/?token=a%20secret%20%E2%98%83")
        assert first.status == 200 and "HttpOnly" in first.headers["Set-Cookie"]
        cookie = first.headers["Set-Cookie"].split(";")[0]
        assert client.get("/api/search?q=a", {"Cookie": cookie}).status == 200
    with serving(index, token="secret") as client:
        assert client.get("/api/info", {"Authorization": "Bearer secret"}).status == 200


def test_others_are_let_in_with_a_token_only(index):
    from allocembed.search.web.server import run

    with pytest.raises(SearchError, match="--token"):
        run(index, "0.0.0.0", 0, None)


def test_the_docs_describe_every_endpoint(client):
    paths = json.loads(client.get("/openapi.json").body)["paths"]
    assert {"/api/search", "/api/info", "/api/videos/{video}", "/api/videos/{video}/file"} <= set(paths)
    for page in ("/docs", "/redoc"):
        assert client.get(page).status == 404, "FastAPI's pages would load scripts from elsewhere"


def test_a_file_that_is_gone_or_changed_is_not_served_and_hurts_nobody(client, index, tmp_path):
    path = Path(next(file.path for file in index.files() if file.path.endswith("v2.mp4")))
    video = video_id(index, "v2.mp4")
    shutil.copy2(path, tmp_path / "kept")
    path.unlink()
    gone = client.get(f"/api/videos/{video}/file")
    assert gone.status == 410 and b"index again with --prune to forget it" in gone.body
    path.write_text("something else")
    assert client.get(f"/api/videos/{video}/file").status == 410
    assert client.search("anything", top=5) and client.get(f"/api/videos/{video}/film.jpg").status == 200
    shutil.copy2(tmp_path / "kept", path)
    assert client.get(f"/api/videos/{video}/file").status == 200


def test_an_upload_that_is_broken_off_is_no_bug_of_the_server(client, caplog, capfd):
    head = (
        "POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"
    )
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", client.port))
        connection.send(head.encode() + b"abc")
        time.sleep(0.1)
        connection.close()
    time.sleep(0.3)
    assert client.search("still there", top=1)
    assert "Traceback" not in caplog.text + capfd.readouterr().err and "ClientDisconnect" not in caplog.text


def test_slow_readers_hold_nobody_up(client, index):
    path = f"/api/videos/{video_id(index, 'long.mp4')}/file"
    slow = []
    for _ in range(20):
        connection = socket.create_connection(("127.0.0.1", client.port))
        connection.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        slow.append(connection)
    half = socket.create_connection(("127.0.0.1", client.port))
    half.send(b"GET / HTTP/1.1\r\nHost: loc")
    assert client.search("still there", top=1)
    for connection in (*slow, half):
        connection.close()


def test_more_searches_than_the_line_holds_are_sent_away(client, index, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    real = index.search

    def slow(*words, **named):
        entered.set()
        leave.wait(60)
        return real(*words, **named)

    monkeypatch.setattr(index, "search", slow)
    with ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(client.get, "/api/search?q=a") for _ in range(24)]
        assert entered.wait(60)
        refused = [job for job in wait(asked, timeout=2).done if job.result().status == 503]
        leave.set()
        statuses = [job.result().status for job in asked]
    assert 1 <= len(refused) <= statuses.count(503) and statuses.count(200) >= 16 - 1
    assert Client(client.port).search("and on", top=1)


def connect(client: Client, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", client.port), timeout=20, source_address=(source, 0))
    made.sendall(sent)
    return made


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection within the timeout of the socket."""
    with suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


@pytest.mark.parametrize("count", [60, 300])
def test_idle_connections_shut_nobody_out(client, count):
    idle = [connect(client, b"GET / HTTP/1.1\r\nHost: loc" if number % 2 else b"") for number in range(count)]
    try:
        started = time.monotonic()
        for _ in range(5):
            assert client.search("still there", top=1)
        assert time.monotonic() - started < 10
    finally:
        for connection in idle:
            connection.close()


def test_a_connection_without_a_complete_request_is_closed_in_time(client, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    silent, half = connect(client), connect(client, b"GET / HTTP/1.1\r\nHost: loc")
    later = connect(client, b"GET /api/info HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert later.recv(65536).startswith(b"HTTP/1.1 200")
    later.sendall(b"GET /api/in")
    slow, started = connect(client, b"GET / HTTP/1.1\r\n"), time.monotonic()
    with suppress(ConnectionError):  # one header after another does not extend the time
        while time.monotonic() - started < 10:
            slow.sendall(b"X-More: 1\r\n")
            time.sleep(0.1)
    assert time.monotonic() - started < 5
    for connection in (silent, half, later):
        assert is_closed(connection)
        connection.close()
    slow.close()


@pytest.mark.parametrize("limit", ["PER_PEER", "CONNECTIONS"])
def test_a_peer_with_too_many_requests_in_progress_gets_a_503_and_later_an_answer(client, index, monkeypatch, limit):
    monkeypatch.setattr(connections, limit, 4)
    entered, leave = threading.Semaphore(0), threading.Event()
    real = index.info

    def slow():
        entered.release()
        leave.wait(60)
        return real()

    monkeypatch.setattr(index, "info", slow)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(client.get, "/api/info") for _ in range(4)]
        assert all(entered.acquire(timeout=30) for _ in asked)
        refused = client.get("/")
        address = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # others have one address of their own
        with connect(client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", address) as other:
            answer = other.recv(65536)
        leave.set()
        assert refused.status == 503 and refused.headers["Retry-After"] == "1"
        assert [job.result().status for job in asked] == [200] * 4, "requests in progress are answered"
    status = b"200" if limit == "PER_PEER" and sys.platform == "linux" else b"503"
    assert answer.startswith(b"HTTP/1.1 " + status), "a peer uses up its own places only"
    assert client.get("/").status == 200


def test_the_oldest_connection_that_never_had_a_request_gives_way_first(index, monkeypatch):
    monkeypatch.setattr(connections, "PER_PEER", 3)
    with serving(index) as client:
        used = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
        used.request("GET", "/api/info")
        assert used.getresponse().read()
        with connect(client) as first, connect(client) as second:
            assert client.get("/").status == 200
            first.settimeout(5)  # less than an idle connection may stay
            assert is_closed(first)
            second.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert second.recv(65536).startswith(b"HTTP/1.1 200")
            used.request("GET", "/api/info")
            assert used.getresponse().read()
        used.close()


async def ask(port: int, number: int) -> tuple[int, bytes]:
    """The status and the head of an answer; every fifth request is sent in pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = b"GET /api/info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    pieces = (request[:9], request[9:30], request[30:]) if number % 5 == 0 else (request,)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.3 * (len(pieces) - 1))
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[0].lower()


def test_500_clients_of_one_address_get_answers_or_are_told_to_try_again(client):
    async def all_at_once() -> list[tuple[int, bytes]]:
        async with asyncio.timeout(120):
            return await asyncio.gather(*(ask(client.port, number) for number in range(500)))

    answers = asyncio.run(all_at_once())  # a reset would raise
    assert {status for status, _ in answers} == {200, 503}
    assert all(b"retry-after: 1" in head for status, head in answers if status == 503)
    assert client.get("/").status == 200


def test_a_slow_request_is_told_so_and_the_answer_is_not_lost(client, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with connect(client, b"GET / HTTP/1.1\r\nHost: loc") as slow:
        assert slow.recv(65536).startswith(b"HTTP/1.1 408 ")
        slow.sendall(b"alhost\r\n\r\n")
        assert slow.recv(65536) == b"", "the connection ends, and is not reset"


def test_a_connection_that_is_over_both_limits_needs_one_place(client, monkeypatch):
    for limit in ("PER_PEER", "CONNECTIONS"):
        monkeypatch.setattr(connections, limit, 2)
    silent = [connect(client) for _ in range(2)]
    assert client.get("/").status == 200
    assert silent[0].recv(65536).startswith(b"HTTP/1.1 503 ")
    silent[1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert silent[1].recv(65536).startswith(b"HTTP/1.1 200 ")
    for connection in silent:
        connection.close()


def test_connections_that_are_turned_away_and_do_not_leave_are_limited_too(client, monkeypatch):
    monkeypatch.setattr(connections, "PER_PEER", 1)
    monkeypatch.setattr(connections, "LEAVING", 2)
    silent = [connect(client) for _ in range(4)]
    silent[0].settimeout(5)  # less than they may stay
    answer = b""
    with pytest.raises(ConnectionError):
        while True:
            answer += silent[0].recv(65536)
            silent[0].sendall(b"x")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert client.get("/").status == 200
    for connection in silent:
        connection.close()


def test_info_gives_no_folders(client, index):
    about = client.get("/api/info").body.decode()
    assert json.loads(about)["uri"] == Path(index.store.uri).name and str(Path(index.store.uri).parent) not in about
    assert "/" not in json.loads(about)["backbone"]


def test_only_names_of_this_machine_are_accepted_as_host(client):
    assert client.get("/api/info", {"Host": "testserver"}).status == 400
    assert client.get("/api/info", {"Host": "localhost"}).status == 200


def test_another_address_of_this_machine_is_accepted_where_it_is_served(index):
    with serving(index, host="127.0.0.2") as other:
        assert other.get("/api/info").status == 200
        assert other.get("/api/info", {"Host": "127.0.0.3"}).status == 400


def test_a_file_whose_content_changed_under_the_same_size_and_date_is_not_served(client, index):
    path = Path(next(file.path for file in index.files() if file.path.endswith("v3.mp4")))
    address, before, content = f"/api/videos/{video_id(index, 'v3.mp4')}/file", path.stat(), path.read_bytes()
    assert client.get(address).status == 200
    time.sleep(0.02)  # the clock of a file system may tick every 10 ms
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert client.get(address).status == 410
    path.write_bytes(content)  # with another date, but it is what was indexed
    assert client.get(address).status == 200
