"""Whole runs of NanoRet: tables in three forms, learned allocators by their folders, sweeps."""

from contextlib import contextmanager

import pytest
from PIL import Image

from allocembed import EmbedConfig
from allocembed.benchmarks.sweep import FRAMES
from allocembed.errors import PolicyError
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed_nano.nanoret import RETRIEVAL, run
from allocembed_nano.request import NanoRequest
from tests.allocators.test_learned import save_policy

pytestmark = pytest.mark.slow

QUICK = EmbedConfig(budget="2f", candidates=4, device="cpu")
MODULE = FrameModuleConfig(visual_width=64, text_width=64, width=16, heads=2, layers=1)


def test_results_have_three_forms(nano_tiny, caplog):
    request = NanoRequest(
        methods=["base", "full", "learned"],
        backbones=[str(nano_tiny)],
        subsets=["short-video", "qa"],
        config=QUICK,
        limit=2,
        seed=3,
    )
    seen = []

    @contextmanager
    def progress(title: str):
        class Line:
            def update(self, done: int, total: int | None = None, note: str = "") -> None:
                seen.append((title, done, total))

        yield Line()

    results = run(request, progress=progress)
    assert list(results.json) == ["rows"] and len(results.json["rows"]) == 4 and not results.files
    keys = ["method", "subset", "hit@1", "mean_rank", "cost", "over_budget", "n"]
    assert all(list(row) == keys for row in results.json["rows"])
    assert "skipping learned: no learned allocator is bundled for" in caplog.text
    assert "only the first 2 of every 500" in results.markdown and "seed 3" in results.markdown
    assert "NanoRet, nano-tiny" in results.markdown and "2.000×" in results.markdown
    assert "1.000× = 2 frames at native size" in results.markdown and len(results.tables) == 1
    assert seen[-1] == ("nano-tiny", 8, 8)


def test_learned_allocators_are_measured_by_their_folders(nano_tiny, tmp_path):
    methods = [
        "base",
        *(str(save_policy(tmp_path / name, "backbone", str(nano_tiny), MODULE)) for name in ("one", "two")),
    ]
    request = NanoRequest(methods=methods, backbones=[str(nano_tiny)], subsets=["qa"], config=QUICK, limit=2)
    rows = {row["method"]: row for row in run(request).json["rows"]}
    assert list(rows) == ["base", "one", "two"]
    assert rows["one"]["over_budget"] == 0 and rows["one"]["cost"] <= 1


@pytest.mark.parametrize(
    ("method", "message"), [("learned", "no learned allocator is bundled"), ("no/allocator", "no/allocator")]
)
def test_an_allocator_that_cannot_be_loaded_is_named(method, message, nano_tiny):
    with pytest.raises(PolicyError, match=message):
        run(NanoRequest(methods=[method], backbones=[str(nano_tiny)], config=QUICK, limit=1))


def test_a_sweep_writes_its_plot_and_table(nano_tiny, tmp_path):
    config = EmbedConfig(device="cpu")
    results = run(NanoRequest(backbones=[str(nano_tiny)], sweep="frames", limit=2, config=config, out=tmp_path))
    curves = results.json["results"][0]["curves"]
    assert [point["x"] for point in curves["full"]] == list(FRAMES)
    assert [point["cost"] for point in curves["full"]] == [1, 2, 3, 4, 6]
    assert all(0.9 < point["cost"] <= 1 for point in curves["uniform"])
    assert curves["full"][0]["hit1"] == curves["uniform"][0]["hit1"], "both are Base at 8 frames"
    assert curves["full"][-1]["over_budget"] == 4, "two short and two long videos"
    rows = results.json["results"][0]["rows"]
    assert [row["subset"] for row in rows if row["method"] == "full@16"] == list(RETRIEVAL)
    assert sorted(path.name for path in results.files) == [
        f"sweep_frames.{end}" for end in ("json", "md", "pdf", "png", "svg")
    ]
    assert Image.open(tmp_path / "sweep_frames.png").width > 600
    assert "Uniform alloc." in (tmp_path / "sweep_frames.svg").read_text()
    table = (tmp_path / "sweep_frames.md").read_text()
    assert table == results.markdown and table.count("|") == 6 * 7 and "only the first 2 of every 500" in table
