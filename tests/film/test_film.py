"""The filmstrip: its numbers, its picture and its page."""

import html
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from allocembed import film
from allocembed.allocators.base import AllocationRequest, allocate_clip
from allocembed.allocators.registry import load_allocator
from allocembed.budget import Allocation, Budget, Grid
from allocembed.errors import MissingDependency
from allocembed.film.png import frames_per_row
from allocembed.film.strip import Filmstrip, text_colour
from allocembed.geometry import Geometry
from allocembed.video.clip import Clip

NATIVE = Grid(3, 4)
GEOMETRY = Geometry(16, 2, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), min_pixels=1, max_pixels=3 * 4 * 32**2)


def make_clip(count: int = 6, height: int = 96, width: int = 128, source: str = "videos/talk.mp4") -> Clip:
    frames = np.random.default_rng(0).integers(0, 255, (count, height, width, 3), np.uint8)
    indices = np.arange(count) * 10
    return Clip(frames, indices / 5.0, indices, total=count * 10, duration=count * 2.0, source=source)


def make_allocation(frames=((0, 1), (2, 3), (4, 5))) -> Allocation:
    scales, grids = (0.2, 0.6, 1.8), (Grid(1, 1), Grid(2, 2), Grid(5, 7))
    return Allocation(frames, scales[: len(frames)], grids[: len(frames)], NATIVE, budget=48, base_cost=48)


def allocate(method: str, clip: Clip, budget: str, geometry: Geometry = GEOMETRY) -> Allocation:
    """A method's allocation of a clip, which has the native grid 3 × 4 if it is 96 × 128 pixels large."""
    allocator, spent = load_allocator(method), Budget.parse(budget)
    request = AllocationRequest(geometry, spent, allocator.scale_range)
    return allocate_clip(clip, allocator.plan(clip, request), request)


def saved_png(path, clip, allocation, **look) -> Image.Image:
    film.save_png(clip, allocation, path / "film.png", **look)
    with Image.open(path / "film.png") as image:
        assert image.format == "PNG"
        return image.copy()


def saved_html(path, clip, allocation, **look) -> str:
    film.save_html(clip, allocation, path / "film.html", **look)
    return (path / "film.html").read_text(encoding="utf-8")


def count_colour(image: Image.Image, colour) -> int:
    return int((np.asarray(image) == colour).all(-1).sum())


def test_json_holds_the_totals_and_every_chunk_in_order():
    written = film.as_json(make_clip(), make_allocation())
    assert list(written) == ["budget", "cost", "base_cost", "look_tokens", "chunks"]
    assert (written["budget"], written["cost"], written["base_cost"]) == (48, 40, 48)
    assert written["chunks"][1] == {"times": [4.0, 6.0], "scale": 0.6, "rows": 2, "cols": 2, "tokens": 4}
    assert sum(chunk["tokens"] for chunk in written["chunks"]) == written["cost"]
    assert json.loads(json.dumps(written)) == written


@pytest.mark.parametrize(("budget", "total", "frames"), [("16f", 120, 16), ("64", 120, 8), ("8f", 5, 5), ("8f", 1, 1)])
def test_base_is_named_by_the_frames_it_costs(budget, total, frames):
    clip = replace(make_clip(1), total=total)
    assert allocate("base", clip, budget).base_frames == frames


def test_base_has_eight_frames_though_fewer_frames_of_a_list_may_be_larger():
    clip = replace(make_clip(24), listed=True)
    allocation = allocate("uniform", clip, "8f", replace(GEOMETRY, list_tokens=72))
    assert allocation.native.tokens < NATIVE.tokens and allocation.base_cost == 4 * NATIVE.tokens
    assert allocation.base_frames == 8


@pytest.mark.parametrize("method", ["base", "full", "uniform", "content", "select"])
def test_every_allocator_can_be_drawn(method, tmp_path):
    clip = make_clip(12)
    allocation = allocate(method, clip, "4f")
    assert saved_png(tmp_path, clip, allocation, method=method, factor=32).width == 1600
    page = saved_html(tmp_path, clip, allocation, method=method, factor=32)
    assert ("over the budget" in page) == (allocation.cost > allocation.budget)
    assert "Base, 4 frames at native size, costs 24 tokens" in page


def test_scale_colours_run_from_dark_to_light_and_stop_at_the_ends():
    luma = [np.dot(film.scale_colour(scale), (0.299, 0.587, 0.114)) for scale in np.geomspace(0.2, 1.8, 20)]
    assert np.all(np.diff(luma) > 0)
    assert film.scale_colour(0.01) == film.scale_colour(0.2)
    assert film.scale_colour(50.0) == film.scale_colour(1.8)


@pytest.mark.parametrize("place", np.linspace(0, 1, 25))
def test_labels_are_legible_on_every_scale_colour(place):
    def luminance(colour):
        return np.dot((np.array(colour) / 255) ** 2.2, (0.2126, 0.7152, 0.0722))

    colour = film.scale_colour(0.2 * 9**place)
    bright, dark = sorted((luminance(colour), luminance(text_colour(colour))), reverse=True)
    assert (bright + 0.05) / (dark + 0.05) > 4  # WCAG asks 4.5 of small text and 3 of bold


def test_the_picture_has_every_chunk_on_its_own_colour(tmp_path):
    image = saved_png(tmp_path, make_clip(), make_allocation(), factor=32)
    assert image.mode == "RGB" and image.width == 1600
    for scale in (0.2, 0.6, 1.8):
        assert count_colour(image, film.scale_colour(scale)) > 3000


def test_a_frame_is_shown_with_the_detail_the_model_gets(tmp_path):
    clip, allocation = make_clip(), make_allocation()
    sharp = Filmstrip(clip, allocation, None, None, None).seen(0)
    blurred = Filmstrip(clip, allocation, None, None, 8).seen(0)
    assert sharp.size == (128, 96) and blurred.size == (8, 8)
    enlarged = Filmstrip(clip, allocation, None, None, 32).seen(4)
    assert np.array_equal(np.asarray(enlarged), clip.frames[4])


def test_dropped_frames_are_dim_and_grey_in_the_picture(tmp_path):
    clip = make_clip()
    clip.frames[:] = (250, 40, 40)
    kept = saved_png(tmp_path, clip, make_allocation())
    some = saved_png(tmp_path, clip, make_allocation(frames=((0, 5),)))
    bright = count_colour(some, (250, 40, 40))
    dim = int((abs(np.asarray(some, int) - (42, 44, 47)).max(-1) <= 1).sum())
    assert bright < count_colour(kept, (250, 40, 40)) / 2
    assert dim > 1.5 * bright  # four frames against two


def test_dropped_frames_are_named_on_the_page(tmp_path):
    page = saved_html(tmp_path, make_clip(), make_allocation(frames=((0, 5),)))
    assert page.count('class="tile of1 dropped"') == 4
    assert page.count('id="chunk-0"') == 1
    assert "4 of 6 frames are left out" in page


@pytest.mark.parametrize(
    ("count", "height", "width"), [(1, 96, 128), (7, 96, 128), (24, 128, 72), (5, 16, 400), (3, 400, 16), (70, 16, 16)]
)
def test_any_number_and_shape_of_frames_fits(count, height, width, tmp_path):
    clip = make_clip(count, height, width)
    allocation = allocate("uniform", clip, "2000")
    image = saved_png(tmp_path, clip, allocation, factor=8)
    assert image.width == 1600 and 200 < image.height < 6000
    right_margin = np.asarray(image)[:, -40:]
    assert (right_margin == right_margin[0, 0]).all()
    page = saved_html(tmp_path, clip, allocation, factor=8)
    assert page.count("<time>") == count


def test_portrait_frames_stand_closer_than_landscape_ones():
    assert frames_per_row(24, 9 / 16) > frames_per_row(24, 16 / 9)


def test_an_odd_last_frame_is_shown_once(tmp_path):
    clip = make_clip(3)
    page = saved_html(tmp_path, clip, make_allocation(frames=((0, 1), (2, 2))))
    assert page.count("<time>") == 3
    assert page.count('class="tile of1"') == 1


def test_the_page_asks_nothing_of_a_network(tmp_path):
    page = saved_html(tmp_path, make_clip(), make_allocation(), factor=8)
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!data:)|<link", re.sub(r'"data:[^"]*"', "", page))
    assert all(source.startswith("data:image/jpeg;base64,") for source in re.findall(r'src="([^"]*)"', page))


def test_the_page_has_every_chunk_once_and_a_bar_for_it(tmp_path):
    page = saved_html(tmp_path, make_clip(), make_allocation(), factor=8)
    for chunk, tokens in enumerate((1, 4, 35)):
        assert page.count(f'id="chunk-{chunk}"') == 1
        assert page.count(f'href="#chunk-{chunk}"') == 1
        assert page.count(f"<span>{tokens} tokens</span>") == 1


def test_a_split_chunk_has_two_bars_and_the_keyboard_stops_at_one(tmp_path):
    page = saved_html(tmp_path, make_clip(), make_allocation(frames=((0, 3),)))
    bars = re.findall(r'<a href="#chunk-0"[^>]*>', page)
    assert ["tabindex" in bar for bar in bars] == [False, True]


def test_the_page_embeds_both_views_only_where_they_differ(tmp_path):
    page = saved_html(tmp_path, make_clip(), make_allocation(), factor=32)
    assert page.count('class="original"') == 6
    assert page.count('class="seen"') == 4
    assert 'class="seen"' not in saved_html(tmp_path, make_clip(), make_allocation())


def test_titles_and_methods_are_escaped(tmp_path):
    hostile = "<script>alert('$title')</script> & \"co\""
    page = saved_html(tmp_path, make_clip(), make_allocation(), title=hostile, method="<b>$x")
    assert page.count("<script>") == 1
    assert f"<h1>{hostile}</h1>" in html.unescape(page)
    assert "&lt;script&gt;alert(" in page and "&lt;/script&gt; &amp; " in page
    assert "&lt;b&gt;$x" in page
    saved_png(tmp_path, make_clip(), make_allocation(), title=hostile * 9 + "\n日本", method="<b>$x")


def test_the_title_is_the_file_name_where_none_is_given(tmp_path):
    assert "<h1>talk.mp4</h1>" in saved_html(tmp_path, make_clip(), make_allocation())
    assert "<h1>&lt;frames&gt;</h1>" in saved_html(tmp_path, make_clip(source="<frames>"), make_allocation())


@pytest.mark.parametrize(("seconds", "clock"), [(59.999, "00:59"), (60, "01:00"), (36000, "10:00:00"), (-1, "00:00")])
def test_times_read_like_a_clock(seconds, clock):
    assert film.format_time(seconds) == clock
    assert film.format_time(np.float64(seconds)) == clock


@pytest.mark.parametrize(
    ("size", "count", "words"),
    [(1, 9, "reads each frame at its own size"), (2, 9, "chunks of 2,"), (3, 11, "chunks of 3,"), (16, 40, "of 16,")],
)
def test_chunks_of_any_length_are_drawn_and_named(size, count, words, tmp_path):
    clip = make_clip(count)
    allocation = allocate("uniform", clip, "8f", replace(GEOMETRY, frames_per_chunk=size))
    assert {len(frames) for frames in allocation.frames} == {size}
    image = saved_png(tmp_path, clip, allocation, factor=8)
    right_margin = np.asarray(image)[:, -40:]
    assert (right_margin == right_margin[0, 0]).all()
    page = saved_html(tmp_path, clip, allocation, factor=8)
    assert page.count("<time>") == count
    assert page.count('<li id="chunk-') == len(allocation) == -(-count // size)
    assert words in page
    assert not re.search(r"\b(pair|two)\b", re.sub(r"<[^>]*>", "", page.partition("<body>")[2]))


@pytest.mark.parametrize("together", [1, 2, 3, 4, 5, 12])
def test_no_row_of_the_picture_ends_within_a_chunk(together):
    for count in range(1, 80):
        for aspect in (0.2, 9 / 16, 16 / 9, 5.0):
            assert frames_per_row(count, aspect, together) % together == 0


def test_a_part_of_a_video_is_drawn_on_its_own_time_axis(tmp_path):
    whole, part = make_clip(), make_clip()
    part = replace(part, times=part.times + 600, start=600.0)
    shown = [saved_html(tmp_path, clip, make_allocation()) for clip in (whole, part)]
    places = [re.findall(r"left:[\d.]+%;width:[\d.]+%", page) for page in shown]
    assert places[0] == places[1] and len(places[0]) == 3
    ticks = [re.findall(r'<b style="left:[\d.]+%">(\d\d:\d\d)', page) for page in shown]
    assert ticks == [["00:00", "00:03", "00:06", "00:09", "00:12"], ["10:00", "10:03", "10:06", "10:09", "10:12"]]


def test_the_numbers_of_a_filmstrip_need_no_torch():
    code = "import sys; from allocembed import film; film.format_time(3); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_only_the_picture_needs_the_extra_for_plots(tmp_path, monkeypatch):
    for name in ("matplotlib", "markdown_it"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "48 tokens" in saved_html(tmp_path, make_clip(), make_allocation())
    with pytest.raises(MissingDependency, match=r"allocembed\[plot\]"):
        film.save_png(make_clip(), make_allocation(), tmp_path / "film.png")
