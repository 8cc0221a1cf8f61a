"""The contract of backbones: inherit `BackboneContract`, give a tiny checkpoint and its ordinary path.

    class TestMine(BackboneContract):
        @pytest.fixture(scope="class")
        def folder(self, tmp_path_factory):
            return save_tiny_checkpoint(tmp_path_factory.mktemp("mine"))

        def plain_vector(self, backbone, item):
            '''The unit vector (1, dim) of an item, by the model's own classes, without this package's forward pass.'''

The weights should be random and large (a deviation of about 0.15), so that a wrong position or a leak shows in the
vector. Frames of the suite have 64 × 96 to 240 × 400 pixels. A family whose models read no texts passes as well: what
needs texts is then skipped or must be refused.
"""

import json
import pickle
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from allocembed import AllocEmbed, EmbedConfig
from allocembed.allocators.base import AllocationRequest
from allocembed.allocators.learned import Learned
from allocembed.allocators.sensitivity import Sensitivity, look_grid
from allocembed.backbones.base import LONGEST_TEXT, Backbone, Item, Prompt, TowerOutput
from allocembed.backbones.checkpoint import Checkpoint
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.variants import sizes_of
from allocembed.benchmarks.runner import evaluate
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed.budget import Budget
from allocembed.errors import BackboneError, ConfigError
from allocembed.execution.distributed import Processes
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.preview import BackbonePreview
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.rdpo.config import TrainConfig
from allocembed.rdpo.data.base import TRAINING
from allocembed.rdpo.rollouts import RolloutEncoder
from allocembed.rdpo.run import make_source
from allocembed.rdpo.trainer import Trainer
from allocembed.resize import chunk_seconds, normalise, to_patches
from allocembed.search import VideoIndex
from allocembed.testing.items import make_allocation, mixed, noise, rows_of, text, video, video_batch
from allocembed.testing.videos import picture, write_videos
from allocembed.video import Clip, read_picture

CLOSE = 1e-5
ROUNDING = 3e-6  # of float32 in a unit vector: processors differ in the order of sums
QUESTION = "what is it?"


class BackboneContract(ABC):
    """Tests of one family, on one tiny checkpoint."""

    @pytest.fixture(scope="class")
    def folder(self) -> Path:
        """A tiny checkpoint of the family, in the layout of the hub."""
        raise NotImplementedError("give a fixture `folder` of scope class")

    @abstractmethod
    def plain_vector(self, backbone: Backbone, item: Item) -> torch.Tensor:
        """The unit vector (1, dim) of a video or picture by the model's own classes: one row, one forward pass."""

    @pytest.fixture(scope="class")
    def backbone(self, folder: Path) -> Backbone:
        return load_backbone(folder, device="cpu")

    @pytest.fixture
    def reader(self, backbone: Backbone) -> Backbone:
        """The backbone, if it reads texts."""
        if not backbone.reads_texts:
            pytest.skip("reads no texts")
        return backbone

    @pytest.fixture
    def question(self, backbone: Backbone) -> str | None:
        return QUESTION if backbone.reads_texts else None

    @pytest.fixture(autouse=True)
    def one_thread(self):
        """Sums over threads round differently, and some tests compare bits."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    # Vectors are those of the model

    @pytest.mark.parametrize("grids", [[(2, 3)] * 4, [(1, 1), (3, 4), (2, 2), (3, 4)]], ids=["scale one", "mixed"])
    def test_a_video_is_the_models_ordinary_path(self, backbone, question, grids):
        item = video(backbone, grids, question)
        assert (backbone.embed([item]) - self.plain(backbone, item)).abs().max() < ROUNDING

    def test_a_picture_is_the_models_ordinary_path_at_its_native_size(self, backbone, question):
        embedder = AllocEmbed(backbone, "base", EmbedConfig(budget="2f"))
        clip = read_picture(picture(7, width=200, height=120))
        allocation, item = embedder.prepare_picture(clip, question)
        native = backbone.inputs.picture_geometry.native(120, 200)
        assert allocation.grids == (native,) and item.prompt.picture
        assert (backbone.embed([item]) - self.plain(backbone, item)).abs().max() < ROUNDING
        made = embedder.encode_image(clip.picture(0), question)
        assert np.array_equal(made.vector, backbone.embed([item])[0].numpy()) and made.cost == native.tokens

    def plain(self, backbone: Backbone, item: Item) -> torch.Tensor:
        with torch.no_grad():
            return self.plain_vector(backbone, item)

    @pytest.mark.parametrize("batching", ["pad", "pack"])
    def test_a_vector_is_the_same_alone_padded_and_packed(self, backbone, batching):
        items = mixed(backbone)
        alone = torch.cat([backbone.embed([item]) for item in items])
        assert (backbone.embed(items, batching=batching) - alone).abs().max() < CLOSE

    @pytest.mark.parametrize("batching", ["pad", "pack"])
    def test_a_neighbour_does_not_leak(self, backbone, batching):
        first, second = mixed(backbone)[:2]
        other = video(backbone, [(3, 3), (1, 1)], "system" if backbone.reads_texts else None, seed=9)
        before, after = (backbone.embed([neighbour, first], batching=batching)[1] for neighbour in (second, other))
        assert (before - after).abs().max() < CLOSE

    def test_splitting_batches_by_tokens_changes_nothing(self, backbone):
        items = mixed(backbone)
        assert (backbone.embed(items, batch_tokens=1) - backbone.embed(items)).abs().max() < CLOSE

    def test_vectors_are_unit_vectors_and_depend_on_pixels(self, backbone):
        items = [video(backbone, [(2, 3), (1, 2)], seed=seed) for seed in (0, 1)]
        vectors = backbone.embed(items)
        assert torch.allclose(vectors.norm(dim=-1), torch.ones(2))
        assert (vectors[0] - vectors[1]).abs().max() > 1e-4
        assert backbone.embed([]).shape == (0, backbone.dim)
        with pytest.raises(ValueError, match="pad or pack"):
            backbone.embed(items, batching="stack")

    def test_every_chunk_becomes_the_tokens_it_costs(self, backbone, question):
        item = video(backbone, [(1, 1), (3, 4), (2, 2)], question)
        assert item.patches is not None
        assert rows_of(backbone, [item])[0].visual.sum() == sum(item.patches.tokens) == 17

    def test_a_picture_is_shrunk_to_the_budget_and_says_what_it_cost(self, backbone):
        pixels = picture(7, width=400, height=240)
        costs = []
        for budget in ("1", "5", "20"):
            made = AllocEmbed(backbone, "uniform", EmbedConfig(budget=budget)).encode_images([pixels, pixels])
            assert len(made) == 2 and np.array_equal(made[0].vector, made[1].vector)
            assert made[0].cost <= int(budget) and abs(np.linalg.norm(made[0].vector) - 1) < 1e-5
            costs.append(made[0].cost)
        assert costs[0] == 1 and costs == sorted(set(costs)), "a larger budget must show more"

    def test_dim_keeps_the_first_dimensions_as_a_unit_vector(self, folder, backbone):
        item = video(backbone, [(2, 3)])
        whole, cut = backbone.embed([item]), load_backbone(folder, dim=8, device="cpu").embed([item])
        assert torch.allclose(cut, normalize(whole[:, :8], dim=-1), atol=1e-6)
        with pytest.raises(BackboneError, match=f"1 to {backbone.dim}"):
            load_backbone(folder, dim=backbone.dim + 1, device="cpu")

    # Texts

    def test_vectors_depend_on_text_and_instruction(self, reader):
        items = [video(reader, [(2, 3)], text) for text in ("a", "b")]
        vectors = reader.embed([*items, video(reader, [(2, 3)], "a", instruction="Find it.")])
        assert all((vectors[0] - vectors[other]).abs().max() > 1e-4 for other in (1, 2))

    def test_bad_texts_are_refused(self, reader):
        for word in reader.reserved_words()[:1]:
            for item in (text(f"a {word} b"), video(reader, [(1, 1)], word), text("a", instruction=word)):
                with pytest.raises(BackboneError, match="remove it"):
                    reader.embed([item])
        with pytest.raises(BackboneError, match="Unicode"):
            reader.embed([text("\udcff")])
        with pytest.raises(BackboneError, match="shorten it"):
            reader.embed([text("a" * (LONGEST_TEXT + 1))])

    def test_an_empty_text_has_a_vector_of_its_own(self, reader):
        alone = reader.embed([text("")])
        for batching in ("pad", "pack"):
            for others in (["a dog", ""], ["", "a dog"], ["a dog", "", "a much longer text about a dog"]):
                found = reader.embed([text(words) for words in others], batching=batching)
                assert (found[others.index("")] - alone[0]).abs().max() < CLOSE
        assert (alone - reader.embed([text("a dog")])).abs().max() > 1e-3

    def test_text_states_end_in_the_pooled_state(self, reader):
        texts, widths = ["a red car", "x"], reader.widths
        for words, states in zip(texts, reader.text_states(texts), strict=True):
            assert states.shape[1] == widths.texts >= widths.pooled and states.dtype == torch.float32
            assert (reader.vectors(states[-1:, : widths.pooled]) - reader.embed([text(words)])).abs().max() < CLOSE

    def test_a_backbone_without_texts_says_so(self, backbone, tmp_path):
        if backbone.reads_texts:
            pytest.skip("reads texts")
        for item in (text("a dog"), text(""), video(backbone, [(1, 1)], "what?")):
            with pytest.raises(BackboneError, match=r"not texts.*--image"):
                backbone.embed([item])
        with pytest.raises(ConfigError, match="reads no texts"):
            BackbonePreview(backbone, summary=True)
        write_captions(write_videos(tmp_path, 1))
        with pytest.raises(ConfigError, match="--videos FOLDER"):
            small_trainer(backbone, tmp_path, data=str(tmp_path / "train.jsonl"))

    # What else the package makes of the steps

    def test_states_have_the_stated_widths(self, backbone):
        item = video(backbone, [(1, 1), (2, 2)])
        assert item.patches is not None
        with torch.no_grad():
            seen = backbone.see(normalise(item.patches.pixels, backbone.geometry, backbone.dtype), item.grids)
            pooled = backbone.pool(backbone.prepare_rows(rows_of(backbone, [item])), seen)
        assert seen.tokens.shape == (5, backbone.widths.tokens) and pooled.shape == (1, backbone.widths.pooled)
        assert seen.chunks is None or len(seen.chunks) == 2
        assert backbone.project(pooled).shape == (1, backbone.widths.vector) and backbone.dim == backbone.widths.vector

    def test_tower_output_can_be_shared_between_rows(self, backbone, question):
        """Rollouts see each chunk once, and gather its tokens into several rows."""
        grids = [(1, 1), (3, 4), (2, 2)]
        item = video(backbone, grids, question)
        assert item.patches is not None
        pixels = normalise(item.patches.pixels, backbone.geometry, backbone.dtype)
        parts = pixels.split([rows * cols * backbone.geometry.patches_per_token for rows, cols in grids])
        with torch.no_grad():
            each = [backbone.see(part, np.array([grid])) for part, grid in zip(parts[::-1], grids[::-1], strict=True)]
            tokens = torch.tensor([16, *range(4, 16), *range(4)])
            joined = TowerOutput.concat(each).select(tokens, torch.tensor([2, 1, 0]))
            vector = backbone.read(rows_of(backbone, [item]), joined)
        assert (vector - backbone.embed([item])).abs().max() < CLOSE

    def test_a_copy_with_patch_products_leaves_the_lent_backbone_alone(self, backbone):
        item = video(backbone, [(2, 3)])
        before = backbone.embed([item])
        fast = backbone.with_patch_product()
        assert (fast.embed([item]) - before).abs().max() < CLOSE
        assert fast.model is backbone.model, "a copy must not load the weights again"
        assert not backbone.patch_product and torch.equal(backbone.embed([item]), before)

    def test_inputs_are_known_without_weights(self, folder, backbone):
        assert Checkpoint.find(str(folder)).inputs == backbone.inputs

    def test_previews_are_features_of_every_chunk_and_of_texts(self, backbone):
        per_chunk, summary = backbone.geometry.frames_per_chunk, backbone.reads_texts
        frames = torch.from_numpy(noise(backbone, 5)).permute(0, 3, 1, 2).unflatten(0, (-1, per_chunk))
        previewer = BackbonePreview(backbone, tokens=6, summary=summary)
        asked, silent = previewer.look(frames, asked=True), previewer.look(frames, asked=False)
        assert asked.shape == silent.shape and asked.shape[0] == 5 and asked.shape[2] == previewer.visual_width
        if summary:
            assert not silent[:, 0].any() and asked[:, 0].abs().sum() > 0
        assert torch.equal(asked[:, summary:], silent[:, summary:])
        alone = torch.cat([previewer.look(frames[i : i + 1], asked=True) for i in range(5)])
        assert (alone - asked).abs().max() < 1e-4
        assert previewer.read([QUESTION])[0].shape[1] == previewer.text_width

    def test_rollouts_give_the_vectors_of_the_ordinary_path(self, backbone, question):
        videos = video_batch(backbone, count=2, chunks=3)
        grids = np.array([[[(1, 1), (2, 3), (2, 2)], [(2, 3), (2, 3), (1, 1)]]] * 2)
        vectors = RolloutEncoder(backbone, batch_tokens=64).embed(videos, [question, None], grids)
        for number, said in enumerate((question, None)):
            for k in range(2):
                allocation = make_allocation(backbone, [tuple(grid) for grid in grids[number, k]])
                frames = videos.frames[number].movedim(1, -1).contiguous().numpy()
                prompt = Prompt(said, None, chunk_seconds(videos.times[number], allocation.frames))
                item = Item(prompt, to_patches(frames, allocation, backbone.geometry))
                assert (backbone.embed([item])[0] - vectors[number, k]).abs().max() < CLOSE

    @pytest.mark.parametrize("method", ["base", "full", "uniform", "content", "select", "sensitivity", "learned"])
    def test_every_method_keeps_the_budget(self, folder, backbone, question, method):
        frames = np.stack([picture(index, width=200, height=120) for index in range(60)])
        allocator = learned_for(backbone, folder) if method == "learned" else method
        embedder = AllocEmbed(backbone, allocator, EmbedConfig(budget="6f", candidates=16))
        embedding = embedder.encode_video(frames, question if method in ("sensitivity", "learned") else None)
        allocation = embedding.allocation
        assert (allocation.cost > allocation.budget) == (method == "full")
        assert all(len(chunk) == backbone.geometry.frames_per_chunk for chunk in allocation.frames)
        assert embedding.cost == sum(grid.tokens for grid in allocation.grids)
        assert abs(np.linalg.norm(embedding.vector) - 1) < 1e-5

    def test_sensitivity_counts_what_it_reads(self, backbone):
        allocator, clip = Sensitivity(backbone), noise_clip(backbone)
        plan = allocator.plan(clip, AllocationRequest(backbone.geometry, Budget()))
        native = backbone.geometry.native(clip.height, clip.width, frames=len(clip))
        looks = [(look_grid(native, usual), look_grid(native, changed)) for usual, changed in backbone.looks]
        assert plan.look_tower_tokens == len(plan.scales) * sum(grid.tokens for grid in sizes_of(looks))
        if backbone.has_language_model:
            assert plan.look_tokens > plan.look_tower_tokens, "a prompt stands around the tokens of every row"
        else:
            assert plan.look_tokens == plan.look_tower_tokens

    @pytest.mark.parametrize("method", ["content", "learned"])
    def test_an_embedder_survives_pickling_with_the_same_bits(self, folder, backbone, question, method):
        frames = np.stack([picture(index, width=96, height=64) for index in range(20)])
        allocator = learned_for(backbone, folder) if method == "learned" else method
        embedder = AllocEmbed(backbone, allocator, EmbedConfig(budget="4f", candidates=8))
        again = pickle.loads(pickle.dumps(embedder))
        one, other = embedder.encode_video(frames, question), again.encode_video(frames, question)
        assert np.array_equal(one.vector, other.vector) and one.allocation == other.allocation

    @pytest.mark.slow
    def test_one_step_of_rdpo_changes_the_policy(self, reader, tmp_path):
        write_captions(write_videos(tmp_path, 8))
        step_of_rdpo(small_trainer(reader, tmp_path, data=str(tmp_path / "train.jsonl"), preview_summary=True))

    @pytest.mark.slow
    def test_one_step_of_rdpo_without_texts_changes_the_policy(self, backbone, tmp_path):
        write_videos(tmp_path, 8)
        step_of_rdpo(small_trainer(backbone, tmp_path, videos=str(tmp_path)))

    @pytest.mark.slow
    def test_an_index_finds_a_video_by_itself(self, folder, tmp_path):
        paths = write_videos(tmp_path, 3)
        config = EmbedConfig(backbone=str(folder), allocator="content", budget="4f", candidates=8, device="cpu")
        assert VideoIndex.create(tmp_path / "i.index", config, segments="off").add([tmp_path]).embedded == 3
        hit = VideoIndex.open(tmp_path / "i.index", device="cpu").search_like(paths[1])[0]
        assert hit.path.endswith("1.avi") and hit.score > 1 - 1e-5

    @pytest.mark.slow
    def test_a_benchmark_runs(self, reader, tmp_path):
        task = BenchmarkTask("own", "Find:", ["a dog", "a cat"], write_videos(tmp_path, 2), np.array([0, 1]))
        embedders = {name: AllocEmbed(reader, name, EmbedConfig(candidates=12)) for name in ("base", "uniform")}
        scores = evaluate(embedders, [task], tmp_path / "cache").scores
        assert [score.method for score in scores] == ["base", "uniform"]
        assert all(score.over_budget == 0 for score in scores)


def learned_for(backbone: Backbone, folder: Path) -> Learned:
    """An untrained allocator on previews of the backbone."""
    previewer = BackbonePreview(backbone, tokens=6, summary=backbone.reads_texts)
    widths = (previewer.visual_width, previewer.text_width)
    module = FrameModuleConfig(*widths, width=32, heads=2, layers=1, summary=previewer.summary)
    torch.manual_seed(0)
    return Learned(ScalePolicy(PolicyConfig(module, "backbone", str(folder))), previewer)


def noise_clip(backbone: Backbone) -> Clip:
    frames = noise(backbone, 5)
    return Clip(frames, np.arange(len(frames)) * 1.0, np.arange(len(frames)), len(frames), float(len(frames)), "noise")


def write_captions(videos: list[Path]) -> None:
    """A caption for each video, and a question about it."""
    lines = [{"video": path.name, "caption": f"number {path.stem}"} for path in videos]
    lines += [line | {"question": "which?", "options": ["number x"]} for line in lines]
    (videos[0].parent / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))


def small_trainer(backbone: Backbone, folder: Path, **changes: object) -> Trainer:
    """A trainer as `train` makes it, small enough for a test. An untrained backbone never ranks a positive first, so
    only the gap can teach anything."""
    stated = {"reward": "gap", "examples": 4, "rollouts": 3, "mini_batch": 4, "micro_batch": 2, "validation": 2}
    sizes = {"preview": "backbone", "width": 32, "heads": 2, "layers": 1, "warmup": 0, "learning_rate": 5e-5}
    where = {"backbone": backbone.name, "out": str(folder / "out"), "device": "cpu", "budgets": ("4f/7",)}
    config = TrainConfig(**{**stated, **sizes, **where, "global_negatives": 4, **changes})  # pyright: ignore
    backbone = backbone.with_patch_product()
    previewer = BackbonePreview(backbone, config.preview_tokens, summary=config.preview_summary)
    return Trainer(config, Processes("cpu"), backbone, previewer, make_source(config, backbone))


def step_of_rdpo(trainer: Trainer) -> None:
    before = {name: weights.clone() for name, weights in trainer.policy.state_dict().items()}
    report = trainer.step(trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device), 0)
    after = trainer.policy.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert report["cost"] <= 1 and np.isfinite(report["reward"])
