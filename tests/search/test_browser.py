"""The page in a real browser: what it finds, how it is used without a mouse, and what it says of what goes wrong."""

import io
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from allocembed.config import EmbedConfig
from allocembed.search import SearchError, VideoIndex
from allocembed.search.cut import cut
from allocembed.search.frames import frame_jpeg
from allocembed.video import DecodeLimits
from tests.chromium import Chromium
from tests.world_videos import draw_videos, sentences, write_videos

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("fastapi", reason="pip install 'allocembed[search]'")

from fastapi import HTTPException

from allocembed.search.web import clips
from allocembed.search.web.answers import Answers
from allocembed.search.web.limits import WorkQueue
from tests.served import serving

pytestmark = pytest.mark.slow
DRAWN, VIDEOS = 6, 8
LONG = "a name that goes on and on, as those of videos from meetings and of films from the web often do, and_then_some"
GIF = "moving ü.gif"
LINE = "the ferry leaves at noon"
CARDS = "document.querySelectorAll('#results .card:not(.ghost)')"
WATCH = """window.wrong = [];
addEventListener('error', e => wrong.push(e.message));
addEventListener('unhandledrejection', e => wrong.push(String(e.reason)));
addEventListener('securitypolicyviolation', e => wrong.push(e.violatedDirective + ' ' + e.blockedURI));"""


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
    with serving(index) as made:
        yield made


@pytest.fixture
def search(browser, client):
    """Opens the page with a search and waits for its results."""

    def start(words: str, count: int = VIDEOS, **more: str) -> None:
        rest = "".join(f"&{name}={quote(value)}" for name, value in more.items())
        browser.go(f"http://127.0.0.1:{client.port}/?q={quote(words)}{rest}")
        browser.wait(f"{CARDS}.length === {count}")

    return start


def text(browser, name: str) -> str:
    return browser.run(f"document.getElementById({json.dumps(name)}).textContent")


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
    frame, _ = frame_jpeg(file.path, sum(timelines.moment(3, 0)) / 2, DecodeLimits())
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
