"""A browser, an index of drawn videos, and the page that is served for it."""

from urllib.parse import quote

import pytest
from PIL import Image

from allocembed.config import EmbedConfig
from allocembed.search import VideoIndex
from allocembed.search.cut import cut
from tests.chromium import Chromium
from tests.search.page.seen import CARDS, DRAWN, GIF, LINE, LONG, VIDEOS, WATCH
from tests.world_videos import draw_videos, write_videos


@pytest.fixture(scope="module")
def open_browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile"), 1200, 1120) as made:
        made.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        yield made


@pytest.fixture
def browser(open_browser):
    """The browser at a usual size in light colours; after the test, nothing may have gone wrong unseen."""
    open_browser.resize(1200, 1120)
    open_browser.prefer("light")
    yield open_browser
    assert open_browser.run("window.wrong ?? []") == []


@pytest.fixture(scope="module")
def timelines():
    return draw_videos(DRAWN, 0, seed=607)


@pytest.fixture(scope="module")
def index(open_browser, timelines, tmp_path_factory) -> VideoIndex:
    """Drawn videos, one of them with subtitles, a GIF, and a short one with a long name in a folder of its own."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "videos" / "short").mkdir(parents=True)
    write_videos(timelines, folder / "videos")
    cut(folder / "videos" / "000.mp4", 20, 26, folder / "videos" / "short", LONG)
    (folder / "videos" / "002.srt").write_text(f"1\n00:00:20,000 --> 00:00:24,000\n{LINE}\n")
    frames = [Image.new("RGB", (96, 96), (20 * number, 80, 120)) for number in range(12)]
    frames[0].save(folder / "videos" / GIF, save_all=True, append_images=frames[1:], duration=100, loop=0)
    made = VideoIndex.create(folder / "index", EmbedConfig("nano-qwen3"))
    made.add([folder / "videos"])
    return made


@pytest.fixture(scope="module")
def client(index):
    from tests.served import serving  # which needs the packages of the page

    with serving(index) as made:
        yield made


@pytest.fixture
def search(browser, client):
    """Opens the page with a search and waits for its results."""

    def start(words: str, count: int = VIDEOS, **more: str) -> None:
        rest = "".join(f"&{name}={quote(value)}" for name, value in more.items())
        browser.go(f"http://127.0.0.1:{client.port}/?q={quote(words)}{rest}")
        browser.wait(f"{CARDS}.length === {count}")
        browser.wait("document.getElementById('about').textContent")  # what comes with it moves the results

    return start
