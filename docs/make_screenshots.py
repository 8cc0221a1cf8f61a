"""Make the pictures of the search page for the documentation: `python docs/make_screenshots.py`.

A small index of drawn videos is made in a scratch folder, served on this machine, and looked at with Chromium.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))

from allocembed.config import EmbedConfig
from allocembed.search import VideoIndex
from allocembed_nano import world
from tests.chromium import Chromium
from tests.served import serving

NAMES = (
    "Autumn/A walk through the woods",
    "Autumn/First snow, seen from the balcony",
    "City/Night bus",
    "City/The long way home from the harbour, with all the signs we pass",
    "Summer/Beach day",
    "Summer/Meadow behind the house",
    "Summer/Dunes",
    "City/Rooftops",
)
LINES = "1\n00:00:{:02},000 --> 00:00:{:02},000\n{}\n\n"
SAID = ("Look at that sign over there.", "We turn left at the next one.", "The ferry leaves at noon, so hurry up.")
LARGEST = 400_000  # bytes of a picture


def make_index(folder: Path) -> tuple[VideoIndex, str]:
    """An index of drawn videos in folders, one of them with subtitles; and a sentence about a moment of one."""
    timelines = world.draw(len(NAMES), 607, "short", split="test", orientation="mixed")
    for number, name in enumerate(NAMES):
        path = folder / "videos" / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        world.write_mp4(timelines, number, path)
        if number == 3:
            lines = (LINES.format(20 + 6 * place, 24 + 6 * place, text) for place, text in enumerate(SAID))
            path.with_suffix(".srt").write_text("".join(lines), encoding="utf-8")
    index = VideoIndex.create(folder / "index", EmbedConfig("nano-qwen3"))
    index.add([folder / "videos"])
    source = random.Random(5)
    sentence = world.describe_moment(timelines, 3, 0, source)
    return index, sentence


def shoot(browser: Chromium, path: Path) -> None:
    """Write a screenshot, with fewer colours if it would be too large."""
    browser.screenshot(path)
    with Image.open(path) as picture:
        whole = picture.convert("RGB")
    whole.save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        whole.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes: make the window smaller")
    print(f"{path}: {path.stat().st_size:,} bytes")


def show(browser: Chromium, address: str) -> None:
    """Open the page with a search, and its first hit, and wait until everything is drawn."""
    browser.go(address)
    browser.wait("document.querySelectorAll('#results .card:not(.ghost)').length > 0")
    browser.click("#results button")
    browser.wait("player.readyState >= 2 && !player.seeking && document.querySelectorAll('#film button').length > 0")
    browser.wait("!document.getElementById('when').textContent.includes('looking closer') && !player.seeking")
    browser.wait("[...document.images].every(e => e.complete) && !document.getElementById('notice').hidden")
    browser.run("player.controls = false, document.activeElement.blur(), scrollTo({top: 0, behavior: 'instant'})")
    browser.run("new Promise(done => setTimeout(done, 900))")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for the pictures")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as place:
        index, sentence = make_index(Path(place))
        with serving(index) as client, Chromium(Path(place) / "profile", 1200, 1160) as browser:
            address = f"http://127.0.0.1:{client.port}/?q={sentence.replace(' ', '+')}"
            browser.prefer("light")
            show(browser, address)
            shoot(browser, out / "search.png")
            browser.prefer("dark")
            show(browser, f"http://127.0.0.1:{client.port}/?q=when+does+the+ferry+leave")
            shoot(browser, out / "search_dark.png")
            browser.prefer("light")
            browser.resize(390, 1000, scale=1.5, phone=True)
            show(browser, address)
            shoot(browser, out / "search_phone.png")


if __name__ == "__main__":
    main()
