"""The server for agents, asked by the client of its own SDK: what it gives, and what it refuses."""

import base64
import io
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from PIL import Image

from allocembed.errors import BackboneError
from allocembed.search import VideoIndex
from tests import command
from tests.clips import picture, write_video

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("mcp", reason="pip install 'allocembed[mcp]'")

from mcp import Client, StdioServerParameters, stdio_client

from allocembed.search import agents
from allocembed.search.agents import make_server
from allocembed.search.said.subtitles import Line

TOOLS = {"search", "similar", "moment", "transcript", "frame"}
SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\nthe rocket starts\n\n2\n00:00:09,000 --> 00:00:10,000\nit lands\n"


@pytest.fixture(scope="module")
def index(tmp_path_factory, config, embedder) -> VideoIndex:
    folder = tmp_path_factory.mktemp("agents")
    (folder / "videos").mkdir()
    for number in range(3):
        write_video(folder / "videos" / f"v{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    write_video(folder / "videos" / "long.mp4", 300)
    (folder / "videos" / "long.srt").write_text(SUBTITLES)
    shutil.copy(folder / "videos" / "v0.mp4", folder / "secret.mp4")
    with (folder / "secret.mp4").open("ab") as file:
        file.write(b"other content")
    made = VideoIndex.create(folder / "index", config, embedder=embedder)
    made.add([folder / "videos"])
    return made


def video_id(index: VideoIndex, name: str) -> str:
    return next(file.video for file in index.files() if Path(file.path).name == name)


def ask(index: VideoIndex, *calls: tuple[str, dict]) -> list:
    """The results of calls, in one session."""

    async def session() -> list:
        async with Client(make_server(index)) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(session)


def refusal(index: VideoIndex, name: str, **arguments: object) -> str:
    (result,) = ask(index, (name, arguments))
    assert result.is_error, f"{name} {arguments} was answered"
    assert len(result.content) == 1 and result.content[0].type == "text"
    return result.content[0].text


def test_all_tools_are_there_described_and_read_only(index):
    async def session() -> list:
        async with Client(make_server(index)) as client:
            return (await client.list_tools()).tools

    tools = anyio.run(session)
    assert {tool.name for tool in tools} == TOOLS
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools)


def test_a_search_gives_what_the_index_gives_without_folders(index):
    found, near = ask(
        index, ("search", {"query": "a dog", "top": 2, "said": False}), ("search", {"query": "a dog", "longest": 2})
    )
    hits = index.search("a dog", top=2, said=False)
    assert [(hit["video"], hit["name"]) for hit in found.structured_content["result"]] == [
        (hit.video, Path(hit.path).name) for hit in hits
    ]
    assert "/" not in json.dumps(found.structured_content)
    assert {hit["name"] for hit in near.structured_content["result"]} == {"v0.mp4", "v1.mp4", "v2.mp4"}


def test_similar_videos_are_found_without_the_video_itself(index):
    video = video_id(index, "v1.mp4")
    (found,) = ask(index, ("similar", {"video": video, "top": 9}))
    assert len(found.structured_content["result"]) == 3
    assert video not in {hit["video"] for hit in found.structured_content["result"]}


def test_a_moment_has_its_times_and_words_and_a_transcript_all_of_them(index):
    video = video_id(index, "long.mp4")
    late, whole, rest, none = ask(
        index,
        ("moment", {"video": video, "second": 9.5}),
        ("transcript", {"video": video}),
        ("transcript", {"video": video, "start": 5}),
        ("transcript", {"video": video_id(index, "v0.mp4")}),
    )
    moment = late.structured_content
    assert 0 < moment["start"] <= 9.5 <= moment["end"] and moment["name"] == "long.mp4"
    assert [line["text"] for line in moment["lines"]] == ["it lands"]
    assert [line["text"] for line in whole.structured_content["lines"]] == ["the rocket starts", "it lands"]
    assert [line["text"] for line in rest.structured_content["lines"]] == ["it lands"]
    assert none.structured_content["lines"] == []


def test_what_is_said_is_found(index):
    (found,) = ask(index, ("search", {"query": "rocket", "said": True}))
    (hit,) = found.structured_content["result"]
    assert (hit["name"], hit["line"]) == ("long.mp4", "the rocket starts")


def test_a_frame_is_the_picture_at_that_time(index):
    video, path = video_id(index, "long.mp4"), next(f.path for f in index.files() if f.path.endswith("long.mp4"))
    results = ask(index, *(("frame", {"video": video, "second": second}) for second in (0, 6.0, 11.99)))
    pictures = []
    for result in results:
        assert result.content[0].type == "image" and result.content[0].mime_type == "image/jpeg"
        pictures.append(Image.open(io.BytesIO(base64.b64decode(result.content[0].data))))
    assert len({picture.tobytes() for picture in pictures}) == 3, path


@pytest.mark.parametrize(
    "video",
    [
        "",
        "../secret.mp4",
        "/etc/passwd",
        "file:///etc/passwd",
        "0" * 31,
        "0" * 33,
        "0" * 32 + "\n",
        "G" * 32,
        "' or 1=1",
    ],
)
@pytest.mark.parametrize("tool", ["similar", "frame"])
def test_what_is_no_id_is_refused(index, tool, video):
    more = {"second": 0} if tool == "frame" else {}
    assert "should match pattern" in refusal(index, tool, video=video, **more)


def test_ids_that_are_not_in_the_index_are_refused(index):
    from allocembed.files import fingerprint

    secret = fingerprint(Path(index.store.uri).parent / "secret.mp4")
    for video in ("0" * 32, secret):
        for tool in ("similar", "transcript"):
            assert "no such video" in refusal(index, tool, video=video)
        for tool in ("frame", "moment"):
            assert "no such video" in refusal(index, tool, video=video, second=0)


def test_impossible_times_numbers_and_sentences_are_refused(index):
    video = video_id(index, "v0.mp4")
    for second in (-1, 1e7, 1e300, float("nan"), float("inf"), "x", None, [1]):
        refusal(index, "frame", video=video, second=second)
    assert "ends at 0.4 seconds" in refusal(index, "frame", video=video, second=5)
    assert "ends at 0.4 seconds" in refusal(index, "moment", video=video, second=999_999)
    for top in (0, -1, 10**9, 1.5):
        refusal(index, "similar", video=video, top=top)
    assert "empty" in refusal(index, "search", query=" ")
    refusal(index, "search", query="x" * 100_000)
    refusal(index, "search")
    assert "date" in refusal(index, "search", query="a dog", after="yesterday")


def test_a_file_that_was_changed_or_removed_is_not_served_and_its_path_is_not_named(
    tmp_path, config, embedder, originals
):
    shutil.copy(originals[0], tmp_path / "a.mp4")
    index = VideoIndex.create(tmp_path / "index", config, embedder=embedder)
    index.add([tmp_path / "a.mp4"])
    video = video_id(index, "a.mp4")
    shutil.copy(originals[1], tmp_path / "a.mp4")
    assert "has changed" in refusal(index, "frame", video=video, second=0)
    (tmp_path / "a.mp4").unlink()
    (tmp_path / "a.mp4").symlink_to("/etc/passwd")
    assert "has changed" in refusal(index, "frame", video=video, second=0)
    (tmp_path / "a.mp4").unlink()
    os.mkfifo(tmp_path / "a.mp4")
    text = refusal(index, "frame", video=video, second=0)
    assert "gone" in text and str(tmp_path) not in text
    shutil.rmtree(tmp_path / "index")
    assert str(tmp_path) not in refusal(index, "search", query="a dog")


def test_lines_of_one_time_never_stop_a_transcript(index, monkeypatch):
    lines = [Line(second, second + 5.0, f"{second:g} {number}") for second in (1.0, 2.0, 3.0) for number in range(3)]
    monkeypatch.setattr(agents, "MOST_LINES_OF_ANSWER", 2)
    monkeypatch.setattr(index.lines, "lines_of", lambda video: lines)
    tools, video = agents.IndexTools(index), video_id(index, "long.mp4")
    start, pages = 0.0, []
    while start is not None and len(pages) < 9:
        page = tools.transcript(video, start)
        pages.append([line.text for line in page.lines])
        start = page.next_start
    assert pages == [[line.text for line in lines[first : first + 3]] for first in (0, 3, 6)]


def test_a_video_that_is_removed_while_it_is_asked_about_is_no_such_video(index, monkeypatch):
    monkeypatch.setattr(index, "segments", lambda video, *large: [])
    video = video_id(index, "long.mp4")
    assert "no such video" in refusal(index, "similar", video=video)
    assert "no such video" in refusal(index, "moment", video=video, second=0)


def test_errors_name_no_folder_of_an_index_that_was_opened_by_a_relative_path(finished, tmp_path, monkeypatch):
    """Nor that of its model, which is gone here."""
    shutil.copytree(finished, tmp_path / "index")
    monkeypatch.chdir(tmp_path)
    index = VideoIndex.open("index")
    model = tmp_path / "my models" / "small"
    index.settings = replace(index.settings, config=replace(index.settings.config, backbone=str(model)))

    def fail(*given, **named):
        raise BackboneError(f"cannot load {model}: it is gone; see {tmp_path}/index/about")

    monkeypatch.setattr(index, "search", fail)
    assert refusal(index, "search", query="a dog").endswith("cannot load small: it is gone; see index/about")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for part in (tmp_path / "index" / "vectors.lance").rglob("*.lance"):
        part.write_bytes(b"damaged")
    text = refusal(index, "similar", video=index.files()[0].video)
    assert "cannot be read" in text and "index" in text
    assert str(tmp_path).lstrip("/") not in text and tmp_path.name not in text


def test_there_are_no_resources_and_no_prompts(index):
    async def session() -> tuple:
        async with Client(make_server(index)) as client:
            return await client.list_resources(), await client.list_resource_templates(), await client.list_prompts()

    resources, templates, prompts = anyio.run(session)
    assert not resources.resources and not templates.resource_templates and not prompts.prompts


def test_without_the_package_the_command_says_what_to_install(index, monkeypatch):
    monkeypatch.delitem(sys.modules, "allocembed.search.agents")
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    done = command.run("mcp", index.store.uri)
    assert done.returncode == 1 and "pip install 'allocembed[mcp]'" in done.stderr


@pytest.mark.slow
def test_a_client_talks_to_the_command_over_stdin_and_stdout(index, tmp_path):
    """A search here loads the model in the server, which must print nothing on stdout besides answers."""

    async def session() -> tuple:
        command = StdioServerParameters(command=sys.executable, args=["-m", "allocembed", "mcp", index.store.uri])
        with (tmp_path / "log").open("w") as log:
            async with Client(stdio_client(command, errlog=log)) as client:
                found = await client.call_tool("search", {"query": "a dog", "top": 1})
                video = found.structured_content["result"][0]["video"]
                return video, await client.call_tool("frame", {"video": video, "second": 0})

    video, shown = anyio.run(session)
    assert video == index.search("a dog", top=1)[0].video
    assert base64.b64decode(shown.content[0].data)[:3] == b"\xff\xd8\xff"
    assert "Traceback" not in (tmp_path / "log").read_text()
