"""EmbeddingGemma 2: its sizes, prompts and pooling, and what is left out when it is loaded."""

import json
import shutil

import numpy as np
import pytest
import torch

from allocembed.backbones.base import Prompt
from allocembed.backbones.checkpoint import Checkpoint
from allocembed.backbones.gemma.inputs import GEMMA, QUERY, SIZES, GemmaInputs
from allocembed.backbones.gemma.language import token_weights
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.registry import REGISTRY, BackboneEntry
from allocembed.backbones.text_half import load_text_half
from allocembed.budget import Grid
from allocembed.errors import BackboneError
from allocembed.testing.items import rows_of, text, video
from allocembed_nano.names import ASSETS
from tests.tiny import GEMMA_TOKENS


@pytest.fixture(scope="module")
def backbone(gemma_folder):
    return load_backbone(gemma_folder, device="cpu")


@pytest.fixture(scope="module")
def by_frames(gemma_folder):
    return load_backbone(gemma_folder, device="cpu", inputs="frame-mean")


def test_the_native_size_fills_the_limit_of_the_checkpoint(gemma_folder, backbone):
    assert backbone.geometry.native(720, 1280) == Grid(6, 11) and backbone.geometry.native(36, 64) == Grid(6, 11)
    assert backbone.inputs.picture_geometry.native(720, 1280) == Grid(8, 15)
    known = Checkpoint.find("embeddinggemma-2").inputs
    assert known is not None and known.geometry == GEMMA and known.longest == 8192
    for tokens in SIZES:
        chosen = Checkpoint.find(str(gemma_folder), f"{tokens}-tokens").inputs
        assert chosen is not None and 0.8 * tokens < chosen.geometry.native(720, 1280).tokens <= tokens


def test_the_audio_tower_is_not_loaded(gemma_folder, backbone):
    assert backbone.model.audio_tower is None and backbone.model.embed_audio is None
    assert json.loads((gemma_folder / "config.json").read_text())["audio_config"]["hidden_size"] == 16


def test_prompts_are_the_published_ones(backbone):
    seconds = np.array([0.0, 61.5])
    for prompt, words in (
        (Prompt("a dog"), "<bos>title: none | text: a dog<eos>"),
        (Prompt("a dog", QUERY), "<bos>task: search result | query: a dog<eos>"),
        (Prompt("why?", seconds=seconds), "<bos>title: none | text: {0}{0}why?<eos>"),
        (Prompt(None, "", seconds), "<bos>{0}{0}<eos>"),
        (Prompt(None, None, seconds[:1], True), "<bos>title: none | text: <|image><|image|><image|><eos>"),
    ):
        assert backbone.tokenizer.decode(backbone.tokenise([prompt])[0]) == words.format("<|image><|video|><image|>")


def test_times_stand_before_the_frames_by_option(gemma_folder):
    timed = load_backbone(gemma_folder, device="cpu", inputs="timestamps")
    (ids,) = timed.tokenise([Prompt("why?", "", np.array([0.0, 61.5]))])
    frame = "<|image><|video|><image|>"
    assert timed.tokenizer.decode(ids) == f"<bos>00:00 {frame} 01:01 {frame}why?<eos>"


def test_frames_weigh_alike_at_any_size_and_at_one_size_nothing_changes(backbone, by_frames):
    alike, mixed = video(backbone, [(2, 3)] * 3, "a red car"), video(backbone, [(1, 1), (4, 4), (2, 3)], "a red car")
    assert torch.equal(backbone.embed([alike]), by_frames.embed([alike]))
    assert (backbone.embed([mixed]) - by_frames.embed([mixed])).abs().max() > 1e-3
    together = by_frames.embed([mixed, text("drives by"), alike], batching="pack")
    assert (together[0] - by_frames.embed([mixed])[0]).abs().max() < 1e-5
    assert (together[1] - backbone.embed([text("drives by")])[0]).abs().max() < 1e-5
    (row,) = rows_of(backbone, [mixed])
    weights = token_weights(row.visual, np.zeros(len(row), int), "frames")
    frames = np.split(weights[row.visual], [1, 17])
    assert np.allclose([frame.sum() for frame in frames], 23 / 3) and np.isclose(weights.sum(), len(row))
    assert isinstance(by_frames.inputs, GemmaInputs) and repr(by_frames.inputs) != repr(backbone.inputs)


def test_a_long_text_is_cut_before_its_last_token(backbone, caplog):
    (ids,) = backbone.tokenise([Prompt("ox fly " * 3000)])
    (row,) = backbone.rows([ids], [np.empty((0, 2), np.int64)])
    assert len(ids) > len(row) == 8192 and row.ids[-1] == ids[-1] and "cut to 8,192" in caplog.text
    assert np.array_equal(row.ids[:-1], ids[:8191])


def test_only_the_published_lengths_of_vectors_are_offered(gemma_folder, monkeypatch):
    entry = BackboneEntry(str(gemma_folder), "embedding_gemma2", dims=(24, 16))
    monkeypatch.setitem(REGISTRY, "embeddinggemma-2", entry)
    assert load_backbone("embeddinggemma-2", dim=16).dim == 16
    with pytest.raises(BackboneError, match="24 or 16 dimensions"):
        load_backbone("embeddinggemma-2", dim=8)


def test_an_older_transformers_gets_the_version_to_install(qwen2_folder):
    folder = ASSETS / "nano-gemma"
    with pytest.raises(BackboneError, match=r"5\.19 or newer, and 5\.17\.0 is installed; pip install"):
        Checkpoint.find(str(folder)).check_version("5.17.0")
    Checkpoint.find(str(folder)).check_version("5.19.0")
    Checkpoint.find(str(qwen2_folder)).check_version("5.17.0")


def test_what_the_model_cannot_compute_is_refused(gemma_folder, tmp_path):
    with pytest.raises(BackboneError, match="overflows in float16"):
        load_backbone(gemma_folder, dtype="float16")
    other = shutil.copytree(gemma_folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"video_token_id": 40}))
    with pytest.raises(BackboneError, match=r"lacks <.video.>"):
        load_backbone(other)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_other_number_formats_keep_the_direction(gemma_folder, backbone, dtype):
    item = video(backbone, [(2, 3), (3, 3)], "a red car")
    other = load_backbone(gemma_folder, device="cpu", dtype=dtype).embed([item])
    assert (other * backbone.embed([item])).sum() > 0.95  # random weights amplify rounding


def test_gemmas_own_tokenizer_gives_the_text_half_the_same_vectors(gemma_folder, tmp_path, one_thread):
    from transformers import GemmaTokenizer

    copy = shutil.copytree(gemma_folder, tmp_path / "model")
    words = ["<pad>", "<eos>", "<bos>", *GEMMA_TOKENS.values(), "<unk>", "<mask>", *"▁abcdegiknorstux|:", "▁a"]
    vocabulary = {word: number for number, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = GemmaTokenizer(
        vocab=vocabulary, merges=[("▁", "a")], add_bos_token=True, add_eos_token=True, extra_special_tokens=GEMMA_TOKENS
    )
    tokenizer.save_pretrained(copy)
    assert json.loads((copy / "tokenizer_config.json").read_text())["tokenizer_class"] == "GemmaTokenizer"
    half, whole = load_text_half(str(copy), device="cpu"), load_backbone(copy, device="cpu")
    assert half is not None
    for words in ("a red car", "  two  blanks ", "é <eos> 🦊", ""):
        for instruction in (None, QUERY):
            made = whole.embed([text(words, instruction)]).numpy()[0]
            assert np.array_equal(half.vector(words, instruction), made)
    assert half.vector("a <|audio|> b") is None
