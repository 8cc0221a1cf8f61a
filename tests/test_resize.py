"""R(x, s): the backbone's own patch order, the right sizes, close to PIL's bicubic."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from allocembed import resize as resizing
from allocembed.backbones.registry import FAMILIES
from allocembed.budget import Allocation, Grid
from allocembed.resize import chunk_seconds, normalise, resize, to_patches

GEOMETRIES = [FAMILIES[name].geometry for name in ("qwen2_vl", "qwen3_vl")]


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth random picture with an edge in it."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (9, 9, 3), np.uint8))
    pixels = np.array(coarse.resize((width, height), Image.Resampling.BICUBIC))
    pixels[: height // 3, : width // 4] = 255
    return pixels


@given(st.integers(28, 3000), st.integers(28, 3000))
def test_native_size_is_the_processors_smart_resize(height, width):
    for geometry in GEOMETRIES:
        if max(height, width) / min(height, width) > 20:
            continue
        limits = {"min_pixels": geometry.min_pixels, "max_pixels": geometry.max_pixels}
        theirs = smart_resize(height, width, factor=geometry.factor, **limits)
        ours = geometry.native(height, width)
        assert (ours.rows * geometry.factor, ours.cols * geometry.factor) == theirs


@given(st.integers(1, 200), st.integers(1, 40_000))
def test_no_strip_is_larger_than_the_model_allows(short, long):
    for geometry in GEOMETRIES:
        for sides in ((short, long), (long, short)):
            assert geometry.native(*sides).tokens * geometry.factor**2 <= geometry.max_pixels


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["qwen2", "qwen3"])
def test_patches_are_those_of_the_pil_image_processor(geometry):
    processor = Qwen2VLImageProcessorPil(
        patch_size=geometry.patch, merge_size=2, image_mean=geometry.mean, image_std=geometry.std, do_resize=False
    )
    pixels = picture(4 * geometry.factor, 6 * geometry.factor)
    theirs = processor(images=Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    twice = torch.from_numpy(np.stack([pixels, pixels])).permute(0, 3, 1, 2)
    ours = normalise(geometry.patchify(twice), geometry, torch.float32)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-5


def test_the_two_frames_of_a_chunk_stay_apart():
    geometry = GEOMETRIES[1]
    frames = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    frames[1] = 9
    cut = geometry.patchify(frames).view(-1, 3, 2, 16, 16)
    assert not cut[:, :, 0].any() and (cut[:, :, 1] == 9).all()


@pytest.mark.parametrize("size", [(56, 84), (140, 196), (336, 504)])
def test_resizing_is_within_two_levels_of_pil(size):
    pixels = picture(240, 360)
    theirs = np.array(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC)).astype(int)
    ours = resize(torch.from_numpy(pixels).permute(2, 0, 1)[None], size)[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - theirs).max() <= 2


@pytest.mark.parametrize("size", [(56, 84), (140, 196), (336, 504), (14, 14)])
def test_the_filter_as_matrices_is_the_same_filter(size):
    pixels = torch.from_numpy(picture(240, 360)).permute(2, 0, 1)[None]
    cpu = torch.device("cpu")
    down, across = (resizing.bicubic_filter(old, new, cpu) for old, new in zip((240, 360), size, strict=True))
    smooth = resizing._as_matrices(pixels.half(), down, across)
    assert (smooth - resize(pixels, size).float()).abs().max() <= 1


def test_filters_that_are_kept_have_a_bounded_size():
    one, cpu = 2 * 2 * 64 * 48, torch.device("cpu")  # bytes of a filter from 64 to 48
    cache = resizing.FilterCache(3 * one)
    first = cache(64, 48, cpu)
    for new in (47, 46):
        cache(64, new, cpu)
    assert cache(64, 48, cpu) is first and first.nbytes == one
    cache(64, 45, cpu)
    assert cache(64, 48, cpu) is first and cache.bytes <= 3 * one
    assert cache(640, 480, cpu) is cache(640, 480, cpu), "one that is too large is kept alone"
    assert cache(64, 48, cpu) is not first


def make_allocation(grids: list[tuple[int, int]], frames: tuple) -> Allocation:
    sizes = tuple(Grid(*grid) for grid in grids)
    return Allocation(frames, (1.0,) * len(grids), sizes, Grid(6, 8), 10**6, 1)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["qwen2", "qwen3"])
def test_mixed_chunks_equal_chunks_cut_one_by_one(geometry):
    frames = np.stack([picture(120, 160, seed) for seed in range(7)])
    times = np.arange(7.0)
    grids, pairs = [(2, 3), (1, 1), (2, 3), (4, 5)], ((0, 1), (2, 3), (4, 5), (6, 6))
    together = to_patches(frames, make_allocation(grids, pairs), geometry)
    alone = [to_patches(frames, make_allocation([g], (p,)), geometry) for g, p in zip(grids, pairs, strict=True)]
    assert torch.equal(together.pixels, torch.cat([patches.pixels for patches in alone]))
    assert together.tokens == [6, 1, 6, 20]
    assert together.grids.tolist() == [list(grid) for grid in grids]
    assert chunk_seconds(times, pairs).tolist() == [0.5, 2.5, 4.5, 6.0]
    assert torch.equal(
        to_patches(torch.from_numpy(frames), make_allocation(grids, pairs), geometry).pixels, together.pixels
    )


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["qwen2", "qwen3"])
@pytest.mark.parametrize("values", [1, 2 * 2 * 3 * 120 * 160, resizing.VALUES_AT_ONCE])
def test_chunks_of_one_size_may_be_cut_together(geometry, monkeypatch, values):
    """As on CUDA, here with the CPU's filter: the memory layout selects its kernel, which may round differently."""
    monkeypatch.setattr(resizing, "VALUES_AT_ONCE", values)
    frames = np.stack([picture(120, 160, seed) for seed in range(8)])
    about = make_allocation([(2, 3), (1, 1), (2, 3), (4, 5)], ((0, 1), (2, 3), (4, 5), (6, 7)))
    alone = to_patches(frames, about, geometry)
    together = torch.empty_like(alone.pixels)
    parts = together.split([grid.tokens * geometry.patches_per_token for grid in about.grids])
    resizing._cut_by_size(torch.from_numpy(frames).permute(0, 3, 1, 2), about, geometry, (120, 160), list(parts))
    assert (together.int() - alone.pixels.int()).abs().max() <= 1


def test_a_frame_of_the_right_size_is_not_touched():
    pixels = torch.from_numpy(picture(64, 96)).permute(2, 0, 1)[None]
    assert torch.equal(resize(pixels, (64, 96)), pixels)


def test_normalised_pixels_have_the_models_statistics():
    geometry = GEOMETRIES[0]
    white = torch.full((4, 3 * 2 * 14 * 14), 255, dtype=torch.uint8)
    scaled = normalise(white, geometry, torch.float32).view(4, 3, -1)
    expected = [(1 - mean) / std for mean, std in zip(geometry.mean, geometry.std, strict=True)]
    assert torch.allclose(scaled.mean((0, 2)), torch.tensor(expected), atol=1e-5)
