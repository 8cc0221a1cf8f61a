"""The models' own inputs: sizes, frames, clock, prompts and limits, by name."""

import json
import shutil

import numpy as np
import pytest
import torch

from allocembed import AllocEmbed
from allocembed.backbones.base import Prompt
from allocembed.backbones.checkpoint import Checkpoint, check_backbone, find_entry
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.registry import FAMILIES, REGISTRY
from allocembed.budget import Allocation, Grid
from allocembed.config import EmbedConfig
from allocembed.errors import BackboneError
from allocembed.resize import numbered_seconds, resize, to_patches
from allocembed.video import candidate_indices, open_video
from tests import tiny
from tests.clips import write_video
from tests.stages import allocated

QWEN3, V2, V1, DEMO = (
    Checkpoint.find(name, pipeline).inputs.geometry
    for name, pipeline in (
        ("qwen3-vl-embedding-2b", None),
        ("vlm2vec-v2-2b", None),
        ("vlm2vec-qwen2vl-7b", None),
        ("vlm2vec-qwen2vl-7b", "vlm2vec-demo"),
    )
)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return tiny.save_qwen3(tmp_path_factory.mktemp("stock"), stock=True)


@pytest.mark.parametrize("total", [2, 3, 10, 97, 250, 1801, 65_537, 1_000_003])
def test_rounded_frames_are_those_of_torch(total):
    for count in range(1, 70):
        wanted = torch.linspace(0, total - 1, min(count, total)).round().long().tolist()
        assert candidate_indices(total, count, rounds=True).tolist() == wanted


@pytest.mark.parametrize(
    ("geometry", "size", "listed", "frames", "wanted"),
    [
        (QWEN3, (240, 320), False, 8, (10, 14)),  # under the floor of 128 tokens: 140 instead of 80
        (QWEN3, (240, 320), True, 8, (11, 13)),  # 256 × 320 first
        (QWEN3, (720, 1280), False, 24, (20, 36)),
        (QWEN3, (720, 1280), True, 24, (18, 34)),  # 7,680 tokens for 12 chunks
        (QWEN3, (720, 1280), False, 1000, (11, 20)),  # the limit for a whole file
        (V2, (720, 1280), False, 24, (26, 46)),
        (V1, (720, 1280), False, 24, (35, 35)),
        (V1, (144, 256), True, 8, (35, 35)),
        (DEMO, (720, 1280), False, 8, (10, 18)),
    ],
)
def test_native_sizes_are_those_of_the_own_pipelines(geometry, size, listed, frames, wanted):
    assert geometry.native(*size, frames=frames, listed=listed) == Grid(*wanted)


def test_a_scale_below_1_goes_under_the_floor(stock):
    frames = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), np.uint8)
    native = allocated(AllocEmbed.from_pretrained(stock, "full", device="cpu"), frames)
    small = allocated(AllocEmbed.from_pretrained(stock, "uniform", budget=40, device="cpu"), frames)
    assert native.native.tokens >= 128 and small.cost <= 40 and len(small) == 4


def test_the_limits_of_a_checkpoint_hold_in_both_directions(tmp_path):
    folder = tiny.save_qwen3(tmp_path / "own", stock=True)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    for lowest, highest in ((300 * 32**2, 400 * 32**2), (2 * 32**2, 2000 * 32**2)):
        settings["size"] = {"shortest_edge": lowest, "longest_edge": highest}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        geometry = Checkpoint.find(str(folder)).inputs.geometry
        assert (geometry.min_pixels, geometry.max_pixels) == (lowest, highest)


def test_frames_of_a_list_go_through_a_multiple_of_64(stock):
    """The own pipeline resizes them twice, which gives other pixels than once."""
    frames = np.random.default_rng(1).integers(0, 255, (2, 100, 150, 3), np.uint8)
    embedder = AllocEmbed.from_pretrained(stock, "full", device="cpu")
    clip = embedder.read(frames)
    allocation = allocated(embedder, clip)
    patches = embedder.patch(clip, allocation)
    assert clip.listed and embedder.backbone.geometry.canvas(100, 150, listed=True) == (128, 128)
    first = resize(torch.from_numpy(frames).permute(0, 3, 1, 2), (128, 128)).permute(0, 2, 3, 1).numpy()
    assert torch.equal(patches.pixels, to_patches(first, allocation, embedder.backbone.geometry).pixels)
    assert not torch.equal(patches.pixels, to_patches(frames, allocation, embedder.backbone.geometry).pixels)


def test_a_list_without_a_rate_has_the_clock_of_the_model(stock):
    frames = np.zeros((10, 64, 64, 3), np.uint8)

    def seconds(**options):
        embedder = AllocEmbed.from_pretrained(stock, "full", candidates=5, device="cpu", **options)
        return embedder.prepare(embedder.read(frames))[1].prompt.seconds.tolist()

    # Frames 0, 2, 4, 6 and 9 of ten are numbered 0 to 4, and the one that fills the last chunk is number 5.
    assert seconds() == [0.25, 1.25, 2.25]
    assert seconds(rate=2) == [0.5, 2.5, 4.5]


def test_repeated_frames_count_on():
    allocation = Allocation(((0, 1), (2, 2)), (1.0, 1.0), (Grid(1, 1),) * 2, Grid(1, 1), 2, 2)
    assert numbered_seconds(allocation.frames, 1.0).tolist() == [0.5, 2.5]


def test_files_are_sampled_as_the_model_does(tmp_path, stock, qwen2_folder):
    path = write_video(tmp_path / "a.mp4", frames=98)
    for folder, rounds in ((stock, True), (qwen2_folder, False)):
        clip = AllocEmbed.from_pretrained(folder, "full", candidates=10, device="cpu").read(path)
        assert clip.indices.tolist() == candidate_indices(98, 10, rounds=rounds).tolist()
        assert clip.timed and not clip.listed
    with open_video(path) as video:
        assert video.sample(10).indices.tolist() == candidate_indices(98, 10).tolist()


def test_the_newer_layout_has_the_outer_pair(stock):
    prompt = Prompt(None, None, np.array([0.5, 1.5]))
    usual, newer = (load_backbone(stock, device="cpu", inputs=name) for name in (None, "transformers-5.10"))
    assert newer.layout(prompt).count("<|vision_start|>") == usual.layout(prompt).count("<|vision_start|>") + 1
    assert len(newer.tokenise([prompt])[0]) == len(usual.tokenise([prompt])[0]) + 2
    assert usual.layout(Prompt("a")) == newer.layout(Prompt("a"))


def test_a_long_text_is_cut_and_it_is_said(stock, caplog):
    backbone = load_backbone(stock, device="cpu")
    no = np.empty((0, 2), np.int64)
    long, short = backbone.rows(backbone.tokenise([Prompt("word " * 9000), Prompt("word")]), [no, no])
    assert len(long) == 8192 and len(short) < 50
    assert "cut to 8,192" in caplog.text
    video = Prompt("word " * 9000, seconds=np.zeros(2))
    (row,) = backbone.rows(backbone.tokenise([video]), [np.array([[10, 20], [30, 40]])])
    assert len(row) == 8192 and row.visual.sum() == 1400
    (whole,) = backbone.rows(backbone.tokenise([Prompt(seconds=np.zeros(2))]), [np.array([[95, 95], [2, 2]])])
    assert len(whole) > 8192  # the video alone is over the limit, and is embedded whole


def test_an_instruction_replaces_the_default_text_of_a_video(qwen2_folder):
    layout = load_backbone(qwen2_folder, device="cpu").layout
    one = np.zeros(1)
    assert layout(Prompt(seconds=one)) == "<|video_pad|> Understand the content of the provided video."
    assert layout(Prompt(instruction="Find it:", seconds=one)) == "<|video_pad|> Find it:"
    assert layout(Prompt("a dog", "Find it:", one)) == "<|video_pad|> Find it: a dog"


def test_short_vectors_need_training_for_them(qwen2_folder, monkeypatch):
    entry = REGISTRY["vlm2vec-v2-2b"]
    monkeypatch.setitem(REGISTRY, "vlm2vec-v2-2b", type(entry)(str(qwen2_folder), "qwen2_vl", matryoshka=False))
    with pytest.raises(BackboneError, match="not trained for vectors shorter than 32"):
        load_backbone("vlm2vec-v2-2b", device="cpu", dim=16)
    assert load_backbone("vlm2vec-v2-2b", device="cpu", dim=32).dim == 32


def test_unknown_inputs_are_refused_before_loading():
    with pytest.raises(BackboneError, match=r"did you mean vlm2vec-v1\?"):
        EmbedConfig(backbone="vlm2vec-v2-2b", inputs="vlm2vec-v11").check()
    check_backbone("you/unknown", "anything")  # only its checkpoint tells


def test_a_hub_id_is_known_like_its_short_name():
    assert find_entry("tiger-lab/VLM2Vec-Qwen2VL-7B") is REGISTRY["vlm2vec-qwen2vl-7b"]


@pytest.mark.parametrize("place", ["VLM2Vec-Qwen2VL-7B", "models--TIGER-Lab--VLM2Vec-Qwen2VL-7B/snapshots/0123"])
def test_a_copy_in_a_folder_is_known_by_its_name(tmp_path, qwen2_folder, place):
    folder = shutil.copytree(qwen2_folder, tmp_path / place)
    assert Checkpoint.find(str(folder)).inputs.geometry.square == 1344 and not find_entry(str(folder)).matryoshka
    assert find_entry(str(folder)).source == str(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    assert Checkpoint.find(str(folder)).inputs.geometry.square == 1344


def test_other_inputs_are_other_settings():
    one, other = (EmbedConfig(inputs=name) for name in (None, "transformers-5.10"))
    assert list(one.differences(other)) == ["inputs"]
    assert {name for family in FAMILIES.values() for name in family.inputs} >= {"transformers-5.10", "vlm2vec-demo"}


@pytest.mark.parametrize(
    ("name", "pipeline", "size", "tokens"),
    [
        ("qwen3-vl-embedding-2b", None, (720, 1280), (22, 40)),  # larger than as a frame of a video, 20 × 36
        ("qwen3-vl-embedding-2b", None, (4000, 6000), (34, 51)),  # 1,800 tokens at most
        ("qwen3-vl-embedding-2b", None, (40, 40), (2, 2)),
        ("vlm2vec-v2-2b", None, (2160, 3840), (26, 47)),
        ("vlm2vec-qwen2vl-7b", None, (240, 320), (35, 35)),
        ("vlm2vec-qwen2vl-7b", "vlm2vec-demo", (720, 1280), (26, 46)),
    ],
)
def test_pictures_have_limits_of_their_own(name, pipeline, size, tokens):
    assert Checkpoint.find(name, pipeline).inputs.picture_geometry.native(*size) == Grid(*tokens)


def test_a_checkpoint_with_limits_of_its_own_has_them_for_pictures_too(qwen3_folder, stock):
    own, usual = Checkpoint.find(str(qwen3_folder)).inputs, Checkpoint.find(str(stock)).inputs
    assert own.picture_geometry.native(4000, 6000).tokens <= 768 < usual.picture_geometry.native(4000, 6000).tokens


def test_indexes_made_before_pictures_were_read_fit_still():
    assert all("picture" not in repr(inputs) for family in FAMILIES.values() for inputs in family.inputs.values())
