"""The player in a real browser: what it shows of a hit, Back and bookmarks, pictures that move, and clips."""

import json
import threading
import time
from pathlib import Path

import pytest

from allocembed.search import SearchError
from tests.world_videos import sentences

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("fastapi", reason="pip install 'allocembed[search]'")


from allocembed.search.web import clips
from allocembed.search.web.answers import Answers
from tests.search.page.seen import CARDS, GIF, VIDEOS, text

pytestmark = pytest.mark.slow


def test_search_and_click_and_the_player_stands_at_the_moment(browser, client, timelines):
    sentence = sentences(timelines, moments=1, whole=0, seed=3)[0]
    browser.go(f"http://127.0.0.1:{client.port}/")
    browser.wait(f"document.getElementById('about')?.textContent.startsWith('{VIDEOS} videos')")
    browser.click("#query")
    browser.type(sentence.text)
    browser.press("Enter", "\r")
    browser.wait(f"{CARDS}.length === {VIDEOS}")
    browser.wait("document.querySelector('#results img').naturalWidth > 0")
    browser.click("#results button")
    hit = client.search(sentence.text, top=1)[0]
    assert hit["path"] == sentence.name and hit["start"] < sentence.moment[1] and sentence.moment[0] < hit["end"]
    browser.wait("player.readyState >= 2 && !player.seeking && document.querySelectorAll('#film button').length > 0")
    browser.wait("!document.getElementById('when').textContent.includes('looking closer') && !player.seeking")
    first, last = sentence.moment
    assert first - 2 < browser.run("player.currentTime") < last, "the player is where the thing is"
    assert text(browser, "name") == sentence.name
    about = client.json(f"/api/videos/{hit['video']}")
    assert browser.run("document.querySelectorAll('#film button').length") == len(about["film"]["chunks"])
    assert browser.run("document.querySelectorAll('#budget i').length") == len(about["film"]["chunks"])
    assert f"{about['film']['cost']} of {about['film']['budget']} tokens" in text(browser, "spent")
    assert browser.run("document.querySelectorAll('#moments .best').length") == 1
    browser.run("player.pause()")
    browser.run("document.querySelectorAll('#film button')[3].click()")
    browser.wait(f"Math.abs(player.currentTime - {about['film']['chunks'][3]['times'][0]}) < 3")


READY = "player.readyState >= 2 && !player.seeking && document.querySelectorAll('#moments button').length > 0"
LOOKED = "!document.getElementById('when').textContent.includes('looking closer') && !player.seeking"


@pytest.fixture
def look(index, monkeypatch):
    """Sets what a closer look finds: from and to which part of the card's segment. It takes until `done`."""

    def prepare(first: float, last: float) -> threading.Event:
        done = threading.Event()

        def moment(answers, file, key):
            best = index.search_vector(answers.asked.get(key), top=1)[0]
            done.wait(20)
            length = best.end - best.start
            return {"start": best.start + first * length, "end": best.start + last * length, "found": True}

        monkeypatch.setattr(Answers, "moment", moment)
        return done

    return prepare


def test_opening_a_hit_plays_it_and_space_pauses(browser, search):
    search("a red dog")
    browser.run(f"{CARDS}[0].focus()")
    browser.press("Enter", "\r")
    browser.wait(f"{READY} && !player.paused && player.currentTime > 0")
    browser.press(" ", " ")
    assert browser.run("player.paused")
    browser.press(" ", " ")
    assert not browser.run("player.paused")
    for button in ("#moments button:nth-child(2)", "#film button:nth-child(2)"):
        browser.run("player.pause()")
        before = browser.run("location.search")
        browser.run(f"document.querySelector('{button}').focus()")
        browser.press(" ", " ")
        assert not browser.run("player.paused") and browser.run("location.search") != before, "the button has played"
        assert browser.run("document.activeElement.closest('#view button') !== null")


def test_a_closer_look_moves_the_player_only_if_the_visitor_stayed(browser, search, timelines, look):
    sentence = sentences(timelines, moments=1, whole=0, seed=3)[0]
    for visitor in ("goes elsewhere", "pauses", "stays"):
        done = look(0.9, 0.95)
        search(sentence.text)
        browser.click("#results button")
        browser.wait(READY)
        assert "looking closer" in text(browser, "when")
        start = float(browser.run("new URLSearchParams(location.search).get('t')"))
        if visitor == "goes elsewhere":
            browser.run("player.currentTime = player.duration - 20")
        if visitor == "pauses":
            browser.run("player.pause()")
        browser.wait("!player.seeking")
        before = browser.run("player.currentTime")
        assert abs(before - start) < 3 or visitor == "goes elsewhere"
        done.set()
        browser.wait(LOOKED)
        moved = browser.run("player.currentTime") - before
        assert moved > 3 if visitor == "stays" else moved < 3, visitor


def test_a_closer_look_agrees_with_the_card(browser, client, search, timelines, look):
    sentence = sentences(timelines, moments=1, whole=0, seed=3)[0]
    hit = client.search(sentence.text, top=1)[0]
    chunks = client.json(f"/api/videos/{hit['video']}")["film"]["chunks"]
    for first, last, inside in ((-3.0, 0.2, True), (-1.9, -0.5, False)):
        done = look(first, last)
        search(sentence.text)
        browser.click("#results button")
        browser.wait(READY)
        done.set()
        browser.wait(LOOKED)
        length = hit["end"] - hit["start"]
        start, end = (hit["start"] + part * length for part in ((first, last) if inside else (0, 1)))
        near = [place for place, chunk in enumerate(chunks) if chunk["times"][0] < end and chunk["times"][-1] >= start]
        near = near or [max(place for place, chunk in enumerate(chunks) if chunk["times"][0] <= start)]
        frames = "[...document.querySelectorAll('#film button')]"
        assert browser.run(f"{frames}.flatMap((e, i) => e.className.includes('now') ? [i] : [])") == near
        assert start - 0.1 < browser.run("player.currentTime") < hit["end"]
        assert f"start={start:.2f}&" in browser.run("clip.href")
        best = browser.run("[...document.querySelectorAll('#moments button')].map(e => e.className).indexOf('best')")
        assert best == hit["segment"] - 1, "the best match is that of the card"


def test_a_weak_match_is_not_looked_at_again(browser, search, monkeypatch):
    looked = []
    monkeypatch.setattr(Answers, "moment", lambda *given: looked.append(given))
    search("a red dog")
    browser.run(f"{CARDS}[{VIDEOS - 2}].click()")
    browser.wait("document.querySelectorAll('#film button').length > 0")
    assert "Weak match" in text(browser, "why") and looked == [] and "looking" not in text(browser, "when")


SHOWN = "document.getElementById('name').textContent"
OPEN = "!document.getElementById('view').hidden"


def test_back_closes_the_player_and_forward_opens_it(browser, search):
    search("a red dog")
    browser.run(f"{CARDS}[0].kept = true")
    before, address = browser.run("history.length"), browser.run("location.search")
    names = browser.run(f"[...{CARDS}].map(e => e.querySelector('b').textContent)")
    for place in (0, 2, 1):
        browser.run(f"{CARDS}[{place}].click()")
        assert browser.run("/&v=[0-9a-f]{32}&t=[0-9.]+$/.test(location.search)")
    assert browser.run("history.length") == before + 1, "one entry for all of them"
    browser.run("history.back()")
    browser.wait(f"!({OPEN})")
    assert browser.run("location.search") == address and browser.run(f"{CARDS}[0].kept"), "the results are the same"
    assert browser.run(f"[...{CARDS}].indexOf(document.activeElement)") == 1
    browser.run("history.forward()")
    browser.wait(f"{OPEN} && {SHOWN} === {json.dumps(names[1])}")
    browser.press("Escape")
    browser.wait(f"location.search === {json.dumps(address)}")
    assert browser.run(f"!({OPEN}) && {CARDS}[0].kept") and browser.run("history.length") == before + 1


def test_an_address_with_a_video_opens_it_at_its_time(browser, client, search):
    hit = client.search("a red dog", top=1)[0]
    search("a red dog", v=hit["video"], t="31.5")
    at = "player.readyState >= 1 && Math.abs(player.currentTime - 31.5) < 0.05"
    browser.wait(f"{OPEN} && {at} && {SHOWN} === {json.dumps(hit['path'])}")
    assert browser.run("player.paused"), "nobody has asked it to play"
    browser.run("document.getElementById('close').click()")  # the page may still scroll under a mouse
    assert browser.run(f"!({OPEN})") and browser.run("location.search") == "?q=a+red+dog"
    browser.run(f"{CARDS}[1].click()")
    name = browser.run(SHOWN)
    browser.call("Page.reload")
    browser.wait(f"document.readyState === 'complete' && {SHOWN} === {json.dumps(name)} && {OPEN}")
    search("a red dog", folder="short", count=1, v=hit["video"], t="31.5")
    browser.wait(f"{OPEN} && {at}")
    assert text(browser, "name") == hit["path"], "also if it is not among the results"
    search("a red dog", v="f" * 32, t="5")
    browser.run("new Promise(done => setTimeout(done, 300))")
    assert not browser.run(OPEN)


@pytest.fixture
def downloads(browser, tmp_path) -> Path:
    (tmp_path / "downloads").mkdir()
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path / "downloads")}
    browser.call("Browser.setDownloadBehavior", **behaviour)
    return tmp_path / "downloads"


def wait_for_file(folder: Path) -> Path:
    started = time.monotonic()
    while not (found := [path for path in folder.iterdir() if path.suffix != ".crdownload"]):
        assert time.monotonic() - started < 60, "nothing was downloaded"
        time.sleep(0.05)
    return found[0]


def test_a_gif_is_shown_as_a_picture_and_downloaded_whole(browser, search, index, downloads):
    search("a red dog")
    browser.run(f"[...{CARDS}].find(e => e.textContent.includes('{GIF}')).click()")
    browser.wait("still.naturalWidth === 96 && !still.hidden && player.hidden")
    assert browser.run("document.getElementById('unplayable').hidden") and browser.run("still.alt").endswith(GIF)
    browser.wait("document.querySelectorAll('#film button').length > 0")
    assert browser.run("[...document.querySelectorAll('.tokens button')].every(e => e.disabled)"), "it has no times"
    labels = browser.run("[...document.querySelectorAll('#film .label')].map(e => e.textContent)")
    assert labels[0].startswith("0.0 s · ") and len(set(labels)) == len(labels)
    browser.run("clip.click()")
    found = wait_for_file(downloads)
    original = next(Path(file.path) for file in index.files() if file.path.endswith(GIF))
    assert found.name == GIF and found.read_bytes() == original.read_bytes()
    browser.run(f"{CARDS}[0].click()")
    assert browser.run("still.hidden && !player.hidden")


def test_a_clip_that_is_refused_gives_a_reason_and_no_file(browser, search, downloads, monkeypatch):
    asked = []

    def fail(*given):
        asked.append(given)
        raise SearchError("its codec cannot be copied")

    search("a red dog")
    browser.click("#results button")
    browser.wait(READY)
    with monkeypatch.context() as broken:
        broken.setattr(clips, "cut", fail)
        browser.run("clip.click()")
        browser.wait("document.getElementById('refused').textContent.includes('its codec cannot be copied')")
    assert list(downloads.iterdir()) == [] and len(asked) == 1
    browser.run("clip.click()")
    assert wait_for_file(downloads).suffix == ".mp4" and text(browser, "refused") == ""
    assert text(browser, "clip") == "Download the moment"


def test_a_clip_that_is_large_is_not_held_in_memory(browser, search, downloads, monkeypatch):
    search("a red dog")
    browser.click("#results button")
    browser.wait(READY)
    browser.run("Headers.prototype.get = function () { return String(2 ** 30); }")
    browser.run("URL.createObjectURL = () => { throw new Error('held in memory'); }")
    browser.run("clip.click()")
    assert wait_for_file(downloads).suffix == ".mp4"
