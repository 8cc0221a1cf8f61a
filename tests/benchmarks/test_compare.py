"""Methods and budgets on the same videos: one decode each, bad files and impossible budgets left out by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from allocembed.benchmarks import compare
from allocembed.benchmarks.fidelity import Setting
from allocembed.config import EmbedConfig
from allocembed.errors import BudgetError, ConfigError, DataError
from allocembed.video import Clip, VideoSource
from allocembed_nano import nanoret
from tests.clips import picture, write_video

CONFIG = EmbedConfig(candidates=4)


def make_clip(number: int, width: int = 96, height: int = 64) -> Clip:
    frames = np.stack([picture(100 * number + index, width, height) for index in range(4)])
    return Clip(frames, np.arange(4.0), np.arange(4), 4, 4.0, f"clip {number}")


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    return [make_clip(number) for number in range(3)]


def test_a_budget_of_all_candidates_is_full_resolution(nano_backbone, clips):
    candidates = compare.make_candidates(nano_backbone, CONFIG, ["base", "uniform"], ["2f", "4f"])
    table = compare.measure(candidates, clips)
    assert table.sources == ["clip 0", "clip 1", "clip 2"] and len(table.settings) == 4
    whole = [table.settings.index(Setting(method, "4f")) for method in table.methods]
    assert np.allclose(table.cosines[:, whole], 1, atol=1e-5) and (table.full_tokens == table.tokens[:, whole].T).all()
    half = table.settings.index(Setting("uniform", "2f"))
    assert (table.cosines[:, half] < 0.99999).all() and (2 * table.tokens[:, half] <= table.full_tokens).all()
    expected = candidates.settings[Setting("uniform", "2f")].encode_video(clips[1])
    assert np.allclose(table.vectors[1, half], expected.vector, atol=1e-6)


def test_sensitivity_reports_what_it_read_to_look(nano_backbone, clips):
    table = compare.measure(
        compare.make_candidates(nano_backbone, CONFIG, ["uniform", "sensitivity"], ["2f"]), clips[:2]
    )
    assert (table.look_tokens[:, 0] == 0).all() and (table.look_tokens[:, 1] > 0).all()


def test_a_video_is_decoded_once_for_all_settings(nano_backbone, tmp_path, monkeypatch):
    paths = [write_video(tmp_path / f"{number}.mp4", 12 + number) for number in range(2)]
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"nothing")
    opened, sample_many = [], VideoSource.sample_many

    def count(self, *given):
        opened.append(self.source)
        return sample_many(self, *given)

    monkeypatch.setattr(VideoSource, "sample_many", count)
    candidates = compare.make_candidates(nano_backbone, CONFIG, ["base", "uniform"], ["2f", "3f"])
    done = []
    table = compare.measure(candidates, [paths[0], bad, paths[1]], progress=done.append)
    assert sorted(opened) == sorted(map(str, paths)) and done == [5, 10, 15]
    assert table.sources == list(map(str, paths)) and len(table.failures) == 1 and "bad.mp4" in table.failures[0]
    timed = compare.add_timings(table, candidates, paths[:1])
    assert timed.timings and (timed.timings.totals > 0).all() and timed.timings.decoding is not None
    with pytest.raises(DataError, match=r"with 1 readable videos.*bad\.mp4"):
        compare.measure(candidates, [paths[0], bad])


def test_an_impossible_budget_is_left_out_for_all_videos(nano_backbone, clips):
    candidates = compare.make_candidates(nano_backbone, CONFIG, ["uniform"], ["1", "2f"])
    table = compare.measure(candidates, clips[:2])
    assert table.settings == [("uniform", "2f")] and "uniform at 1: clip 0: the budget of 1 tokens" in table.left_out[0]
    with pytest.raises(BudgetError, match="every budget is too small"):
        compare.measure(compare.make_candidates(nano_backbone, CONFIG, ["uniform"], ["1"]), clips[:2])


def test_usual_methods_need_no_bundled_allocator(nano_backbone):
    candidates = compare.make_candidates(nano_backbone, CONFIG)
    assert list(candidates.settings) == [Setting(method, "2f") for method in compare.METHODS]
    with pytest.raises(ConfigError, match="at least one other method"):
        compare.make_candidates(nano_backbone, CONFIG, ["full"])


@pytest.mark.slow
def test_the_nano_script_has_the_hits_of_nanoret(nano_tiny, nano_backbone, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    import compare_nano

    out = tmp_path / "out.json"
    words = ["--backbone", nano_tiny, "--videos", 3, "--seeds", 7, "--budgets", "2f", "3f", "--candidates", 4]
    words += ["--methods", "base", "uniform", "--device", "cpu", "--out", out]
    correlations = compare_nano.main([str(word) for word in words])
    found = json.loads(out.read_text())["7"]
    assert list(found) == ["base 2f", "base 3f", "uniform 2f", "uniform 3f"] and set(correlations) == {"cosine", "own"}
    assert "over 4 settings" in capsys.readouterr().out
    scores = nanoret.evaluate(
        nano_backbone,
        ["uniform"],
        config=EmbedConfig(candidates=4, budget="3f"),
        subsets=nanoret.RETRIEVAL,
        limit=3,
        seed=7,
    )
    assert found["uniform 3f"]["hit1"] == pytest.approx(np.mean([score.hit1 for score in scores]))


def test_what_a_number_format_costs_shows_against_a_reference(qwen3_folder, tmp_path):
    paths = [write_video(tmp_path / f"{number}.mp4", 8 + number) for number in range(2)]
    config = EmbedConfig(backbone=str(qwen3_folder), device="cpu", dtype="int8", candidates=4)
    tables = [
        compare.compare_files(config, paths, methods=["uniform"], budgets=["4f"], reference_dtype=dtype)
        for dtype in (None, "float32")
    ]
    assert np.allclose(tables[0].cosines, 1, atol=1e-5)
    assert (tables[1].cosines < 0.99999).all() and (tables[1].cosines > 0.98).all()
