"""Fidelity to full resolution: what is recommended, how sure that is, and what is said when videos cannot tell."""

from dataclasses import replace

import numpy as np
import pytest

from allocembed.benchmarks.fidelity import FidelityTable, Setting, Timings, as_json, estimate, recommend

SETTINGS = [Setting(method, budget) for method in ("uniform", "smart") for budget in ("4f", "8f")]


def make_table(cosines, *, videos: int = 40, noise: float = 0.01, times=None, seed: int = 0) -> FidelityTable:
    """A table whose vectors have about the given mean cosines, uniform's first, to orthogonal full vectors."""
    chance = np.random.default_rng(seed).standard_normal((videos, len(SETTINGS)))
    drawn = np.minimum(np.array(cosines) + noise * chance, 1)
    full, aside = np.eye(videos, 2 * videos), np.eye(videos, 2 * videos, k=videos)
    vectors = drawn[..., None] * full[:, None] + np.sqrt(1 - drawn[..., None] ** 2) * aside[:, None]
    tokens = np.tile([100, 200, 100, 200], (videos, 1))
    timings = None
    if times is not None:
        taken = np.tile(np.array(times, float), (5, 1))
        timings = Timings(0.25 * taken, 0.75 * taken, np.full((5, 2), 50.0), np.full(5, 30.0))
    names = [f"{number}.mp4" for number in range(videos)]
    return FidelityTable(SETTINGS, names, full, vectors, tokens, 0 * tokens, np.full(videos, 600), timings=timings)


def test_cosines_and_hits_are_those_of_the_own_full_vector():
    table = make_table([0.5, 0.8, 0.6, 0.9], noise=0)
    assert np.allclose(table.cosines, [0.5, 0.8, 0.6, 0.9]) and table.found.all() and table.between == 0
    swapped = table.vectors[np.r_[1, 0, 2 : len(table)]]
    mixed = FidelityTable(SETTINGS, table.sources, table.full, swapped, *[table.tokens] * 2, table.full_tokens)
    assert mixed.found[:, 0].sum() == len(table) - 2


def test_the_cheapest_setting_near_the_best_is_recommended():
    advice = recommend(make_table([0.80, 0.949, 0.94, 0.95]))
    assert advice.setting == ("smart", "4f") and advice.share > 0.95
    assert "17 % of the tokens" in advice.sentence and advice.sentence.endswith("uniform needs 8f for the same")
    assert recommend(make_table([0.80, 0.949, 0.94, 0.95]), within=0.001).setting.budget == "8f"


def test_time_decides_unless_tokens_are_asked_for():
    table = make_table([0.80, 0.949, 0.94, 0.95], times=[10, 20, 90, 95])
    advice = recommend(table)
    assert advice.setting == ("uniform", "8f") and "and 20 % of the time" in advice.sentence
    assert recommend(table, by="tokens").setting == ("smart", "4f")
    better = recommend(make_table([0.5, 0.94, 0.6, 0.95], noise=0.001, times=[10, 20, 90, 100]))
    assert better.sentence.endswith("smart is better by 0.010 under that budget, but takes 5.0 times as long")


def test_what_costs_as_much_as_full_resolution_is_not_recommended():
    table = replace(make_table([0.80, 0.949, 0.94, 0.95]), full_tokens=np.full(40, 150))
    advice = recommend(table, within=0.001)
    assert advice.setting == ("smart", "4f")
    assert any(
        "as many tokens as full resolution, or more: uniform at 8f, smart at 8f" in note for note in advice.warnings
    )
    advice = recommend(replace(table, full_tokens=np.full(40, 90)))
    assert advice.sentence.startswith("full resolution, because no setting that was measured costs fewer tokens")


def test_a_method_alone_is_not_said_to_be_the_best():
    table = make_table([0.80, 0.9, 0.88, 0.9])
    alone = replace(
        table,
        settings=SETTINGS[:1],
        **{name: getattr(table, name)[:, :1] for name in ("vectors", "tokens", "look_tokens")},
    )
    assert recommend(alone).sentence.endswith("no other method was measured under that budget")


def test_another_method_must_be_better_than_uniform_by_more_than_chance():
    equal = recommend(make_table([0.5, 0.90, 0.5, 0.90], noise=0.05))
    assert equal.setting == ("uniform", "8f") and any("no method differs" in note for note in equal.warnings)
    assert equal.sentence.endswith("no method is better under that budget by more than chance")
    assert recommend(make_table([0.5, 0.90, 0.5, 0.93], noise=0.02)).setting == ("smart", "8f")


def test_few_videos_and_doubtful_choices_are_said():
    notes = recommend(make_table([0.80, 0.9, 0.88, 0.9], videos=5, noise=0.03)).warnings
    assert any("only 5 videos" in note for note in notes)
    doubtful = recommend(make_table([0.4, 0.7, 0.69, 0.71], noise=0.08))
    assert doubtful.share < 0.8 and any(str(doubtful.runner_up) in note for note in doubtful.warnings)


def test_unsteady_times_are_said():
    table = make_table([0.80, 0.949, 0.94, 0.95], times=[10, 20, 90, 95])
    assert table.timings and not any("times are not reliable" in note for note in recommend(table).warnings)
    table = replace(table, timings=replace(table.timings, ratio=1.7))
    assert any("took 1.7 times as long" in note for note in recommend(table).warnings)


def test_copies_are_noticed():
    table = make_table([0.80, 0.949, 0.94, 0.95])
    table.full[1], table.vectors[1] = table.full[0], table.vectors[0]
    advice = recommend(table)
    assert table.copies == 2 and table.found[:2].tolist() == [[0.5] * 4] * 2
    assert any("2 videos have the same full vector" in note for note in advice.warnings)


def test_json_has_every_number_and_null_for_the_unknown():
    table = make_table([0.80, 0.949, 0.94, 0.95], times=[10, 20, 90, 95])
    shown = as_json(table, recommend(table))
    row = shown["rows"][2]
    assert (row["method"], row["budget"], row["tokens"], row["ms"]["total"]) == ("smart", "4f", 100, 90)
    assert row["cosine"]["mean"] == pytest.approx(0.94, abs=0.01) and row["minus_uniform"]["low"] > 0
    assert shown["rows"][0]["minus_uniform"] is None and shown["decode_ms"] == 30 and shown["full"]["tokens"] == 600
    table = make_table([0.80, 0.949, 0.94, 0.95])
    assert as_json(table, recommend(table))["rows"][0]["ms"] is None


def test_intervals_hold_the_true_mean_as_often_as_they_say():
    draws = np.random.default_rng(1).normal(3, 2, (4000, 6))
    held = [found.low < 3 < found.high for found in map(estimate, draws)]
    assert 0.94 < np.mean(held) < 0.96


def test_what_takes_longer_than_full_resolution_is_not_recommended_for_its_time():
    table = make_table([0.5, 0.8, 0.6, 0.95], times=[20, 30, 120, 150])  # full resolution takes 100
    advice = recommend(table)
    assert advice.setting == ("uniform", "8f") and any("smart at 4f, smart at 8f" in note for note in advice.warnings)
    assert recommend(table, by="tokens").setting == ("smart", "8f")
    assert recommend(make_table([0.5, 0.8, 0.6, 0.95], times=[200, 300, 400, 500])).setting == ("smart", "8f")


@pytest.mark.parametrize(("milliseconds", "said"), [(94, True), (40, False)])
def test_a_choice_that_saves_hardly_any_time_says_so(milliseconds, said):
    table = make_table([0.5, 0.8, 0.6, 0.95], times=[20, 30, 60, milliseconds])
    advice = recommend(table)
    assert advice.setting == ("smart", "8f")
    assert ("it saves 6 % of the time here; --by tokens recommends by tokens" in advice.warnings) == said
    assert not any("saves" in note for note in recommend(table, by="tokens").warnings)
