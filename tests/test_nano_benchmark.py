"""NanoRet, its command and the demo: what is asked, of which videos, and that the numbers mean what they say."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from allocembed import AllocEmbed, Embedding, demo, load_backbone, world
from allocembed.allocators import METHODS
from allocembed.benchmarks import nano
from allocembed.benchmarks.sweep import FRAME_COUNTS
from allocembed.cli import app
from allocembed.eval_cli import ALL_SUBSETS
from allocembed.options import METHODS as METHOD_NAMES
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.video import sample
from allocembed.world import vocabulary as vocab
from allocembed.world.timeline import EVENT_SLOTS

RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An untrained nano checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RECIPES))
        from nano_model import build_backbone, save_backbone

        folder = tmp_path_factory.mktemp("models") / "nano-tiny"
        save_backbone(build_backbone("qwen3", tiny=True), folder, {})
    return folder


@pytest.fixture(scope="module")
def backbone(folder):
    return load_backbone(folder, device="cpu")


def run(*words: object):
    return CliRunner().invoke(app, list(map(str, words)))


def equal(one: world.Timelines, other: world.Timelines) -> bool:
    return np.array_equal(one.end, other.end) and np.array_equal(one.object, other.object)


class Oracle(AllocEmbed):
    """Knows which text belongs to which video: an axis for each video, and one for each option of a question."""

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self.axes: dict[str, int] = {}
        for subset, name in nano.SUBSETS.items():
            task = nano.make_task(subset, nano.draw_videos(name))
            if task.options:
                self.answers = [task.texts[task.options * video + right] for video, right in enumerate(task.targets)]
                self.axes |= {text: 500 + number for number, text in enumerate(sorted(set(task.texts)))}
            else:
                self.axes |= dict(zip(task.texts, task.targets.tolist(), strict=True))

    def vector(self, axis: int) -> np.ndarray:
        return np.eye(1, 500 + len(self.axes), axis)[0]

    def encode_texts(self, texts, *, instruction=None):
        return [Embedding(self.vector(self.axes[text]), text) for text in texts]

    def stream(self, sources, text=None, **_) -> Iterator[Embedding]:
        for clip in sources:
            _, name, number = clip.source.split("/")
            axis = self.axes[self.answers[int(number)]] if name == "qa" else int(number)
            yield Embedding(self.vector(axis), clip.source, self.allocate(clip))


@pytest.mark.parametrize("subset", nano.SUBSETS)
def test_every_subset_asks_as_much_as_it_says(subset):
    videos = nano.draw_videos(nano.SUBSETS[subset])
    task = nano.make_task(subset, videos)
    assert len(videos) == 500
    assert 0.4 < videos.timelines.portrait.mean() < 0.6
    if subset == "qa":
        assert task.options == 4 and len(task.texts) == 2000 and task.targets.shape == (500,)
        assert (np.bincount(task.targets, minlength=4) > 90).all(), "the right option stands anywhere"
        assert (videos.timelines.duration >= 600).mean() == 0.5
    else:
        expected = np.repeat(np.arange(500), 3 if subset.endswith("clip") else 1)
        assert not task.options and np.array_equal(task.targets, expected)
        assert len(set(task.texts)) == len(task.texts), "no text describes two videos"
        assert (videos.timelines.duration >= 600).all() == subset.startswith("long")


def test_the_three_sets_hold_different_videos():
    short, long, qa = (nano.draw_videos(name).timelines for name in ("short", "long", "qa"))
    assert not {tuple(row) for row in short.end} & {tuple(row) for row in qa.end}
    assert not {tuple(row) for row in long.end} & {tuple(row) for row in qa.end}


def test_equal_seeds_give_equal_worlds_and_others_differ():
    for name in nano.TEST_SEEDS:
        shipped, again, zero, one = (nano.draw_videos(name, seed=seed) for seed in (None, None, 0, 1))
        assert equal(shipped.timelines, again.timelines)
        assert not equal(shipped.timelines, zero.timelines) and not equal(zero.timelines, one.timelines)
        subset = next(subset for subset, videos in nano.SUBSETS.items() if videos == name)
        assert nano.make_task(subset, shipped).texts == nano.make_task(subset, again).texts
        assert nano.make_task(subset, shipped).texts != nano.make_task(subset, zero).texts


def test_a_limit_keeps_the_first_videos_and_their_very_texts():
    for subset, name in nano.SUBSETS.items():
        every, few = nano.draw_videos(name), nano.draw_videos(name, limit=6)
        assert len(few) == 6 and equal(few.timelines, every.timelines.select(range(6)))
        texts = nano.make_task(subset, few).texts
        assert texts == nano.make_task(subset, every).texts[: len(texts)]
    assert (nano.draw_videos("qa", limit=6).timelines.duration >= 600).sum() == 3


def test_the_test_worlds_show_combinations_that_training_never_does():
    for name in nano.TEST_SEEDS:
        timelines = nano.draw_videos(name).timelines
        used = np.arange(len(EVENT_SLOTS)) < timelines.events[:, None]
        objects, colours, words = (
            getattr(timelines, kind)[:, EVENT_SLOTS][used] for kind in ("object", "colour", "word")
        )
        assert 0.08 < (~vocab.SEEN_OBJECT_COLOUR[objects, colours]).mean() < 0.16
        assert 0.08 < (~vocab.SEEN_OBJECT_WORD[objects, words]).mean() < 0.16


def test_a_clip_is_what_decoding_its_file_gives(tmp_path):
    videos = nano.draw_videos("short", limit=2)
    size = world.PORTRAIT if videos.timelines.portrait[1] else world.LANDSCAPE
    path = world.write_mp4(videos.timelines, 1, tmp_path / "one.mp4", size)
    decoded, made = sample(path, 8), nano.clips_of(videos, [1], [8])[8][0]
    assert np.array_equal(decoded.indices, made.indices) and decoded.total == made.total
    assert decoded.frames.shape == made.frames.shape
    assert np.abs(decoded.frames.astype(int) - made.frames).mean() < 6, "the same pictures, but for compression"
    assert np.allclose(decoded.times, made.times, rtol=0.003)
    assert decoded.duration == pytest.approx(made.duration, rel=0.01)


def test_frame_counts_share_one_rendering_and_keep_the_order(monkeypatch):
    videos = nano.draw_videos("short", limit=5)
    rendered = []
    render = world.render
    monkeypatch.setattr(world, "render", lambda *a, **k: rendered.append(render(*a, **k)) or rendered[-1])
    clips = nano.clips_of(videos, range(5), [8, 24])
    assert sum(frames.shape[0] * frames.shape[1] for frames in rendered) == 5 * 30, "first and last frame are shared"
    assert [clip.source for clip in clips[24]] == [f"nano/short/{video:03}" for video in range(5)]
    alone = nano.clips_of(videos, [3], [8])[8][0]
    assert np.array_equal(alone.frames, clips[8][3].frames)
    for clip in clips[24]:
        assert clip.frames.shape[1:] in ((144, 192, 3), (192, 144, 3)) and len(clip) == len(clip.times) == 24
        assert clip.times[0] == 0 and clip.times[-1] == clip.duration


@pytest.fixture(scope="module")
def rows(backbone) -> list[nano.Row]:
    return nano.evaluate(backbone, list(METHODS), limit=3)


def test_every_method_is_scored_on_every_subset(rows):
    assert [(row.method, row.subset) for row in rows] == [(m, s) for m in METHODS for s in nano.SUBSETS]
    assert {row.subset: row.n for row in rows} == {
        "short-clip": 9,
        "short-video": 3,
        "long-clip": 9,
        "long-video": 3,
        "qa": 3,
    }
    assert all(0 <= row.hit1 <= 100 and 1 <= row.mean_rank <= (4 if row.subset == "qa" else 3) for row in rows)


def test_only_full_resolution_is_over_the_budget(rows):
    for row in rows:
        assert row.over_budget == (3 if row.method == "full" else 0)
        expected = {"full": 3.0, "base": 1.0, "select": 1.0}.get(row.method)
        assert row.cost == expected if expected else 0.9 < row.cost <= 1


def test_the_benchmark_repeats_itself(backbone, rows):
    again = nano.evaluate(backbone, ["uniform"], subsets=["qa", "short-clip"], limit=3)
    before = {row.subset: row for row in rows if row.method == "uniform"}
    assert [row.subset for row in again] == ["qa", "short-clip"]
    for row in again:
        assert row.mean_rank == pytest.approx(before[row.subset].mean_rank, abs=1e-3)


def test_an_embedding_that_knows_everything_scores_100(backbone, monkeypatch):
    monkeypatch.setattr(nano, "AT_ONCE", 5)
    oracle = {"base": Oracle(backbone, "base", candidates=2, budget="2f")}
    rows = nano.evaluate_embedders(oracle, limit=12)
    assert [row.hit1 for row in rows] == [100.0] * 5 and {row.mean_rank for row in rows} == {1.0}


def test_the_question_reaches_model_and_allocator(backbone):
    seen = []

    class Listening(AllocEmbed):
        def _allocate(self, clip, text):
            seen.append(text)
            return super()._allocate(clip, text)

    nano.evaluate_embedders({"base": Listening(backbone, "base", budget="2f")}, subsets=["qa", "short-video"], limit=2)
    asked = [question.text for question in nano.questions(nano.draw_videos("qa", limit=2))]
    assert seen == [*asked, None, None]


def test_methods_of_one_name_are_not_mixed_up(backbone):
    for methods in ([], ["base", "base"]):
        with pytest.raises(ValueError, match="each once"):
            nano.evaluate(backbone, methods)


def test_progress_counts_every_video_of_every_method(backbone):
    seen = []
    nano.evaluate(
        backbone, ["base", "select"], subsets=["qa"], limit=2, budget="2f", progress=lambda *x: seen.append(x)
    )
    assert seen == [(done, 4) for done in range(1, 5)]


def test_a_model_in_its_own_world_needs_no_warning(backbone, caplog, monkeypatch):
    monkeypatch.setattr(backbone, "notice", "knows its own world only")
    with caplog.at_level(logging.WARNING, logger="allocembed"):
        nano.evaluate(backbone, ["base"], subsets=["qa"], limit=1, budget="2f")
    assert not caplog.records and backbone.notice


def test_the_command_prints_the_promised_json_and_nothing_else(folder, tmp_path):
    table = tmp_path / "deep" / "table.md"
    words = ("--limit", 2, "--budget", "2f", "--candidates", 4, "--subsets", "short-video,qa", "--seed", 3)
    result = run("eval", "nano", "--backbone", folder, "--methods", "base,full,learned", *words, "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert list(shown) == ["rows"] and len(shown["rows"]) == 4
    keys = ["method", "subset", "hit@1", "mean_rank", "cost", "over_budget", "n"]
    assert all(list(row) == keys for row in shown["rows"])
    assert "without learned: no learned allocator is shipped for" in result.stderr
    result = run("eval", "nano", "--backbone", folder, "--methods", "base,full", *words, "--markdown", table)
    assert result.exit_code == 0, result.output
    assert "only the first 2 of every 500" in table.read_text() and "seed 3" in table.read_text()
    assert "NanoRet, nano-tiny" in result.stdout and "2.000×" in result.stdout
    for shown in (table.read_text(), " ".join(result.stdout.split())):
        assert "1.000× = 2 frames at native size" in shown


def test_learned_allocators_are_measured_by_their_folders(folder, tmp_path):
    module = FrameModuleConfig(visual_width=64, text_width=64, width=16, heads=2, layers=1)
    for name in ("one", "two"):
        ScalePolicy(PolicyConfig(module, "backbone", str(folder))).save_pretrained(tmp_path / name)
    methods = f"base,{tmp_path / 'one'},{tmp_path / 'two'}"
    words = ("--limit", 2, "--budget", "2f", "--candidates", 4, "--subsets", "qa", "--json")
    result = run("eval", "nano", "--backbone", folder, "--methods", methods, *words)
    assert result.exit_code == 0, result.output
    rows = {row["method"]: row for row in json.loads(result.stdout)["rows"]}
    assert list(rows) == ["base", "one", "two"]
    assert rows["one"]["over_budget"] == 0 and rows["one"]["cost"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "base,magic"], "there is no allocator 'magic'"),
        (["--methods", "learned"], "no learned allocator is shipped"),
        (["--methods", "base,no/allocator"], "the allocator 'no/allocator' can't be had"),
        (["--methods", ","], "no method to run"),
        (["--subsets", "tall-video"], "there is no subset 'tall-video'"),
        (["--limit", "0"], "limit"),
        (["--seed", "-1"], "seed"),
        (["--budget", "lots"], "cannot read the budget"),
        (["--range", "wide"], "--range"),
        (["--sweep", "colours"], "frames"),
        (["--sweep", "frames", "--methods", "learned"], "leave out --methods"),
    ],
)
def test_wrong_options_are_named(folder, words, message):
    result = run("eval", "nano", "--backbone", folder, *words)
    assert result.exit_code in (1, 2)
    assert message in f"{result.exception} {result.output}"


def test_the_command_knows_the_subsets_and_methods_without_importing_them():
    assert ",".join(nano.SUBSETS) == ALL_SUBSETS
    assert {*METHODS, "learned"} == set(METHOD_NAMES)


def test_a_model_that_is_not_bundled_is_missed_by_name(tmp_path, monkeypatch):
    from allocembed.backbones import loading

    monkeypatch.setattr(loading, "ASSETS", tmp_path)
    monkeypatch.setitem(loading.REGISTRY, "nano-qwen3", loading.Entry(str(tmp_path / "nano-qwen3")))
    result = run("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 1 and "nano-qwen3 is missing from this installation" in str(result.exception)
    assert not (tmp_path / "demo").exists()


def test_the_sweep_writes_its_plot_and_table(folder, tmp_path):
    result = run("eval", "nano", "--backbone", folder, "--sweep", "frames", "--limit", 4, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)["rows"]
    assert [row["frames"] for row in shown if row["method"] == "full" and row["subset"] == "long-clip"] == [
        *FRAME_COUNTS
    ]
    costs = {(row["method"], row["frames"]): row["cost"] for row in shown}
    assert [costs["full", count] for count in FRAME_COUNTS] == [1, 2, 3, 4, 6]
    assert all(0.9 < costs["uniform", count] <= 1 for count in FRAME_COUNTS)
    hits = {(row["method"], row["frames"], row["subset"]): row["hit@1"] for row in shown}
    assert all(hits["full", 8, subset] == hits["uniform", 8, subset] for subset in nano.RETRIEVAL)
    assert Image.open(tmp_path / "sweep_frames.png").width > 600
    assert "fixed budget" in (tmp_path / "sweep_frames.svg").read_text()
    assert (tmp_path / "sweep_frames.md").read_text().count("|") == 6 * 7


@pytest.mark.parametrize("target", ["table.md", "sweep_frames.md", "sweep_frames.png"])
def test_results_that_find_no_room_are_said_and_leave_the_old_ones(folder, tmp_path, full_disk, monkeypatch, target):
    if target.endswith(".png"):
        monkeypatch.setattr("allocembed.benchmarks.sweep.markdown", lambda *_: "")  # an empty table fits
    (tmp_path / target).write_text("old")
    if target == "table.md":
        words = ["--methods", "base", "--subsets", "short-clip", "--markdown", tmp_path / target]
    else:
        words = ["--sweep", "frames", "--out", tmp_path]
    result = run("eval", "nano", "--backbone", folder, "--limit", 2, *words)
    assert str(result.exception) == full_disk.format(tmp_path / target)
    assert (tmp_path / target).read_text() == "old" and not list(tmp_path.glob("*.partial"))


@pytest.fixture
def small_films(monkeypatch):
    monkeypatch.setattr(demo, "SIZE", (72, 96))


def test_the_demo_runs_from_nothing_and_again_from_what_is_there(folder, small_films, tmp_path):
    def show() -> tuple[str, list]:
        console = Console(file=io.StringIO(), width=100)
        answers = demo.run_demo(tmp_path, str(folder), videos=3, sample=2, device="cpu", console=console)
        return console.file.getvalue(), answers

    said, answers = show()
    films = sorted((tmp_path / "videos").glob("*.mp4"))
    assert len(films) == 3 and len(answers) == 3
    assert all(len(answer.found) == 3 for answer in answers)
    assert f"{sum(answer.right for answer in answers)} of 3 sentences" in said
    assert "toy-01.mp4" in (tmp_path / "film.html").read_text()
    assert "1.000× = 8 frames at native size" in said
    assert "NanoRet" in said and "allocembed embed" in said and str(tmp_path / "videos")[:20] in said

    written = [film.stat().st_mtime_ns for film in films]
    again, same = show()
    assert [film.stat().st_mtime_ns for film in films] == written and "3 of them from last time" in again
    assert [answer.found for answer in same] == [answer.found for answer in answers]


@pytest.mark.parametrize("missing", [False, True])
def test_the_demo_says_what_search_needs_only_where_it_is_missing(folder, small_films, tmp_path, monkeypatch, missing):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if missing and name == "lancedb" else object())
    console = Console(file=io.StringIO(), width=100)
    demo.run_demo(tmp_path, str(folder), videos=2, sample=2, device="cpu", console=console)
    said = console.file.getvalue()
    assert ("  pip install -e '.[search]' && allocembed index" in said) == missing and "allocembed index" in said


def test_the_demo_shows_the_shipped_allocator_beside_the_others(folder, small_films, tmp_path, monkeypatch):
    from allocembed.backbones import loading

    module = FrameModuleConfig(visual_width=64, text_width=64, width=16, heads=2, layers=1)
    ScalePolicy(PolicyConfig(module, "backbone", "nano-qwen3")).save_pretrained(tmp_path / "policy")
    entry = loading.Entry(str(folder), allocator=str(tmp_path / "policy"))
    monkeypatch.setitem(loading.REGISTRY, "nano-qwen3", entry)
    console = Console(file=io.StringIO(), width=100)
    demo.run_demo(tmp_path, videos=2, sample=2, device="cpu", console=console)
    said = console.file.getvalue()
    assert "embedded by learned" in said and "\nlearned" in said and "\ncontent" in said


def test_the_demo_writes_only_the_videos_it_lacks(small_films, tmp_path):
    timelines = world.draw(2, seed=0, orientation="mixed")
    counts = []

    def written() -> int:
        return demo.make_videos(timelines, tmp_path, lambda *count: counts.append(count))[1]

    assert (written(), written()) == (2, 0) and counts == [(1, 2), (2, 2)]
    (tmp_path / "toy-02.mp4").unlink()
    assert written() == 1
    (tmp_path / demo.STAMP).write_text("another version")
    assert written() == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [demo.STAMP, "toy-01.mp4", "toy-02.mp4"]
