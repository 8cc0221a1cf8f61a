"""Our embedder through sentence-transformers: the same vectors, instructions, costs and order."""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from allocembed import AllocEmbed
from allocembed.config import EmbedConfig
from allocembed.errors import AllocEmbedError, ConfigError, VideoError
from allocembed.integrations.folder import export_folder, has_allocator, read_settings, write_settings
from tests.clips import picture, write_video
from tests.command import run

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# It takes seconds to import, so only the process that runs these tests does.
pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("sentence_transformers"), reason="needs sentence-transformers"
)
SETTINGS = {"budget": "2f", "candidates": 4}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    Image.fromarray(picture(3)).save(folder / "picture.png")
    videos = {name: write_video(folder / f"{name}.mp4", 20 + 9 * i) for i, name in enumerate(("one", "two", "three"))}
    return {**videos, "picture": folder / "picture.png"}


def load(folder: Path, **options) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu", **options)


@pytest.fixture(scope="module", params=["nano-qwen3", "nano-qwen2"])
def both(request, tmp_path_factory) -> tuple[SentenceTransformer, AllocEmbed]:
    """The exported model, and ours with the same settings."""
    folder = tmp_path_factory.mktemp("models") / request.param
    words = ("--backbone", request.param, "--allocator", "content", "--budget", "2f", "--candidates", 4)
    assert run("export-st", folder, *words).returncode == 0
    return load(folder), AllocEmbed.from_pretrained(request.param, "content", device="cpu", **SETTINGS)


@pytest.fixture(scope="module")
def tiny_model(qwen3_folder, tmp_path_factory) -> SentenceTransformer:
    folder = tmp_path_factory.mktemp("exported") / "tiny"
    export_folder(EmbedConfig(backbone=str(qwen3_folder), allocator="uniform", **SETTINGS), folder)
    return load(folder)


def test_every_kind_of_input_gets_our_vector_in_its_place(both, files):
    model, ours = both
    frames = np.stack([picture(index) for index in range(6)])
    inputs = [
        {"video": str(files["one"])},
        "a dog",
        {"video": files["two"], "text": "what is it?"},
        Image.open(files["picture"]),
        {"image": str(files["picture"]), "text": "a ball"},
        str(files["three"]),
        {"text": "a long sentence about a dog in the snow"},
        {"video": torch.from_numpy(frames).permute(0, 3, 1, 2)},
        {"video": {"array": frames, "video_metadata": {"fps": 2.0}}},
        {"video": {"bytes": base64.b64encode(files["one"].read_bytes()).decode(), "path": "one.mp4"}},
    ]
    timed = ours.with_config(EmbedConfig(rate=2.0, **SETTINGS))
    expected = [
        ours.encode_video(files["one"]),
        ours.encode_text("a dog"),
        ours.encode_video(files["two"], "what is it?"),
        ours.encode_image(files["picture"]),
        ours.encode_image(files["picture"], "a ball"),
        ours.encode_video(files["three"]),
        ours.encode_text("a long sentence about a dog in the snow"),
        ours.encode_video(frames),
        timed.encode_video(frames),
        ours.encode_video(files["one"]),
    ]
    found = model.encode(inputs, batch_size=4)
    assert found.shape == (len(inputs), ours.backbone.dim) and found.dtype == np.float32
    for each, one in zip(found, expected, strict=True):
        assert np.abs(each - one.vector).max() < 1e-6


def test_prompts_are_the_instructions(both, files):
    model, ours = both
    video, query = str(files["one"]), ours.backbone.query_instruction
    expected = ours.encode_text("a dog", instruction=query).vector
    assert np.abs(model.encode_query("a dog") - expected).max() < 1e-6
    assert np.abs(model.encode("a dog") - expected).max() > 1e-3, "a document has another instruction"
    assert np.abs(model.encode_document([video])[0] - ours.encode_video(video).vector).max() < 1e-6
    asked = ours.encode_video(video, "who?", instruction="Find it.").vector
    assert np.abs(model.encode({"video": video, "text": "who?"}, prompt="Find it.") - asked).max() < 1e-6


def test_costs_and_allocations_are_handed_out(both, files):
    model, ours = both
    found = model.encode(["a dog", {"video": str(files["two"])}, str(files["one"])], output_value=None)
    own = ours.encode_video(files["two"]).allocation
    assert [int(each["tokens"]) for each in found] == [0, own.cost, ours.encode_video(files["one"]).cost]
    assert int(found[1]["budget"]) == own.budget and int(found[1]["look_tokens"]) == 0
    assert found[1]["grids"].tolist() == [[grid.rows, grid.cols] for grid in own.grids]
    assert found[1]["frames"].tolist() == [list(chunk) for chunk in own.frames]
    assert found[1]["scales"].tolist() == list(own.scales) and len(found[0]["grids"]) == 0


def test_similarity_is_the_cosine(tiny_model, files):
    vectors = tiny_model.encode([str(files["one"]), str(files["two"])])
    assert np.abs(tiny_model.similarity(vectors, vectors).numpy() - vectors @ vectors.T).max() < 1e-6
    assert tiny_model.get_embedding_dimension() == 32 and tiny_model.supports(("text", "video"))


def test_a_saved_model_is_small_and_gives_the_same_vectors(tiny_model, files, tmp_path):
    tiny_model.save(str(tmp_path / "again"))
    assert sum(path.stat().st_size for path in (tmp_path / "again").rglob("*")) < 10_000
    again = load(tmp_path / "again")
    inputs = [str(files["one"]), "a dog"]
    assert np.array_equal(again.encode(inputs), tiny_model.encode(inputs)) and again.prompts == tiny_model.prompts
    fewer = load(tmp_path / "again", model_kwargs={"candidates": 2})
    assert [len(each.encode(inputs, output_value=None)[0]["grids"]) for each in (again, fewer)] == [2, 1]


def test_a_local_allocator_travels_with_the_folder(files, tmp_path):
    from allocembed_nano.names import ASSETS

    config = EmbedConfig(backbone="nano-qwen3", allocator=str(ASSETS / "nano-allocator"), **SETTINGS)
    export_folder(config, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "allocembed.json").read_text())["allocator"] == "./allocator"
    (tmp_path / "model").rename(tmp_path / "moved")
    model = load(tmp_path / "moved")
    ours = AllocEmbed.from_pretrained("nano-qwen3", "learned", device="cpu", **SETTINGS)
    assert np.abs(model.encode(str(files["one"])) - ours.encode_video(files["one"]).vector).max() < 1e-6


def test_a_local_allocator_travels_with_the_sensitivity_that_multiplies_it(tmp_path):
    from allocembed_nano.names import ASSETS

    config = EmbedConfig(backbone="nano-qwen3", allocator=f"{ASSETS / 'nano-allocator'}+sensitivity:6-12", **SETTINGS)
    write_settings(config, tmp_path / "model")
    saved = json.loads((tmp_path / "model" / "allocembed.json").read_text())
    assert saved["allocator"] == "./allocator+sensitivity:6-12" and has_allocator(saved)
    own = str(tmp_path / "model" / "allocator")
    assert read_settings(saved, own).allocator == f"{own}+sensitivity:6-12" and any(Path(own).iterdir())


def test_what_is_pushed_is_the_folder(tiny_model, monkeypatch):
    pushed = {}

    def upload(_, *, folder_path, **options):
        pushed.update({path.name: path.read_text() for path in Path(folder_path).iterdir()})
        return type("Commit", (), {"commit_url": "", "pr_url": None, "pr_revision": None, "oid": ""})()

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", lambda _, **o: type("Url", (), {"repo_id": "you/model"})())
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload)
    tiny_model.push_to_hub("you/model", token="no secret", replace_model_card=True)
    wanted = {"allocembed.json", "config_sentence_transformers.json", "modules.json", "README.md"}
    assert wanted <= set(pushed) and "token" not in "".join(pushed.values()).replace("tokens", "")


def test_a_worker_process_loads_the_model_itself(tiny_model, files):
    parcel = pickle.dumps(tiny_model[0])
    assert len(parcel) < 5000
    inputs = [str(files["one"]), "a dog"]
    copied = type(tiny_model)(modules=[pickle.loads(parcel)], device="cpu")
    assert np.array_equal(copied.encode(inputs), tiny_model.encode(inputs))


def test_a_cast_model_is_loaded_again_in_that_format(qwen3_folder, tmp_path, files):
    export_folder(EmbedConfig(backbone=str(qwen3_folder), allocator="uniform", **SETTINGS), tmp_path / "model")
    model, inputs = load(tmp_path / "model"), [str(files["one"])]
    exact = model.encode(inputs)
    model.bfloat16()
    assert model.dtype == torch.bfloat16 and 1e-6 < np.abs(model.encode(inputs) - exact).max() < 0.1
    model.float()
    assert np.array_equal(model.encode(inputs), exact), "no bits were lost on the way"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"video": "nowhere.mp4"}, VideoError, "no such file"),
        ({"video": "a.mp4", "image": "b.png"}, ConfigError, "in one vector"),
        ({"video": {"bytes": "not base64!"}}, ConfigError, "base64"),
        ({"video": None}, ConfigError, "empty input"),
        (("a", "b"), ConfigError, "cannot embed"),
        ({"role": "user", "content": "hello"}, ConfigError, "cannot embed"),
        (3, ConfigError, "cannot embed"),
    ],
)
def test_an_input_that_cannot_be_embedded_is_named(tiny_model, given, error, words):
    with pytest.raises(error, match=words) as caught:
        tiny_model.encode([given])
    assert isinstance(caught.value, AllocEmbedError)


def test_an_export_never_mixes_with_other_files(tmp_path, qwen3_folder):
    (tmp_path / "notes.txt").write_text("mine")
    result = run("export-st", tmp_path, "--backbone", "nano-qwen3")
    assert result.returncode == 1 and "holds other files" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    for _ in range(2):
        result = run("export-st", tmp_path / "model", "--backbone", qwen3_folder, "--allocator", "base")
    assert result.returncode == 0 and "this machine only" in result.stderr


@pytest.mark.slow
def test_mteb_runs_with_the_folder_and_keeps_budgets_apart(qwen3_folder, files, tmp_path):
    mteb = pytest.importorskip("mteb")
    from mteb.cache import ResultCache

    from allocembed.integrations.mteb_st import StMtebModel
    from tests.integrations.test_mteb import Captions, as_column

    videos = [files[name] for name in ("one", "two", "three")]
    task, cache, scores = Captions().use(as_column(videos)), ResultCache(tmp_path / "cache"), {}
    for budget in ("2f", "1f"):
        config = EmbedConfig(backbone=str(qwen3_folder), allocator="uniform", budget=budget, candidates=4)
        export_folder(config, tmp_path / budget)
        model = StMtebModel(load(tmp_path / budget))
        assert f"uniform-{budget}" in (model.mteb_model_meta.name or "")
        scores[budget] = mteb.evaluate(model, [task], cache=cache).task_results[0].scores["test"][0]
        ours: AllocEmbed = model.model[0].embedder
        texts = ours.encode_texts(["a dog", "a cat", "a car"], instruction=ours.backbone.query_instruction)
        found = np.stack([each.vector for each in texts]) @ np.stack([ours.encode_video(v).vector for v in videos]).T
        assert scores[budget]["hit_rate_at_1"] == pytest.approx((found.argmax(1) == np.arange(3)).mean(), abs=1e-4)
    assert len(list((tmp_path / "cache").rglob("TinyT2V.json"))) == 2


@pytest.mark.slow
def test_a_text_beside_a_video_steers_an_exported_model_only_if_the_task_asks(qwen3_folder, files, tmp_path):
    pytest.importorskip("mteb")
    import datasets
    from torch.utils.data import DataLoader

    from allocembed.integrations.mteb import MtebModel
    from allocembed.integrations.mteb_st import StMtebModel
    from tests.integrations.test_mteb import describe

    export_folder(EmbedConfig(backbone=str(qwen3_folder), allocator="uniform", budget="2f", candidates=4), tmp_path)
    model = StMtebModel(load(tmp_path))
    embedder: AllocEmbed = model.model[0].embedder
    seen, plan = [], embedder.allocator.plan
    embedder.allocator.plan = lambda clip, asked: seen.append(asked.question) or plan(clip, asked)
    rows = datasets.Dataset.from_dict({"video": [str(files["one"])], "text": ["the same in the snow"]})
    for kind, asked in (("Any2AnyRetrieval", None), ("VideoCentricQA", "the same in the snow")):
        task = describe("Tiny", kind, "vt2v", ["video", "text"], "accuracy")
        both = [each.encode(DataLoader(rows), task_metadata=task) for each in (model, MtebModel(embedder))]
        assert np.array_equal(*both) and seen == [asked] * 2
        seen.clear()
