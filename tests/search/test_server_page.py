"""The server's answers to the page: its parts, posters, folders, clips, pictures to search by, and a browser."""

import io
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from urllib.parse import quote

import av
import numpy as np
import pytest
from PIL import Image

from allocembed.search import SearchError, VideoIndex
from allocembed.search.filters import Filters
from allocembed.video import DecodeLimits
from allocembed.video.images import decode_image
from tests.clips import picture, write_video

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("fastapi", reason="pip install 'allocembed[search]'")

from allocembed.search.web import answers, clips, server, uploads
from tests.served import serving

pytestmark = pytest.mark.slow  # whole servers
LINES = "1\n00:00:02,000 --> 00:00:04,000\nthe ferry leaves at noon\n\n2\n00:00:05,000 --> 00:00:06,000\nhurry up\n"


@pytest.fixture(scope="module")
def index(tmp_path_factory, config, embedder) -> VideoIndex:
    """Six short videos in two folders, and a long one with subtitles beside them."""
    folder = tmp_path_factory.mktemp("served") / "secret place"
    for number in range(6):
        place = folder / ("holidays/lake" if number % 2 else "work")
        place.mkdir(parents=True, exist_ok=True)
        write_video(place / f"v{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    write_video(folder / "long ü.mp4", 300)
    (folder / "long ü.srt").write_text(LINES)
    made = VideoIndex.create(folder.parent / "index", config, embedder=embedder)
    made.add([folder])
    return made


@pytest.fixture(scope="module")
def client(index):
    with serving(index) as made:
        yield made


@pytest.fixture
def long(index) -> str:
    return next(file.video for file in index.files() if "long" in file.path)


def jpeg(size: tuple[int, int] = (96, 72), kind: str = "JPEG") -> bytes:
    made = io.BytesIO()
    Image.fromarray(picture(37)).resize(size).save(made, format=kind)
    return made.getvalue()


def send(client, body: bytes | None, kind: str = "image/jpeg", query: str = "", **headers: str):
    return client.get(f"/api/search/image{query}", {"Content-Type": kind, **headers}, "POST", body)


def test_the_page_brings_its_own_parts_and_no_others(client):
    html = client.get("/").body.decode()
    for name in ("page.css", "page.js", "theme.js", "icon.svg"):
        assert f"/page/{name}" in html and client.get(f"/page/{name}").status == 200
    assert "http:" not in html and "https:" not in html and "<style" not in html
    for name in ("server.py", "..%2fserver.py", "%2fetc%2fpasswd", "index.html%00"):
        assert client.get(f"/page/{name}").status == 404


def test_the_poster_of_a_short_video_is_one_whole_frame(client, index):
    file = next(file for file in index.files() if file.path.endswith("v1.mp4"))
    strip, poster = (
        Image.open(io.BytesIO(client.get(f"/api/videos/{file.video}/{name}.jpg").body)) for name in ("film", "poster")
    )
    chunks = client.json(f"/api/videos/{file.video}")["film"]["chunks"]
    assert len(chunks) > 1 and poster.size == (strip.width // len(chunks), strip.height)
    assert abs(poster.width / poster.height - file.width / file.height) < 0.05
    assert client.get(f"/api/videos/{'0' * 32}/poster.jpg").status == 404


def test_folders_are_named_without_the_place_they_are_in(client):
    about = client.get("/api/info").body.decode()
    assert client.json("/api/info")["folders"] == ["holidays", "holidays/lake", "work"] and "secret" not in about
    hits = client.search("a dog", top=20)
    assert {hit["folder"] for hit in hits} == {"", "holidays/lake", "work"}
    assert len(client.search("a dog", folder="holidays")) == 3 and len(client.search("a dog", folder="work")) == 3
    for name in ("..", "/", "secret%20place", "work/..", "%2fetc"):
        reply = client.get(f"/api/search?q=a&folder={name}")
        assert reply.status == 400 and "there is no folder “" in reply.body.decode(), "only names from the list"


def test_filters_and_sentences_reach_the_search(client):
    everything = len(client.search("a dog", top=20))
    assert everything == 7
    assert [hit["path"] for hit in client.search("a dog", shortest=5)] == ["long ü.mp4"]
    assert len(client.search("a dog", longest=5)) == 6 and client.search("a dog", least_height=2160) == []
    assert [hit["path"] for hit in client.search("a dog", speech="true")] == ["long ü.mp4"]
    assert client.search("a dog", before="2001-01-01") == [] and len(client.search("a dog", after="2001-01-01")) == 7
    both = client.json("/api/search?q=a%20dog&q=a%20cat&not=a%20red%20house")
    alone = client.search("a dog")
    assert len(both) == 7 and both[0]["score"] != alone[0]["score"]
    for bad in ("after=yesterday", "shortest=-1", "longest=nan", "speech=perhaps", "not=", "&".join(["q=a"] * 9)):
        assert client.get(f"/api/search?q=a&{bad}").status in (400, 422), bad


def test_a_moment_is_looked_at_again_for_the_same_search(client, long):
    hit = next(hit for hit in client.search("a dog", said="false") if hit["video"] == long)
    closer = client.json(f"/api/videos/{long}/moment?query={hit['query']}")
    assert 0 <= closer["start"] < closer["end"] <= hit["duration"] and isinstance(closer["found"], bool)
    assert client.get(f"/api/videos/{long}/moment?query={'0' * 16}").status == 404
    assert client.get(f"/api/videos/{long}/moment?query=..%2f").status == 422
    assert client.get(f"/api/videos/{'0' * 32}/moment?query={hit['query']}").status == 404


def test_what_was_said_is_found_and_listed(client, long):
    found = client.search("when does the ferry leave", said="true")
    assert [hit["video"] for hit in found] == [long]
    assert found[0]["line"] == "the ferry leaves at noon" and found[0]["match"] == "said"
    assert [line["text"] for line in client.json(f"/api/videos/{long}/lines")] == [
        "the ferry leaves at noon",
        "hurry up",
    ]
    silent = next(hit["video"] for hit in client.search("a dog") if hit["video"] != long)
    assert client.json(f"/api/videos/{silent}/lines") == []
    assert client.get(f"/api/videos/{'0' * 32}/lines").status == 404


def test_a_clip_is_a_file_of_its_own_that_leaves_nothing_behind(client, long, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reply = client.get(f"/api/videos/{long}/clip?start=4&end=8")
    assert reply.status == 200 and list(tmp_path.iterdir()) == []
    assert reply.headers["Content-Disposition"] == f"attachment; filename*=utf-8''{quote('long ü')}-00m04s.mp4"
    with av.open(io.BytesIO(reply.body)) as clip:
        assert 3.5 < clip.duration / 1e6 < 9


def test_a_gif_is_a_picture_and_its_clip_is_all_of_it(tmp_path, config, embedder):
    frames = [Image.new("RGB", (64, 48), (25 * number, 80, 120)) for number in range(8)]
    frames[0].save(tmp_path / "moving ü.gif", save_all=True, append_images=frames[1:], duration=100)
    index = VideoIndex.create(tmp_path / "index", config, embedder=embedder)
    index.add([tmp_path / "moving ü.gif"])
    (file,), content = index.files(), (tmp_path / "moving ü.gif").read_bytes()
    with serving(index) as client:
        shown = client.get(f"/api/videos/{file.video}/file")
        assert shown.headers["Content-Type"] == "image/gif" and shown.body == content
        saved = client.get(f"/api/videos/{file.video}/clip?start=0&end=0.5")
        assert saved.status == 200 and saved.body == content
        assert saved.headers["Content-Disposition"] == f"attachment; filename*=utf-8''{quote('moving ü.gif')}"
        (tmp_path / "moving ü.gif").write_bytes(content + b"changed")
        assert client.get(f"/api/videos/{file.video}/clip?start=0&end=0.5").status == 410


@pytest.mark.parametrize(
    "times",
    ["start=5&end=5", "start=5&end=4", "start=99&end=100", "start=0&end=5000", "start=nan&end=5", "start=1", ""],
)
def test_impossible_clips_are_refused(client, long, times):
    assert client.get(f"/api/videos/{long}/clip?{times}").status in (400, 422)


def test_a_clip_that_would_be_huge_is_refused(client, long, monkeypatch):
    monkeypatch.setattr(clips, "LARGEST_CLIP", 1000)
    reply = client.get(f"/api/videos/{long}/clip?start=0&end=5")
    assert reply.status == 400 and b"choose a shorter moment" in reply.body


def test_a_changed_file_gives_no_clip(client, index, long, tmp_path):
    path = Path(index.files_of([long])[long].path)
    shutil.copy2(path, tmp_path / "kept")
    path.write_text("something else")
    try:
        assert client.get(f"/api/videos/{long}/clip?start=0&end=5").status == 410
    finally:
        shutil.copy2(tmp_path / "kept", path)


def test_an_error_is_told_to_visitors_without_folders_and_printed_whole(client, index, long, monkeypatch, capfd):
    def fail(source, start, end, folder, name):
        raise SearchError(f"cannot cut {source}: no space; check the space for {folder / name}")

    monkeypatch.setattr(clips, "cut", fail)
    path = Path(index.files_of([long])[long].path)
    reply = client.get(f"/api/videos/{long}/clip?start=0&end=5")
    assert reply.status == 400
    assert json.loads(reply.body)["detail"] == "cannot cut long ü.mp4: no space; check the space for clip"
    assert f"cannot cut {path}" in capfd.readouterr().err


def test_a_video_that_is_removed_while_it_is_asked_about_is_not_found(client, index, long, monkeypatch):
    monkeypatch.setattr(index, "segments", lambda video, *large: [])
    assert client.get(f"/api/videos/{long}").status == 404
    assert client.get(f"/api/videos/{long}/similar").status == 404


def test_a_closer_look_from_the_page_takes_seconds_at_most(client, long, monkeypatch):
    allowed = []
    monkeypatch.setattr(answers, "refine", lambda index, hits, vector, seconds: allowed.append(seconds) or hits)
    key = client.search("a dog", said="false")[0]["query"]
    assert client.json(f"/api/videos/{long}/moment?query={key}")["found"] is False
    assert allowed == [answers.LOOK_SECONDS] and answers.LOOK_SECONDS <= 10


def test_the_date_of_a_hit_is_that_of_the_copy_in_the_folder_asked_for(tmp_path, config, embedder):
    for place, changed in (("a", 1e9), ("b", 1.1e9)):
        (tmp_path / place).mkdir()
        write_video(tmp_path / place / "same.mp4", 10)
        os.utime(tmp_path / place / "same.mp4", (changed, changed))
    index = VideoIndex.create(tmp_path / "index", config, embedder=embedder)
    index.add([tmp_path / "a", tmp_path / "b"])
    filters = Filters("b", None, None, None, None, None, None)
    (hit,) = answers.Answers(index).search(answers.SearchRequest(("a dog",), (), filters, False, False, 5, None))
    assert (hit["folder"], hit["changed"]) == ("b", 1.1e9)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_a_picture_finds_videos(client, kind):
    hits = client.get(
        "/api/search/image?top=3&not=a%20dog", {"Content-Type": f"image/{kind}"}, "POST", jpeg(kind=kind.upper())
    )
    assert hits.status == 200 and hits.body.count(b'"video"') == 3


def test_a_picture_and_words_differ_from_the_picture_alone(client):
    alone, both = send(client, jpeg()), send(client, jpeg(), query="?q=a%20dog")
    assert alone.status == both.status == 200 and alone.body != both.body


def test_what_is_no_picture_is_refused_and_the_server_lives_on(client):
    assert send(client, jpeg(), "text/plain").status == 415
    assert send(client, jpeg(), "multipart/form-data; boundary=x").status == 415, "a form of another site could send it"
    assert send(client, b"GIF89a not a picture").status == 400
    assert send(client, jpeg()[:300]).status == 400
    assert send(client, b"").status == 400
    assert client.search("still there", top=1)


def test_a_picture_that_is_too_large_is_refused_before_it_is_read(client, monkeypatch):
    monkeypatch.setattr(uploads, "LARGEST_UPLOAD", 1000)
    assert send(client, jpeg((400, 300))).status == 413
    reply = send(client, iter([b"x" * 600] * 3))  # in parts, without a length
    assert reply.status == 413


@pytest.mark.parametrize("size", [(60_000, 60_000), (1, 50_000_000)])
def test_a_small_file_that_would_be_a_huge_picture_is_not_decoded(client, monkeypatch, size):
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    assert send(client, bomb, "image/png").status in (400, 413)


def test_a_large_photo_is_made_small_before_it_is_embedded():
    small = Image.open(io.BytesIO(uploads.shrink(jpeg((6000, 400)))))
    assert small.size == (2048, 137)
    assert uploads.shrink(jpeg()) == jpeg()


@pytest.mark.slow
def test_the_largest_picture_takes_little_more_than_its_pixels(tmp_path):
    Image.new("RGBA", (7000, 7000), (1, 2, 3, 4)).save(tmp_path / "large.png")
    script = (
        "import resource, sys; from allocembed.search.web.uploads import shrink\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "data = open(sys.argv[1], 'rb').read(); before = peak(); shrink(data); print(peak() - before)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "large.png")]
    grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 600, "megabytes: its pixels take 196, and twice as much while it is made small"


@pytest.mark.parametrize("side", [uploads.READ_SIDE - 8, uploads.READ_SIDE + 8])
def test_a_large_picture_has_the_colours_of_a_small_one(side):
    """Over white where it is transparent, and grey of 16 bits scaled."""
    for drawn, level in (
        (Image.new("RGBA", (side, 9), (0, 0, 0, 0)), 255),
        (Image.fromarray(np.full((9, side), 20_000, np.uint16)), 77),
    ):
        sent = io.BytesIO()
        drawn.save(sent, format="PNG")
        read = decode_image(io.BytesIO(uploads.shrink(sent.getvalue())), "sent", DecodeLimits())
        assert (read == level).all()


def test_too_many_uploads_get_a_503(index, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    monkeypatch.setattr(server, "shrink", lambda body: (entered.set(), leave.wait(30), body)[-1])
    monkeypatch.setattr(uploads, "UPLOADS", 1)
    with serving(index) as narrow:
        first = threading.Thread(target=send, args=[narrow, jpeg()])
        first.start()
        assert entered.wait(30)
        refused = send(narrow, jpeg())
        leave.set()
        first.join()
    assert refused.status == 503 and refused.headers["Retry-After"] == "1"


def test_a_score_is_called_strong_only_if_it_stands_out():
    import numpy as np

    from allocembed.search.match import ChanceLevel

    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(60, 64))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    class Store:
        def videos(self):
            return {f"{number:02}" for number in range(30)}

        def segments_of(self, chosen, large):
            segment = type("Segment", (), {})
            made = {}
            for video in chosen:
                made[video] = [segment(), segment()]
                for part, each in enumerate(made[video]):
                    each.vector = vectors[2 * int(video) + part].astype(np.float32)
            return made

    chance = ChanceLevel(type("Index", (), {"store": Store()})())
    best = vectors @ vectors[0]
    assert chance.words(vectors[0], [float(best[0])]) == ["strong"], "the vector itself"
    stranger = generator.normal(size=64)
    stranger /= np.linalg.norm(stranger)
    words = chance.words(stranger, sorted((vectors @ stranger).tolist(), reverse=True))
    assert "strong" not in words and words.count("weak") >= 58


@pytest.mark.parametrize("can", [True, False])
def test_a_browser_is_opened_when_the_page_is_ready(index, monkeypatch, capsys, can):
    opened = []
    monkeypatch.setattr(server._Server, "main_loop", lambda self: _wait(opened))
    monkeypatch.setattr("webbrowser.open", lambda address: (opened.append(address), can)[1])
    server.run(index, "127.0.0.1", 0, "a secret", show="?q=a+dog")
    assert opened[0].startswith("http://127.0.0.1:") and opened[0].endswith("/?token=a%20secret&q=a+dog")
    assert ("open the address yourself" in capsys.readouterr().err) is not can


async def _wait(opened: list) -> None:
    import asyncio

    while not opened:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
