"""Our embedder as an mteb model: a tiny local video task runs through mteb itself."""

import numpy as np
import pytest

from allocembed import AllocEmbed
from allocembed.config import EmbedConfig
from tests.clips import write_video

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

from allocembed.benchmarks.mteb_model import MtebModel  # noqa: E402

pytestmark = pytest.mark.slow  # whole runs, servers and command lines


class Tiny(AbsTaskRetrieval):
    """Three captions look for three videos."""

    metadata = TaskMetadata(
        name="TinyT2VRetrieval",
        description="Three captions, three videos.",
        dataset={"path": "local/tiny", "revision": "1"},
        type="Any2AnyRetrieval",
        category="t2v",
        modalities=["text", "video"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        prompt={"query": "Find the video clip that matches the given caption."},
    )
    folder = None
    in_file = False

    def load_data(self, num_proc=None, **_):
        paths = [write_video(self.folder / f"{i}.mp4", 20 + i) for i in range(3)]
        videos = [{"path": None, "bytes": path.read_bytes()} if self.in_file else str(path) for path in paths]
        corpus = datasets.Dataset.from_dict({"id": ["0", "1", "2"], "video": videos})
        corpus = corpus.cast_column("video", datasets.Video())
        queries = datasets.Dataset.from_dict({"id": ["0", "1", "2"], "text": ["a dog", "a cat", "a car"]})
        relevant = {str(i): {str(i): 1} for i in range(3)}
        split = RetrievalSplitData(queries=queries, corpus=corpus, relevant_docs=relevant, top_ranked=None)
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


@pytest.fixture
def embedder(qwen3_folder) -> AllocEmbed:
    return AllocEmbed.from_pretrained(qwen3_folder, "uniform", budget="2f", candidates=4, device="cpu")


@pytest.mark.parametrize("in_file", [False, True], ids=["paths", "bytes"])
def test_mteb_runs_a_video_task(embedder, tmp_path, in_file):
    task = Tiny()
    task.folder, task.in_file = tmp_path, in_file
    seen = []
    encode_texts = embedder.encode_texts
    embedder.encode_texts = lambda texts, **k: seen.append((list(texts), k)) or encode_texts(texts, **k)
    results = mteb.evaluate(MtebModel(embedder), [task], cache=None)
    scores = results.task_results[0].scores["test"][0]
    assert 0 < scores["main_score"] <= 1
    texts = embedder.encode_texts(["a dog", "a cat", "a car"], instruction=Tiny.metadata.prompt["query"])
    videos = embedder.encode_videos([tmp_path / f"{i}.mp4" for i in range(3)])
    found = np.stack([t.vector for t in texts]) @ np.stack([v.vector for v in videos]).T
    assert scores["hit_rate_at_1"] == pytest.approx((found.argmax(1) == np.arange(3)).mean(), abs=1e-4)
    assert seen[0][1] == {"instruction": Tiny.metadata.prompt["query"]}


def test_the_settings_are_part_of_the_experiment(embedder, qwen3_folder):
    meta = MtebModel(embedder).mteb_model_meta
    assert meta.experiment_kwargs == {
        "backbone": qwen3_folder.name,
        "allocator": "uniform",
        "budget": "2f",
        "candidates": 4,
        "scale_range": [0.2, 1.8],
        "seek": "exact",
        "dim": 32,
    }
    assert meta.embed_dim == 32 and meta.modalities == ["text", "video"]
    assert isinstance(MtebModel(embedder), mteb.models.EncoderProtocol)


def test_another_allocator_or_budget_has_another_revision(embedder):
    config = EmbedConfig(budget="2f", candidates=4)
    others = [AllocEmbed(embedder.backbone, "content", config), AllocEmbed(embedder.backbone, "uniform")]
    models = [MtebModel(each).mteb_model_meta for each in (embedder, *others)]
    assert len({meta.revision for meta in models}) == 3 and len({meta.name for meta in models}) == 1
    same = AllocEmbed(embedder.backbone, "uniform", config)
    assert MtebModel(same).mteb_model_meta.revision == models[0].revision


def test_a_model_is_loaded_from_a_config(qwen3_folder):
    model = MtebModel.from_config(EmbedConfig(backbone=str(qwen3_folder), allocator="base", device="cpu"))
    assert model.embedder.allocator.name == "base"


def test_vectors_are_compared_by_cosine(embedder):
    model = MtebModel(embedder)
    ones = np.eye(2, dtype=np.float32)
    assert model.similarity(ones, ones).tolist() == [[1, 0], [0, 1]]
    assert model.similarity_pairwise(ones, ones[::-1].copy()).tolist() == [0, 0]
