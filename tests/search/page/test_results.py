"""The page in a real browser: what it finds, how it is used without a mouse, and what it says of what goes wrong."""

import io
import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from allocembed.search.frames import frame_jpeg
from tests.world_videos import sentences

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("fastapi", reason="pip install 'allocembed[search]'")

from fastapi import HTTPException

from allocembed.search.web.answers import Answers
from allocembed.search.web.limits import WorkQueue
from tests.search.page.seen import CARDS, DRAWN, LINE, LONG, VIDEOS, text
from tests.served import serving

pytestmark = pytest.mark.slow


def test_a_part_of_the_results_is_called_one(browser, client, monkeypatch):
    hit, info = client.search("a red dog", top=1)[0], Answers.info
    weak = hit | {"match": "weak"}

    def found(answers, wanted, picture=None):
        return [weak | {"video": f"{number:032x}"} for number in range(min(27, wanted.top))]

    monkeypatch.setattr(Answers, "search", found)
    monkeypatch.setattr(Answers, "info", lambda answers: info(answers) | {"videos": 27})
    browser.go(f"http://127.0.0.1:{client.port}/?q=a+red+dog")
    browser.wait("document.getElementById('status').textContent.startsWith('24 of 27 videos in ')")
    assert text(browser, "sorted") == "Sort these 24 by"
    assert text(browser, "doubt") == "Nothing here clearly matches; these are the nearest."
    browser.click("#more")
    browser.wait("document.getElementById('status').textContent.startsWith('27 videos in ')")
    assert text(browser, "sorted") == "Sort by" and browser.run("document.getElementById('more').hidden")
    browser.go(f"http://127.0.0.1:{client.port}/?q=a+red+dog&lasts=60-300")
    browser.wait("document.getElementById('status').textContent.startsWith('The first 24 videos in ')")


def test_an_empty_search_clears_the_results(browser, search):
    search("a red dog")
    browser.run("query.value = ''")
    browser.click("form .primary")
    browser.wait("document.getElementById('state').textContent.includes('Describe what you are looking for')")
    assert browser.run(f"{CARDS}.length") == 0 and text(browser, "status") == ""
    assert browser.run("location.search") == ""


def test_an_index_of_a_toy_model_offers_sentences_that_it_knows(browser, client, monkeypatch):
    browser.go(f"http://127.0.0.1:{client.port}/")
    browser.wait("document.querySelectorAll('#state button').length === 3")
    assert "dog" not in text(browser, "state")
    sentence = browser.run("document.querySelector('#state button').textContent")
    browser.click("#state button")
    browser.wait(f"{CARDS}.length === {VIDEOS}")
    assert browser.run("new URLSearchParams(location.search).get('q')") == sentence
    info = Answers.info
    monkeypatch.setattr(Answers, "info", lambda answers: info(answers) | {"notice": ""})
    browser.go(f"http://127.0.0.1:{client.port}/")
    browser.wait("document.getElementById('state').textContent.includes('a dog jumps into a lake')")
    assert browser.run("document.querySelectorAll('#state button').length") == 0


def test_a_clear_match_is_not_doubted(browser, search, timelines):
    search(sentences(timelines, moments=1, whole=0, seed=3)[0].text)
    assert text(browser, "doubt") == ""


def test_a_bookmark_of_a_folder_that_is_gone_can_be_mended(browser, search):
    search("a red dog", folder="nowhere", count=0)
    browser.wait("document.getElementById('state').textContent.includes('there is no folder “nowhere” in this index')")
    assert "/api/" not in text(browser, "state")
    browser.click("#state button")
    browser.wait(f"{CARDS}.length === {VIDEOS}")
    assert browser.run("location.search") == "?q=a+red+dog"


def test_words_are_not_cut_off_and_fields_line_up(browser, client):
    for width in (1200, 390):
        browser.resize(width, 844, phone=width == 390)
        browser.go(f"http://127.0.0.1:{client.port}/")
        browser.wait("document.getElementById('about')?.textContent")
        browser.run("document.getElementById('filters').open = true")
        room = (
            "(e, text, rest) => { const c = document.createElement('canvas').getContext('2d'), s = getComputedStyle(e);"
            " c.font = s.font; return e.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight) - rest "
            "- c.measureText(text).width; }"
        )
        assert browser.run(f"({room})(query, query.placeholder, 0)") >= 0, width
        selects = "[...document.querySelectorAll('.fields select')].filter(e => e.offsetParent)"
        cut_off = f"{selects}.filter(e => [...e.options].some(o => ({room})(e, o.text, 20) < 0)).map(e => e.name)"
        assert browser.run(cut_off) == [], width
        heights = "[...document.querySelectorAll('.fields input, .fields select')].filter(e => e.offsetParent)"
        assert len(set(browser.run(f"{heights}.map(e => e.offsetHeight)"))) == 1, width


def test_scores_are_explained_and_a_toy_model_is_called_one(browser, search, timelines):
    sentence = sentences(timelines, moments=1, whole=0, seed=3)[0]
    search(sentence.text)
    browser.wait("!document.getElementById('notice').hidden")
    assert "Toy model: nano-qwen3 knows only" in text(browser, "notice")
    words = browser.run("[...document.querySelectorAll('.match')].map(e => e.textContent)")
    assert words[0] == "Strong match (toy)" and words[-1] == "Weak match (toy)"
    browser.click("#results button")
    assert "far above what other videos here get" in text(browser, "why")


def test_a_card_shows_one_whole_frame_and_all_of_it(browser, search):
    search("a red dog")
    browser.wait("[...document.querySelectorAll('#results img')].every(e => e.naturalWidth > 0)")
    shapes = browser.run("[...document.querySelectorAll('#results img')].map(e => e.naturalWidth / e.naturalHeight)")
    assert all(0.7 < shape < 1.4 for shape in shapes), "a strip of several frames would be wider"
    assert browser.run("getComputedStyle(document.querySelector('#results img')).objectFit") == "contain"


def test_the_keyboard_alone_is_enough(browser, search):
    search("a red dog")
    browser.run("document.activeElement.blur()")
    browser.press("/")
    assert browser.run("document.activeElement.id") == "query"
    at = f"[...{CARDS}].indexOf(document.activeElement)"
    places = []
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        browser.press(key)
        places.append(browser.run(at))
    assert places[:4] == [0, 1, 2, 1] and places[4] > 2 and places[5] == 1, places
    browser.press("Enter", "\r")
    browser.wait("!document.getElementById('view').hidden && player.readyState >= 1")
    assert browser.run("document.activeElement.id") == "view", "the focus follows to the player"
    seen = set()
    browser.wait("document.querySelectorAll('#film button').length > 0")
    for _ in range(12):
        browser.press("Tab")
        seen.add(browser.run("document.activeElement.id"))
    assert {"player", "close", "clip", "similar"} <= seen
    browser.press("Escape")
    assert browser.run("document.getElementById('view').hidden") and browser.run(at) == 1, "and back to the card"


def test_everything_that_can_be_used_has_a_name_for_screen_readers(browser, search):
    search("a red dog", also="a blue house")
    browser.click("#results button")
    browser.wait("document.querySelectorAll('#film button').length > 0")
    roles = ("button", "link", "textbox", "searchbox", "combobox", "DisclosureTriangle", "Date")
    nodes = [
        node
        for node in browser.call("Accessibility.getFullAXTree")["nodes"]
        if not node.get("ignored") and node["role"]["value"] in roles
    ]
    assert len(nodes) > 30 and [node for node in nodes if not node["name"]["value"].strip()] == []
    names = [node["name"]["value"] for node in nodes]
    assert any("to" in name and "match" in name for name in names if name.endswith("(toy)")), names
    assert browser.run("document.getElementById('status').getAttribute('aria-live')") == "polite"
    assert text(browser, "status").startswith(f"{VIDEOS} videos in ")


def test_it_fits_a_phone_in_the_dark(browser, search):
    browser.resize(390, 844, phone=True)
    browser.prefer("dark")
    search("a red dog", folder="short", count=1)
    assert browser.run("document.documentElement.scrollWidth") <= 390, "a short video's strip does not widen the page"
    assert LONG[:30] in browser.run("document.querySelector('#results b').textContent")
    search("a red dog", lasts="60-300", count=DRAWN)
    browser.click("#results button")
    browser.wait("document.querySelectorAll('#film button').length > 0")
    assert browser.run("document.getElementById('filters').open")
    for width in (390, 320):
        browser.resize(width, 844, phone=True)
        assert browser.run("innerWidth") == width
        assert browser.run("document.documentElement.scrollWidth") <= width, "nothing sticks out sideways"
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 22, 26)"


def test_colours_follow_the_system_until_they_are_chosen(browser, client):
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.go(f"http://127.0.0.1:{client.port}/")
    assert browser.run(colour) == "rgb(251, 251, 249)"
    browser.prefer("dark")
    assert browser.run(colour) == "rgb(21, 22, 26)"
    browser.click("#theme")
    assert browser.run(colour) == "rgb(251, 251, 249)"
    browser.go(f"http://127.0.0.1:{client.port}/")
    assert browser.run(colour) == "rgb(251, 251, 249)", "the choice is kept"
    browser.run("localStorage.clear()")


@pytest.fixture
def photo(index, timelines, tmp_path) -> tuple[Path, str]:
    """A picture of a moment of a video, and the video's id."""
    file = next(file for file in index.files() if file.path.endswith("003.mp4"))
    frame, _ = frame_jpeg(file.path, sum(timelines.moment(3, 0)) / 2)
    Image.open(io.BytesIO(frame)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png", file.video


def test_a_picture_that_is_dropped_finds_its_video(browser, client, photo):
    browser.go(f"http://127.0.0.1:{client.port}/")
    browser.drop(photo[0])
    browser.wait(f"{CARDS}.length === {VIDEOS}")
    assert photo[1] in browser.run("document.querySelector('#results img').src")
    assert browser.run("document.getElementById('drop').hidden && !document.getElementById('picture').hidden")
    assert "by this picture" in text(browser, "status")
    browser.click("#unpick")
    assert browser.run("document.getElementById('picture').hidden")


def test_a_file_that_is_no_picture_is_not_searched_by(browser, client, tmp_path):
    (tmp_path / "notes.txt").write_text("not a picture")
    browser.go(f"http://127.0.0.1:{client.port}/")
    browser.drop(tmp_path / "notes.txt")
    browser.wait("document.getElementById('status').textContent.includes('not a picture')")


def test_a_picture_can_be_pasted(browser, client, photo):
    browser.go(f"http://127.0.0.1:{client.port}/")
    data = json.dumps(list(photo[0].read_bytes()))
    browser.run(
        f"(() => {{ const data = new DataTransfer(); data.items.add(new File([new Uint8Array({data})], 'a.png', "
        "{type: 'image/png'})); document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, "
        "bubbles: true, cancelable: true})); })()"
    )
    browser.wait(f"{CARDS}.length === {VIDEOS}")
    assert photo[1] in browser.run("document.querySelector('#results img').src")


def test_what_was_said_is_under_the_hit_and_beside_the_player(browser, search):
    search("when does the ferry leave", said="true", count=1)
    assert browser.run("document.querySelector('#results .quote').textContent") == f"“{LINE}”"
    browser.click("#results button")
    browser.wait("document.querySelector('#lines .hit') !== null")
    browser.wait("player.readyState >= 1 && player.currentTime >= 20 && player.currentTime < 24")
    assert "moment 00:20.0–00:24.0 of " in text(browser, "when"), "tenths of a time that is short"


def test_filters_sorting_and_the_back_button(browser, search):
    search("a red dog")
    names = "[...document.querySelectorAll('#results b')].map(e => e.textContent)"
    browser.run("sort.value = 'name', sort.dispatchEvent(new Event('change'))")
    assert browser.run(names) == sorted(browser.run(names), key=str.lower)
    browser.run("document.querySelector('#filters').open = true")
    browser.run("(e => { e.value = 'short'; e.dispatchEvent(new Event('change', {bubbles: true})); })"
                "(document.querySelector('[name=folder]'))")  # fmt: skip
    browser.wait(f"{CARDS}.length === 1")
    assert text(browser, "active") == "1" and "folder=short" in browser.run("location.search")
    browser.run("history.back()")
    browser.wait(f"{CARDS}.length === {VIDEOS}")


def test_the_moment_can_be_downloaded_and_similar_videos_shown(browser, search):
    search("a red dog")
    browser.click("#results button")
    browser.wait("document.getElementById('clip').href && document.querySelectorAll('#film button').length > 0")
    browser.run("player.pause()")
    size = browser.run("fetch(document.getElementById('clip').href).then(r => r.ok ? r.blob() : {}).then(b => b.size)")
    assert size > 1000
    name, id = text(browser, "name"), browser.run("new URLSearchParams(location.search).get('v')")
    browser.run("similar.click()")
    browser.wait(f"{CARDS}.length === {VIDEOS - 1}")
    assert text(browser, "status").startswith(f"{VIDEOS - 1} videos like {name} in ")
    assert text(browser, "alike") == f"like {name}" and browser.run("document.getElementById('view').hidden")
    assert browser.run("location.search") == f"?q=a+red+dog&like={id}"
    browser.call("Page.reload")
    browser.wait(
        f"document.readyState === 'complete' && document.getElementById('alike').textContent === 'like {name}'"
    )
    browser.wait(f"{CARDS}.length === {VIDEOS - 1}")
    search_again = f"{CARDS}.length === {VIDEOS} && document.getElementById('like').hidden"
    browser.click("#unlike")
    browser.wait(search_again)
    assert browser.run("location.search") == "?q=a+red+dog"
    browser.run("history.back()")
    browser.wait(f"{CARDS}.length === {VIDEOS - 1} && !document.getElementById('like').hidden")
    browser.run("(e => { e.value = 'short'; e.dispatchEvent(new Event('change', {bubbles: true})); })"
                "(document.querySelector('[name=folder]'))")  # fmt: skip
    browser.wait(f"{CARDS}.length === 1 && !document.getElementById('like').hidden")
    browser.run("document.getElementById('clear').click()")
    browser.wait(f"{CARDS}.length === {VIDEOS - 1}")
    browser.click("form .primary")
    browser.wait(search_again)


def test_no_result_says_what_to_try(browser, search):
    search("a red dog", least_height="2160", count=0)
    browser.wait("!document.getElementById('state').hidden")
    said = text(browser, "state")
    assert "Nothing found" in said and "clear the filters" in said and f"holds {VIDEOS} videos" in said
    browser.click("#state button")
    browser.wait(f"{CARDS}.length === {VIDEOS}")
    assert browser.run("location.search") == "?q=a+red+dog"


def test_an_unanswerable_question_is_explained(browser, client):
    browser.go(f"http://127.0.0.1:{client.port}/?q=%3C%7Cvideo_pad%7C%3E")
    browser.wait("document.getElementById('state').textContent.includes('remove it from the text')")


def test_a_server_that_is_gone_is_named_and_can_be_tried_again(browser, index):
    with serving(index) as own:
        browser.go(f"http://127.0.0.1:{own.port}/?q=a+red+dog")
        browser.wait(f"{CARDS}.length === {VIDEOS}")
        browser.call("Network.enable")
        lost = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.call("Network.emulateNetworkConditions", offline=True, **lost)
        browser.click("form .primary")
        browser.wait("document.getElementById('state').textContent.includes('allocembed serve is still running')")
        browser.call("Network.emulateNetworkConditions", offline=False, **lost)
        browser.click("#state button")
        browser.wait(f"{CARDS}.length === {VIDEOS}")
    browser.click("form .primary")
    browser.wait("document.getElementById('state').textContent.includes('The server does not answer')")


def test_a_busy_server_is_asked_again_and_then_named(browser, client, monkeypatch):
    real, refused = WorkQueue.place, []

    @contextmanager
    def refuse(queue):
        if len(refused) < limit:
            refused.append(1)
            raise HTTPException(503, "busy", headers={"Retry-After": "0.05"})
        with real(queue):
            yield

    monkeypatch.setattr(WorkQueue, "place", refuse)
    limit = 2
    browser.go(f"http://127.0.0.1:{client.port}/?q=a+red+dog")
    browser.wait(f"{CARDS}.length === {VIDEOS}")
    assert len(refused) == 2
    limit = 100
    browser.click("form .primary")
    browser.wait("document.getElementById('state').textContent.includes('The server is busy')")
    assert len(refused) == 7, "five attempts"


def test_a_file_that_is_gone_is_named_in_the_player(browser, search, index):
    path = Path(next(file.path for file in index.files() if file.path.endswith("001.mp4")))
    hidden = path.rename(path.with_suffix(".away"))
    try:
        search("a red dog")
        browser.run(f"[...{CARDS}].find(e => e.textContent.includes('001.mp4')).click()")
        browser.wait(
            "document.getElementById('unplayable').textContent.includes('index again with --prune to forget it')"
        )
    finally:
        hidden.rename(path)
