"""The fast path against the library's own: the same vectors, whichever way they are computed."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from allocembed.allocators.learned import Learned
from allocembed.backbones.attention.rows import use_row_attention
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.qwen_vl.backbone import pack_rows, pad_rows
from allocembed.backbones.qwen_vl.language import prepare_language, run_language
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.preview import load_previewer
from allocembed.policy.replay import Replay
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.resize import normalise, to_patches
from allocembed.testing.items import make_allocation, noise, rows_of, text, video

GRIDS = [(1, 1), (3, 4), (2, 2), (3, 4), (5, 2)]
CLOSE = {torch.float32: 1e-7, torch.bfloat16: 1e-5}  # 1 − cos


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["float32", "bfloat16"])
def backbone(request, folder):
    return load_backbone(folder, device="cpu", dtype=request.param)


def items(backbone):
    return [
        video(backbone, GRIDS, "a red car"),
        video(backbone, GRIDS[1:3], seed=1),
        text("drives by"),
        video(backbone, [(6, 6)], "x", seed=2),
    ]


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    one, other = (F.normalize(tensor.double(), dim=-1) for tensor in (one, other))
    return float((1 - (one * other).sum(-1)).abs().max())


@torch.no_grad()
def test_the_towers_loop_gives_the_librarys_bits(backbone):
    patches = video(backbone, GRIDS).patches
    pixels = normalise(patches.pixels, backbone.geometry, backbone.dtype)
    grids = torch.from_numpy(patches.grids) * backbone.geometry.merge
    grids = torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids], 1)
    theirs = backbone.tower(pixels, grid_thw=grids, return_dict=True)
    ours = backbone.see(pixels, patches.grids)
    assert torch.equal(ours.tokens, theirs.pooler_output)
    deep = getattr(theirs, "deepstack_features", None) or []
    assert len(ours.deepstack) == len(deep) == (2 if backbone.family == "qwen3_vl" else 0)
    assert all(torch.equal(one, other) for one, other in zip(ours.deepstack, deep, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_language_models_loop_gives_the_librarys_bits(backbone, packed, monkeypatch):
    if packed:  # by the library's mask, as with sliding windows; our own attention rounds otherwise
        monkeypatch.setattr(backbone.language_model.config, "_attn_implementation", "sdpa")
    some = items(backbone)
    rows = rows_of(backbone, some)
    ids, positions, _ = (pack_rows if packed else pad_rows)(rows)
    videos = [item.patches for item in some if item.patches is not None]
    pixels = normalise(torch.cat([one.pixels for one in videos]), backbone.geometry, backbone.dtype)
    seen = backbone.see(pixels, np.concatenate([one.grids for one in videos]))
    place = ids == backbone.video_token
    embedded = backbone.model.get_input_embeddings()(ids).masked_scatter(place[..., None], seen.tokens)
    deep = {"visual_pos_masks": place, "deepstack_visual_embeds": list(seen.deepstack)}
    theirs = backbone.language_model(
        inputs_embeds=embedded,
        position_ids=positions,
        attention_mask=None,
        use_cache=False,
        **(deep if seen.deepstack else {}),
    ).last_hidden_state
    lengths = [len(row) for row in rows] if packed else None
    inputs = prepare_language(ids, positions, backbone.video_token, backbone.device, lengths)
    assert torch.equal(run_language(backbone.language_model, inputs, seen), theirs)
    at = torch.tensor([3, 1, ids.numel() - 1])
    assert torch.equal(run_language(backbone.language_model, inputs, seen, at=at), theirs.flatten(0, 1)[at])


def test_the_patch_embedding_is_the_same_as_a_product(backbone):
    before = backbone.embed(items(backbone))
    assert apart(backbone.with_patch_product().embed(items(backbone)), before) < 10 * CLOSE[backbone.dtype]


def test_packed_rows_are_separated_by_their_bounds_alone(backbone):
    alone = torch.cat([backbone.embed([item]) for item in items(backbone)])
    use_row_attention(backbone.language_model)  # as on CUDA in half precision
    for batching in ("pack", "pad"):
        assert apart(backbone.embed(items(backbone), batching=batching), alone) < CLOSE[backbone.dtype]
    others = [*items(backbone)[1:], video(backbone, GRIDS[:2], "else", seed=7)]
    found = backbone.embed([items(backbone)[0], *others], batching="pack")
    assert apart(found[:1], alone[:1]) < CLOSE[backbone.dtype]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_blocks_give_the_same_vectors_and_one_graph_serves_all_sizes(folder):
    plain, fast = (load_backbone(folder, device="cpu", compile=flag) for flag in (False, True))
    for each in (plain, fast):
        use_row_attention(each.language_model)
    counters.clear()
    for seed, grids in enumerate((GRIDS, GRIDS[:2], [(2, 5)] * 3, [(4, 1)])):
        some = [video(plain, grids, "a red car", seed=seed), text("drives by")]
        assert apart(fast.embed(some, batching="pack"), plain.embed(some, batching="pack")) < 1e-6
        assert apart(fast.embed(some[:1]), plain.embed(some[:1])) < 1e-6
    assert counters["stats"]["unique_graphs"] == 2 and not counters["graph_break"]


def test_without_a_graph_the_allocator_works_as_it_is_and_says_so_once(caplog):
    replay = Replay(lambda prepared, one, two: one * prepared + two, lambda kind, one, two: kind * len(one))
    replay._capture = lambda kind, inputs: (_ for _ in ()).throw(RuntimeError("no graphs here"))
    with caplog.at_level("WARNING", logger="allocembed"):
        for _ in range(3):
            assert replay(2, torch.ones(3), torch.ones(3)).tolist() == [7.0] * 3
    assert caplog.text.count("no graphs here") == 1


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_cuda
@torch.inference_mode()
def test_cuda_gives_the_vectors_of_the_cpu_and_the_host_never_waits(folder):
    slow, fast = (load_backbone(folder, device=device, dtype="bfloat16") for device in ("cpu", "cuda"))
    some = items(slow)
    for batching in ("pad", "pack"):
        rows = rows_of(fast, some)
        fast.forward(some, rows, batching)
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = fast.forward(some, rows, batching)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert apart(found.cpu(), slow.embed(some)) < 1e-3  # two devices round bfloat16 differently


@on_cuda
def test_cuda_cuts_the_patches_of_the_cpu(backbone):
    frames, about = noise(backbone, 5, height=120, width=200), make_allocation(backbone, GRIDS)
    here = to_patches(frames, about, backbone.geometry)
    there = to_patches(torch.from_numpy(frames).cuda(), about, backbone.geometry)
    assert there.pixels.is_cuda and (there.pixels.cpu().int() - here.pixels.int()).abs().max() <= 1


@on_cuda
@pytest.mark.parametrize("kind", ["backbone", "smolvlm2"])
def test_cuda_plans_by_a_graph_what_it_plans_without_one(kind, folder, smol_folder):
    source = str(smol_folder if kind == "smolvlm2" else folder)
    previewer = load_previewer(kind, source, device="cuda", dtype="bfloat16", summary=kind == "backbone")
    widths = previewer.visual_width, previewer.text_width
    module = FrameModuleConfig(*widths, width=48, heads=4, summary=previewer.summary)
    torch.manual_seed(0)
    learned = Learned(ScalePolicy(PolicyConfig(module, kind, source)), previewer)
    for count, question in ((12, "what?"), (7, None), (12, "a much longer question than the first one " * 4)):
        frames = np.random.default_rng(count).integers(0, 255, (count, 120, 200, 3), np.uint8)
        by_graph = learned.actions(frames, question)
        assert learned._replay.works and np.array_equal(
            by_graph, learned.actions(torch.from_numpy(frames).cuda(), question)
        )
        learned._replay.works = False
        assert np.abs(learned.actions(frames, question) - by_graph).max() < 1e-3
        learned._replay.works = True
