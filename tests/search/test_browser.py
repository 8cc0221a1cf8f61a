"""The page in a real browser: search, click, and the player stands at the moment that was found.

ALLOCEMBED_SCREENSHOT=docs/search.png writes the picture of the documentation on the way.
"""

import os
from pathlib import Path

import pytest

from allocembed.config import EmbedConfig
from allocembed.search import VideoIndex
from tests.chromium import Chromium
from tests.world_videos import draw_videos, sentences, write_videos

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("fastapi", reason="pip install 'allocembed[search]'")

from tests.served import serving

pytestmark = pytest.mark.slow
VIDEOS = 8


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile"), 1200, 1120) as made:
        yield made


@pytest.fixture(scope="module")
def timelines():
    return draw_videos(VIDEOS, 0, seed=607)


@pytest.fixture(scope="module")
def client(browser, timelines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "videos").mkdir()
    write_videos(timelines, folder / "videos")
    index = VideoIndex.create(folder / "index", EmbedConfig("nano-qwen3"))
    index.add([folder / "videos"])
    with serving(index) as made:
        yield made


def test_search_and_click_and_the_player_stands_at_the_moment(browser, client, timelines, tmp_path):
    sentence = sentences(timelines, moments=1, whole=0, seed=3)[0]
    browser.go(f"http://127.0.0.1:{client.port}/")
    browser.wait(f"document.getElementById('about')?.textContent.startsWith('{VIDEOS} videos')")
    browser.click("#query")
    browser.type(sentence.text)
    browser.press("Enter", "\r")
    browser.wait(f"document.querySelectorAll('#results button').length === {VIDEOS}")
    browser.wait("document.querySelector('#results img').naturalWidth > 0")
    browser.click("#results button")
    hit = client.search(sentence.text, top=1)[0]
    assert hit["path"] == sentence.name and hit["start"] < sentence.moment[1] and sentence.moment[0] < hit["end"]
    browser.wait("player.readyState >= 2 && !player.seeking && document.querySelectorAll('#film button').length > 0")
    assert abs(browser.run("player.currentTime") - hit["start"]) < 0.05, "the player's time is the moment's start"
    assert browser.run("document.getElementById('name').textContent") == sentence.name
    about = client.json(f"/api/videos/{hit['video']}")
    assert browser.run("document.querySelectorAll('#film button').length") == len(about["film"]["chunks"])
    assert browser.run("document.querySelectorAll('#budget i').length") == len(about["film"]["chunks"])
    assert f"{about['film']['cost']} of {about['film']['budget']} tokens" in browser.run("spent.textContent")
    assert browser.run("document.querySelectorAll('#moments .best').length") == 1
    wanted = os.environ.get("ALLOCEMBED_SCREENSHOT")
    browser.run("scrollTo(0, 0)")
    browser.screenshot(Path(wanted) if wanted else tmp_path / "page.png")
    browser.click("#film button:nth-child(4)")
    browser.wait(f"Math.abs(player.currentTime - {about['film']['chunks'][3]['times'][0]}) < 0.05")


def test_the_keyboard_alone_is_enough(browser, client):
    browser.go(f"http://127.0.0.1:{client.port}/?q=a%20red%20dog")
    browser.wait(f"document.querySelectorAll('#results button').length === {VIDEOS}")
    browser.run("document.activeElement.blur()")
    browser.press("/")
    assert browser.run("document.activeElement.id") == "query"
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert browser.run("[...document.querySelectorAll('#results button')].indexOf(document.activeElement)") == 1
    browser.press("Enter", "\r")
    browser.wait("!document.getElementById('view').hidden && player.readyState >= 1")
    browser.press("Escape")
    assert browser.run("document.getElementById('view').hidden")


def test_it_fits_a_phone_in_the_dark(browser, client):
    size = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.go(f"http://127.0.0.1:{client.port}/?q=a%20red%20dog")
    browser.wait(f"document.querySelectorAll('#results button').length === {VIDEOS}")
    browser.click("#results button")
    browser.wait("document.querySelectorAll('#film button').length > 0")
    assert browser.run("document.documentElement.scrollWidth") <= 360, "nothing sticks out sideways"
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 22, 26)"


def test_what_goes_wrong_is_said_on_the_page(browser, client):
    browser.go(f"http://127.0.0.1:{client.port}/?q=%3C%7Cvideo_pad%7C%3E")
    browser.wait("document.getElementById('status').textContent.includes('remove it from the text')")
