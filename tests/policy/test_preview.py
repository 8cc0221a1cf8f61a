"""The allocator's inputs: features of the frozen models, however they are computed."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.budget import Grid
from allocembed.errors import ConfigError
from allocembed.policy import preview
from allocembed.policy.preview import DEFAULT_TASK, BackbonePreview, asks, load_previewer, preview_grid
from allocembed.resize import Patches, normalise, resize

TEXTS = ["a red car drives by", "x", "What colour has the car that drives by the user?"]


def chunks(count: int, height: int = 120, width: int = 160, frames: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    coarse = torch.randint(0, 256, (count * frames, 3, 6, 8), generator=generator, dtype=torch.uint8)
    return resize(coarse, (height, width)).unflatten(0, (count, frames))


def fresh(previewer):
    """A copy that has read nothing yet."""
    return pickle.loads(pickle.dumps(previewer))


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def backbone(request):
    return load_backbone(request.getfixturevalue(request.param), device="cpu")


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder", "smol_folder"], ids=["qwen2", "qwen3", "smol"])
def previewer(request):
    kind = "smolvlm2" if request.param == "smol_folder" else "backbone"
    return load_previewer(kind, str(request.getfixturevalue(request.param)), 12, None, "cpu", "auto")


def test_features_have_the_promised_shapes_and_can_be_constants_of_a_graph(previewer):
    with torch.inference_mode():
        seen, read = previewer.look(chunks(3)), previewer.read(TEXTS)
    assert seen.shape[0] == 3 and seen.shape[2] == previewer.visual_width
    assert [row.shape[1] for row in read] == [previewer.text_width] * 3
    weight = torch.ones(previewer.visual_width, requires_grad=True)
    (seen @ weight).square().sum().backward()
    assert weight.grad is not None and not seen.requires_grad
    for tensor in (seen, *read):
        assert tensor.dtype == torch.float32 and tensor.device == previewer.device and not tensor.is_inference()


def test_a_chunk_looks_the_same_alone_and_among_others(previewer, monkeypatch):
    video = chunks(5)
    together = previewer.look(video)
    monkeypatch.setattr(preview, "PATCHES_AT_ONCE", 1)
    assert (previewer.look(video) - together).abs().max() < 1e-5
    assert (together[0] - together[1]).abs().max() > 1e-3
    assert torch.equal(previewer.look(video), previewer.look(video))


def test_the_order_of_memory_does_not_matter(previewer):
    video = chunks(2)
    interleaved = video.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert not interleaved.is_contiguous()
    # The two layouts take different kernels, which may round a grey level differently.
    assert (previewer.look(interleaved) - previewer.look(video)).abs().mean() < 0.02


def test_a_text_reads_the_same_whatever_is_read_beside_it(previewer):
    together = dict(zip(TEXTS, previewer.read(TEXTS), strict=True))
    other = fresh(previewer)
    for text in reversed(TEXTS):
        assert torch.equal(other.read([text])[0], together[text])
    padded = previewer.states(TEXTS)  # as on CUDA
    assert all((row - together[text]).abs().max() < 1e-5 for text, row in zip(TEXTS, padded, strict=True))


def test_texts_are_read_once_and_the_oldest_are_forgotten(previewer, monkeypatch):
    monkeypatch.setattr(preview, "TEXTS_KEPT", 2)
    first = previewer.read(["one", "two", "one"])
    assert first[0] is first[2] and previewer.read(["one"])[0] is first[0]
    previewer.read(["three"])
    assert previewer.read(["one"])[0] is first[0]
    again = previewer.read(["two"])[0]
    assert again is not first[1] and torch.equal(again, first[1])


@pytest.mark.parametrize(
    "text", [" ", DEFAULT_TASK.rstrip("."), f"  {DEFAULT_TASK}\n", DEFAULT_TASK.lower(), DEFAULT_TASK.upper()]
)
def test_an_empty_text_and_the_default_task_in_other_letters_are_the_default_task(previewer, text):
    assert not asks(text) and asks("Which video is it?") and asks(f"{DEFAULT_TASK} Who runs?")
    assert torch.equal(previewer.read([text])[0], previewer.read([DEFAULT_TASK])[0])


def test_threads_can_look_and_read_at_the_same_time(previewer):
    video = chunks(2)
    seen, read = previewer.look(video), previewer.read(TEXTS)
    previewer = fresh(previewer)
    with ThreadPoolExecutor(4) as pool:
        looked = [pool.submit(previewer.look, video) for _ in range(8)]
        texts = [pool.submit(previewer.read, TEXTS) for _ in range(8)]
    assert all((future.result() - seen).abs().max() < 1e-5 for future in looked)
    for future in texts:
        assert all((row - same).abs().max() < 1e-5 for row, same in zip(future.result(), read, strict=True))


def test_frames_of_another_shape_or_dtype_raise(previewer):
    with pytest.raises(ValueError, match=r"\(N, 2, 3, H, W\)"):
        previewer.look(chunks(2)[:, 0])
    with pytest.raises(ValueError, match="float32"):
        previewer.look(chunks(2).float())


@pytest.mark.parametrize(("height", "width"), [(120, 160), (160, 120), (90, 160), (500, 20), (20, 20)])
def test_a_backbone_previews_within_its_tokens_and_its_native_size(backbone, height, width):
    previewer = BackbonePreview(backbone, 12)
    native = backbone.geometry.native(height, width)
    grid = previewer.grid(height, width)
    assert grid.tokens <= 12 and grid.rows <= native.rows and grid.cols <= native.cols
    assert previewer.look(chunks(2, height, width)).shape == (2, grid.tokens, 32)


def test_a_backbone_preview_is_what_its_own_tower_sees(backbone):
    previewer, video, geometry = BackbonePreview(backbone, 6), chunks(3), backbone.geometry
    grid = previewer.grid(120, 160)
    assert grid == Grid(2, 3)
    small = resize(video.flatten(0, 1), (grid.rows * geometry.factor, grid.cols * geometry.factor))
    grids = torch.tensor([[1, grid.rows * geometry.merge, grid.cols * geometry.merge]] * 3)
    pixels = normalise(geometry.patchify(small), geometry, torch.float32)
    with torch.no_grad():
        seen = backbone.model.visual(pixels, grid_thw=grids, return_dict=True).pooler_output
    assert (previewer.look(video).flatten(0, 1) - seen).abs().max() < 1e-5


def test_a_summary_is_the_vector_a_chunk_would_have_as_a_video_of_its_own(backbone):
    video, geometry = chunks(3), backbone.geometry
    previewer, bare = BackbonePreview(backbone, 6, summary=True), BackbonePreview(backbone, 6)
    looked = previewer.look(video)
    assert looked.shape[1] == 1 + bare.look(video).shape[1] and torch.equal(looked[:, 1:], bare.look(video))
    small = resize(video.flatten(0, 1), (2 * geometry.factor, 3 * geometry.factor))
    alone = [
        Item(Prompt(seconds=np.zeros(1)), Patches(geometry.patchify(pair), np.array([[2, 3]])))
        for pair in small.unflatten(0, (3, 2))
    ]
    unasked = previewer.look(video, asked=False)
    assert torch.equal(unasked[:, 1:], looked[:, 1:]) and not unasked[:, 0].any()
    vectors = torch.nn.functional.normalize(looked[:, 0], dim=-1)
    assert (vectors - backbone.embed(alone)).abs().max() < 1e-5


def test_a_backbone_text_ends_in_the_vector_it_embeds_to(backbone):
    (states,) = BackbonePreview(backbone).read(["a red car"])
    vector = torch.nn.functional.normalize(states[-1], dim=0)
    assert (vector - backbone.embed([Item(Prompt("a red car"))])[0]).abs().max() < 1e-5


def test_a_text_begins_with_what_is_read_where_nothing_is_asked_if_there_are_summaries(backbone):
    bare, previewer = BackbonePreview(backbone), BackbonePreview(backbone, summary=True)
    for text in ("a red car", DEFAULT_TASK):
        (plain,), (read,) = bare.read([text]), previewer.read([text])
        assert torch.equal(read[1:], plain) and torch.equal(read[0], bare.read([DEFAULT_TASK])[0][-1])


def test_the_backbone_in_use_is_shared_and_any_other_loaded_beside_it(backbone, qwen2_folder, qwen3_folder):
    assert load_previewer("backbone", backbone.name, 8, backbone).backbone is backbone
    assert (
        load_previewer("backbone", f"{backbone.name}/../{Path(backbone.name).name}", 8, backbone).backbone is backbone
    )
    assert load_previewer("backbone", "", 8, backbone).backbone is backbone
    other = qwen3_folder if backbone.family == "qwen2_vl" else qwen2_folder
    beside = load_previewer("backbone", str(other), 8, backbone, "cpu", torch.bfloat16)
    assert beside.backbone.family != backbone.family and beside.backbone.dtype == torch.bfloat16
    assert beside.look(chunks(1)).dtype == torch.float32


def test_unknown_kinds_and_impossible_summaries_raise(smol_folder):
    with pytest.raises(ConfigError, match="use one of backbone, smolvlm2"):
        load_previewer("clip")
    with pytest.raises(ConfigError, match="use a backbone"):
        load_previewer("smolvlm2", str(smol_folder), summary=True)


def test_a_preview_model_of_single_frames_averages_the_frames_of_a_chunk(siglip_folder):
    single = load_backbone(siglip_folder, device="cpu")
    video = chunks(3)
    for summary in (False, True):
        previewer = BackbonePreview(single, 6, summary=summary, frames_per_chunk=2)
        alone = BackbonePreview(single, 6, summary=summary).look(video.flatten(0, 1)[:, None])
        assert (previewer.look(video) - alone.unflatten(0, (3, 2)).mean(1)).abs().max() < 1e-5


def test_a_preview_model_of_pairs_sees_a_single_frame_twice(backbone):
    video = chunks(3, frames=1)
    previewer, pairs = BackbonePreview(backbone, 6, frames_per_chunk=1), BackbonePreview(backbone, 6)
    assert torch.equal(previewer.look(video), pairs.look(video.expand(-1, 2, -1, -1, -1)))
    with pytest.raises(ValueError, match=r"\(N, 1, 3, H, W\)"):
        previewer.look(chunks(3))


def test_the_backbone_in_use_decides_the_frames_per_chunk(siglip_folder, qwen3_folder, smol_folder):
    single = load_backbone(siglip_folder, device="cpu")
    for kind, folder in (("backbone", siglip_folder), ("backbone", qwen3_folder), ("smolvlm2", smol_folder)):
        previewer = load_previewer(kind, str(folder), 6, single, "cpu")
        assert previewer.frames_per_chunk == 1 and previewer.look(chunks(2, frames=1)).shape[0] == 2
    assert load_previewer("backbone", str(qwen3_folder), 6, None, "cpu").frames_per_chunk == 2


def test_a_pickled_previewer_gives_the_same_features(previewer):
    other, video = fresh(previewer), chunks(2)
    assert torch.equal(other.look(video), previewer.look(video))
    assert torch.equal(other.read(["a car"])[0], previewer.read(["a car"])[0])
    assert other.identity() == previewer.identity()


@pytest.mark.parametrize("tokens", [1, 2, 5, 12, 30])
@pytest.mark.parametrize("native", [Grid(1, 1), Grid(6, 8), Grid(8, 6), Grid(20, 36), Grid(24, 24), Grid(48, 1)])
def test_a_preview_grid_never_exceeds_its_tokens_or_native(native, tokens):
    grid = preview_grid(native, tokens)
    assert grid.tokens <= tokens and grid.rows <= native.rows and grid.cols <= native.cols
    turned = preview_grid(Grid(native.cols, native.rows), tokens)
    assert grid.tokens == turned.tokens
