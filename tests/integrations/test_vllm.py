"""Our inputs for vLLM: what its own code made of them, written by `recipes/official/vllm_inputs.py`, is ours."""

import base64
import importlib
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
import torch
from PIL import Image

from allocembed import AllocEmbed
from allocembed.backbones.base import Prompt
from allocembed.config import EmbedConfig
from allocembed.errors import BackboneError, PolicyError, VideoError
from allocembed.integrations import vllm
from allocembed.integrations.vllm import load_without_weights, picture_payload, text_payload, video_payload
from allocembed.resize import prompt_seconds
from allocembed.video import read_picture
from tests.clips import picture, write_video
from tests.integrations.layouts import FIXTURES, MODELS, PICTURES, VIDEOS, WITH_PIXELS, Layout, digest, load_embedder
from tests.stages import allocated

PIPELINES = [(model, inputs) for model, pipelines in MODELS.items() for inputs in pipelines]


@pytest.mark.parametrize(("model", "inputs"), PIPELINES)
def test_vllm_makes_our_tokens_positions_and_pixels_of_random_layouts(model, inputs, tmp_path):
    cases = json.loads((FIXTURES / f"{model}_{inputs}.json").read_text())["cases"]
    embedder = load_embedder(model, inputs, tmp_path)
    backbone, sizes = embedder.backbone, set()
    assert len(cases) == VIDEOS + PICTURES
    for number, case in enumerate(cases):
        layout = Layout(embedder, number)
        if number < VIDEOS:
            clip = layout.clip(pixels="pixels" in case)
            allocation = allocated(layout.embedder, clip)
            layout = Layout(embedder, number)  # which draws the same again
            prepared = layout.embedder.prepare(clip, layout.text, layout.instruction) if "pixels" in case else None
            item = prepared[1] if prepared else _without_pixels(layout, clip, allocation)
            sizes.add(len({(grid.rows, grid.cols) for grid in allocation.grids}))
        else:
            clip = read_picture(layout.picture())
            _, item = layout.embedder.prepare_picture(clip, layout.text, layout.instruction)
        (row,) = backbone.rows(backbone.tokenise([item.prompt]), [item.grids])
        # vLLM has another placeholder for pictures; what the model reads there are features.
        stands = backbone.model.config.image_token_id if item.prompt.picture else backbone.model.config.video_token_id
        ids = np.where(row.visual, stands, row.ids)
        assert (len(row), digest(ids), digest(row.positions)) == (case["tokens"], case["ids"], case["positions"]), (
            number
        )
        assert ("pixels" in case) == (number % WITH_PIXELS == 0 or number >= VIDEOS)
        if "pixels" in case:
            assert digest(item.patches.pixels.numpy()) == case["pixels"], number
            assert _sent(embedder, number) == (case["prompt"], case["pixels"]), number
    assert max(sizes) >= 4, "the layouts are mixed"


def _sent(embedder: AllocEmbed, number: int) -> tuple[str, str]:
    """The prompt of a payload, and a digest of its pixels, cut as the model's processor cuts them."""
    layout, geometry = Layout(embedder, number), embedder.backbone.geometry
    asked = {"question": layout.text, "instruction": layout.instruction}
    if number < VIDEOS:
        prompt = video_payload(layout.embedder, layout.clip(), **asked).prompt
        frames = [chunk for chunk, _ in prompt["multi_modal_data"]["video"]]
    else:
        prompt = picture_payload(layout.embedder, layout.picture(), **asked).prompt
        frames = [np.stack([prompt["multi_modal_data"]["image"][0]] * geometry.frames_per_chunk)]
    cut = [geometry.patchify(torch.from_numpy(chunk).permute(0, 3, 1, 2)) for chunk in frames]
    return prompt["prompt"], digest(torch.cat(cut).numpy())


def _without_pixels(layout: Layout, clip: Any, allocation: Any) -> Any:
    seconds = prompt_seconds(clip, allocation.frames, layout.embedder.backbone.inputs.list_rate)
    grids = np.array([[grid.rows, grid.cols] for grid in allocation.grids])
    return SimpleNamespace(prompt=Prompt(layout.text, layout.instruction, seconds), grids=grids)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    Image.fromarray(picture(3)).save(folder / "picture.png")
    return {"video": write_video(folder / "one.mp4", 30), "picture": folder / "picture.png"}


@pytest.fixture(params=["nano-qwen3", "nano-qwen2"])
def embedder(request) -> AllocEmbed:
    return load_without_weights(
        EmbedConfig(backbone=request.param, allocator="uniform", budget="2f", candidates=6, device="cpu")
    )


def test_a_video_goes_as_one_item_a_chunk_with_its_time(embedder, files):
    payload = video_payload(embedder, files["video"], "who?")
    items = payload.prompt["multi_modal_data"]["video"]
    grids, factor = payload.allocation.grids, embedder.backbone.geometry.factor
    assert [frames.shape for frames, _ in items] == [(2, g.rows * factor, g.cols * factor, 3) for g in grids]
    assert all(frames.dtype == np.uint8 for frames, _ in items)
    assert payload.prompt["prompt"].count("<|video_pad|>") == len(items) == 3
    assert "seconds" not in payload.prompt["prompt"] and "who?" in payload.prompt["prompt"]
    assert payload.prompt["mm_processor_kwargs"] == {"do_resize": False, "do_sample_frames": False}
    _, item = embedder.prepare(embedder.read(files["video"]), "who?")
    for (frames, about), second in zip(items, item.prompt.seconds, strict=True):
        shown = sum(number / about["fps"] for number in about["frames_indices"]) / len(frames)
        assert f"{shown:.1f}" == f"{second:.1f}"


def test_no_weights_are_read(embedder, files):
    assert embedder.backbone.device.type == "meta"
    assert "video_pad" not in text_payload(embedder, "a dog").prompt["prompt"]
    image = picture_payload(embedder, files["picture"], "a ball").prompt
    assert image["prompt"].count("<|image_pad|>") == 1 and "multi_modal_data" in image


@pytest.mark.slow
def test_a_learned_allocator_brings_its_own_preview_model(files):
    config = EmbedConfig(backbone="nano-qwen3", allocator="learned", budget="2f", candidates=6, device="cpu")
    whole = AllocEmbed.from_config(config)
    payload = video_payload(load_without_weights(config), files["video"])
    assert payload.allocation.grids == allocated(whole, files["video"]).grids


def test_what_needs_the_weights_is_refused():
    with pytest.raises(PolicyError, match="another program holds its weights"):
        load_without_weights(EmbedConfig(backbone="nano-qwen3", allocator="sensitivity"))


def test_a_family_without_a_layout_is_refused(siglip_folder):
    with pytest.raises(BackboneError, match="cannot"):
        text_payload(load_without_weights(EmbedConfig(backbone=str(siglip_folder), allocator="uniform")), "a dog")


@pytest.mark.parametrize("pad", ["<|video_pad|>", "<|image_pad|>"])
def test_a_text_with_a_placeholder_is_refused(embedder, pad):
    with pytest.raises(BackboneError, match="stands for a"):
        text_payload(embedder, f"a {pad}")


Given, Made = TypeVar("Given"), TypeVar("Made")


@pytest.fixture
def plugin(monkeypatch) -> ModuleType:
    """The plugin, with stand-ins for the parts of vLLM that it imports."""

    class IOProcessor(Generic[Given, Made]):
        def __init__(self, vllm_config: Any, renderer: Any) -> None:
            self.vllm_config = vllm_config

    names = ("Qwen2VLDummyInputsBuilder", "Qwen2VLMultiModalProcessor", "Qwen2VLProcessingInfo")
    model = dict.fromkeys(names, object) | {"Qwen2VLForConditionalGeneration": type("Qwen2VL", (), {})}
    registry = SimpleNamespace(register_processor=lambda *_, **__: lambda cls: cls)
    registered = {}
    contents: dict[str, dict[str, Any]] = {
        "vllm": {
            "PoolingParams": SimpleNamespace,
            "ModelRegistry": SimpleNamespace(register_model=registered.__setitem__),
        },
        "vllm.model_executor": {},
        "vllm.model_executor.models": {},
        "vllm.model_executor.models.qwen2_vl": model,
        "vllm.multimodal": {"MULTIMODAL_REGISTRY": registry},
        "vllm.plugins": {},
        "vllm.plugins.io_processors": {},
        "vllm.plugins.io_processors.interface": {"IOProcessor": IOProcessor},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        vars(module).update(values, registered=registered)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "allocembed.integrations.vllm_plugin", raising=False)
    module = importlib.import_module("allocembed.integrations.vllm_plugin")
    yield module
    sys.modules.pop("allocembed.integrations.vllm_plugin", None)


def make_processor(plugin: ModuleType, folder: str = "", **settings: Any) -> Any:
    model = SimpleNamespace(
        model="nano-qwen3",
        allowed_local_media_path=folder,
        hf_config=SimpleNamespace(video_token_id=7, image_token_id=8),
    )
    stated = {"allocator": "uniform", "budget": "2f", "candidates": 6, **settings}
    return plugin.AllocEmbedProcessor(
        SimpleNamespace(model_config=model, additional_config={"allocembed": stated}), None
    )


def test_the_server_embeds_paths_and_bytes(plugin, files):
    processor = make_processor(plugin, str(files["video"].parent), dim=2)
    video = base64.b64encode(files["video"].read_bytes()).decode()
    data = [
        {"video": str(files["video"]), "text": "who?"},
        {"video": {"bytes": video}},
        {"text": "a dog", "query": True},
        {"image": str(files["picture"]), "instruction": "Find it."},
    ]
    prompts = processor.pre_process(processor.parse_data(data), "id")
    own = video_payload(processor.embedder, files["video"], "who?").prompt
    assert prompts[0]["prompt"] == own["prompt"] and len(prompts[1]["multi_modal_data"]["video"]) == 3
    assert processor.embedder.backbone.query_instruction in prompts[2]["prompt"]
    assert "image" in prompts[3]["multi_modal_data"] and "Find it." in prompts[3]["prompt"]
    output = SimpleNamespace(outputs=SimpleNamespace(data=torch.tensor([3.0, 4.0, 5.0])), prompt_token_ids=[1, 7, 7, 8])
    (answer,) = processor.post_process([output], "id")
    assert np.allclose(answer["vector"], [0.6, 0.8]) and answer["tokens"] == 3
    assert processor.merge_pooling_params().task == "embed"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"video": "/etc/hostname"}, "allowed-local-media-path"),
        ({"video": "FOLDER/../../secret.mp4"}, "allowed-local-media-path"),
        ({"video": "FOLDER/missing.mp4"}, "no such file"),
        ({"video": {"bytes": "%"}}, "base64"),
        ({"videos": "a.mp4"}, "cannot embed an input with videos"),
        ({"video": 3}, "cannot read this source"),
        ({}, "empty input"),
        ("a dog", "cannot embed a str"),
    ],
)
def test_the_server_refuses_what_it_cannot_embed(plugin, files, data, words):
    folder = str(files["video"].parent)
    data = json.loads(json.dumps(data).replace("FOLDER", folder))
    processor = make_processor(plugin, folder)
    with pytest.raises(ValueError, match=words) as caught:
        processor.pre_process(processor.parse_data(data))
    assert not isinstance(caught.value, VideoError)


def test_without_an_allowed_folder_no_path_is_read(plugin, files):
    with pytest.raises(ValueError, match="allowed-local-media-path"):
        make_processor(plugin).parse_data({"video": str(files["video"])})


def test_vlm2vec_counts_straight_through(plugin):
    positions, delta = plugin.VLM2Vec().get_mrope_input_positions([5, 9, 9, 6], [])
    assert positions.tolist() == [[0, 1, 2, 3]] * 3 and delta == 0


def test_the_entry_points_name_what_exists(plugin):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    assert points["vllm.general_plugins"]["allocembed"] == "allocembed.integrations.vllm:register"
    assert points["vllm.io_processor_plugins"]["allocembed"] == "allocembed.integrations.vllm:processor_name"
    vllm.register()
    module, _, name = sys.modules["vllm"].registered[vllm.ARCHITECTURE].partition(":")
    assert getattr(importlib.import_module(module), name) is plugin.VLM2Vec
    module, _, name = vllm.processor_name().rpartition(".")
    assert getattr(importlib.import_module(module), name) is plugin.AllocEmbedProcessor
