"""Ours gives the vectors of the models' own code: compared with what it returned, which `recipes/official` wrote."""

import math

import pytest

from tests import official
from tests.official_ours import compare, fixture_names, load_fixture, load_ours, run_case

HEAVY = 4_000_000  # pixels of a case above which it takes more than a second or so


def _cases(*, apart: bool) -> list:
    parameters = []
    for name in fixture_names():
        for number, case in enumerate(load_fixture(name)["cases"]):
            if ("differs" in case) == apart:
                pixels = case.get("width", 0) * case.get("height", 0) * case.get("total", 0)
                heavy = pixels > HEAVY or case["expected"].get("ids", {}).get("count", 0) > 1500
                marks = [pytest.mark.slow] if heavy else []
                parameters.append(pytest.param(name, number, id=f"{name}: {case['name']}", marks=marks))
    return parameters


@pytest.fixture(scope="module")
def embedders(tmp_path_factory):
    """Ours for each fixture, made when first asked for."""
    made = {}

    def find(name: str):
        if name not in made:
            made[name] = load_ours(load_fixture(name), tmp_path_factory.mktemp("checkpoint"))
        return made[name]

    return find


@pytest.mark.parametrize(("name", "number"), _cases(apart=False))
def test_ours_equals_what_the_official_code_returned(name, number, embedders, tmp_path):
    case = load_fixture(name)["cases"][number]
    made = run_case(embedders(name), case, tmp_path)
    assert compare(case["expected"], made).failures() == []


@pytest.mark.parametrize(("name", "number"), _cases(apart=True))
def test_ours_embeds_what_the_official_code_does_not_read(name, number, embedders, tmp_path):
    case = load_fixture(name)["cases"][number]
    assert "error" in case["expected"] or "grid" not in case["expected"]
    made = run_case(embedders(name), case, tmp_path)
    assert len(made.get("frames", [])) == case.get("count", 0)
    if case.get("vector", True):
        assert math.isclose(sum(value**2 for value in made["vector"]), 1, rel_tol=1e-5)


@pytest.mark.parametrize("name", fixture_names())
def test_the_checkpoint_is_the_one_that_the_official_code_read(name, tmp_path):
    fixture = load_fixture(name)
    folder = official.save_checkpoint(fixture["model"], tmp_path)
    assert official.digest_weights(official.make_weights(folder)) == fixture["weights"]


def test_pixels_are_equal_where_nothing_is_resized(embedders, tmp_path):
    name = "qwen3-vl-embedding-2b_transformers-4.57"
    case = next(case for case in load_fixture(name)["cases"] if case["name"] == "list aligned 5")
    assert compare(case["expected"], run_case(embedders(name), case, tmp_path)).pixels is True


def test_every_model_has_a_fixture_with_videos_pictures_and_texts():
    for model, shape in official.CHECKPOINTS.items():
        cases = [case for name in fixture_names() if name.startswith(model) for case in load_fixture(name)["cases"]]
        sources = {"file", "list", "picture", None} if shape.get("videos", True) else {"picture", None}
        assert sources == {case.get("source") for case in cases}, model
