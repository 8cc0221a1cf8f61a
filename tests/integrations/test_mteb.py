"""Our embedder as an mteb model: tiny local video tasks of mteb's own kinds run through mteb itself."""

from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from allocembed import AllocEmbed
from allocembed.allocators.base import Allocator
from allocembed.allocators.base_frames import BaseFrames
from allocembed.allocators.full import Full
from allocembed.config import EmbedConfig
from tests.clips import write_video

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")

from mteb.abstasks.classification import AbsTaskClassification  # noqa: E402
from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from mteb.abstasks.zeroshot_classification import AbsTaskZeroShotClassification  # noqa: E402
from mteb.cache import ResultCache  # noqa: E402

from allocembed.integrations.mteb import MtebModel  # noqa: E402

pytestmark = pytest.mark.slow  # whole runs, servers and command lines


PROMPT = "Find the video clip that matches the given caption."


def describe(name: str, kind: str, category: str, modalities: list[str], score: str, **more: Any) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        description="A few videos.",
        dataset={"path": "local/tiny", "revision": "1"},
        type=kind,
        category=category,
        modalities=modalities,
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=score,
        **more,
    )


class Captions(AbsTaskRetrieval):
    """Three captions look for three videos."""

    metadata = describe("TinyT2V", "Any2AnyRetrieval", "t2v", ["text", "video"], "ndcg_at_10", prompt={"query": PROMPT})

    def use(self, videos) -> Self:
        corpus = videos.add_column("id", ["0", "1", "2"])
        queries = datasets.Dataset.from_dict({"id": ["0", "1", "2"], "text": ["a dog", "a cat", "a car"]})
        relevant = {str(i): {str(i): 1} for i in range(3)}
        split = RetrievalSplitData(queries=queries, corpus=corpus, relevant_docs=relevant, top_ranked=None)
        self.dataset, self.data_loaded = {"default": {"test": split}}, True
        return self


class Questions(AbsTaskRetrieval):
    """A question about each video, with two answers to choose from, as in mteb's NExT-QA and EgoSchema."""

    metadata = describe("TinyQA", "VideoCentricQA", "vt2t", ["video", "text"], "accuracy")

    def use(self, videos) -> Self:
        names = [f"q{i}" for i in range(len(videos))]
        queries = videos.add_column("id", names).add_column("text", [f"what is {name}?" for name in names])
        ranked = {name: [f"{name}_c0", f"{name}_c1"] for name in names}
        corpus = [{"id": choice, "text": f"answer {choice}"} for own in ranked.values() for choice in own]
        relevant = {name: {f"{name}_c1": 1} for name in names}
        split = RetrievalSplitData(
            queries=queries, corpus=datasets.Dataset.from_list(corpus), relevant_docs=relevant, top_ranked=ranked
        )
        self.dataset, self.data_loaded = {"default": {"test": split}}, True
        return self


class Labelled:
    """Every second video has the other label; the sound beside it must not be decoded."""

    input_column_name = "video"
    label_column_name = "label"

    def use(self, videos) -> Self:
        sound = datasets.Dataset.from_dict({"audio": ["nowhere.wav"] * len(videos)})
        labelled = videos.add_column("label", [i % 2 for i in range(len(videos))])
        labelled = labelled.add_column("audio", sound["audio"]).cast_column("audio", datasets.Audio())
        self.dataset, self.data_loaded = datasets.DatasetDict({"train": labelled, "test": labelled}), True
        return self


class Classes(Labelled, AbsTaskClassification):
    metadata = describe("TinyClasses", "VideoClassification", "v2c", ["video"], "accuracy")
    samples_per_label, n_experiments = 1, 1


class Labels(Labelled, AbsTaskZeroShotClassification):
    metadata = describe("TinyLabels", "VideoZeroshotClassification", "v2t", ["video", "text"], "accuracy")

    def get_candidate_labels(self) -> list[str]:
        return ["a short film", "a long film"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    return [write_video(folder / f"{i}.mp4", 20 + 9 * i) for i in range(4)]


def as_column(files: list[Path], in_file: bool = False):
    videos = [{"path": None, "bytes": path.read_bytes()} if in_file else str(path) for path in files]
    return datasets.Dataset.from_dict({"video": videos}).cast_column("video", datasets.Video())


@pytest.fixture(scope="module")
def embedder(qwen3_folder) -> AllocEmbed:
    return AllocEmbed.from_pretrained(qwen3_folder, "uniform", budget="2f", candidates=4, device="cpu")


@pytest.mark.parametrize("in_file", [False, True], ids=["paths", "bytes"])
def test_mteb_runs_a_retrieval_task(embedder, files, in_file, monkeypatch):
    seen = []
    encode_texts = embedder.encode_texts
    monkeypatch.setattr(
        embedder, "encode_texts", lambda texts, **k: seen.append((list(texts), k)) or encode_texts(texts, **k)
    )
    results = mteb.evaluate(MtebModel(embedder), [Captions().use(as_column(files[:3], in_file))], cache=None)
    scores = results.task_results[0].scores["test"][0]
    assert 0 < scores["main_score"] <= 1
    texts = encode_texts(["a dog", "a cat", "a car"], instruction=PROMPT)
    videos = embedder.encode_videos(files[:3])
    found = np.stack([t.vector for t in texts]) @ np.stack([v.vector for v in videos]).T
    assert scores["hit_rate_at_1"] == pytest.approx((found.argmax(1) == np.arange(3)).mean(), abs=1e-4)
    assert seen[0][1] == {"instruction": PROMPT}


def test_mteb_asks_questions_about_videos(embedder, files):
    results = mteb.evaluate(MtebModel(embedder), [Questions().use(as_column(files))], cache=None)
    names = [f"q{i}" for i in range(len(files))]
    asked = [
        embedder.encode_video(file, f"what is {name}?", instruction=embedder.backbone.query_instruction)
        for file, name in zip(files, names, strict=True)
    ]
    right = 0
    for name, one in zip(names, asked, strict=True):
        answers = embedder.encode_texts([f"answer {name}_c0", f"answer {name}_c1"])
        right += one.vector @ answers[1].vector > one.vector @ answers[0].vector
    assert results.task_results[0].scores["test"][0]["accuracy"] == pytest.approx(right / len(files), abs=1e-4)


@pytest.mark.parametrize(("kind", "steers"), [("VideoCentricQA", True), ("Any2AnyRetrieval", False)])
def test_only_a_question_beside_a_video_steers_its_allocation(embedder, files, monkeypatch, kind, steers):
    seen = []
    plan = embedder.allocator.plan
    monkeypatch.setattr(
        embedder.allocator, "plan", lambda clip, asked: seen.append(asked.question) or plan(clip, asked)
    )
    task = describe("Tiny", kind, "vt2v", ["video", "text"], "accuracy")
    batch = {"video": [str(files[0])], "text": ["the same in the snow"]}
    vectors = MtebModel(embedder).encode([batch], task_metadata=task)
    assert seen == (["the same in the snow"] if steers else [None])
    # Uniform allocation ignores the question, so both vectors must be those of the video with the text.
    assert np.abs(vectors[0] - embedder.encode_video(files[0], "the same in the snow").vector).max() < 1e-5


@pytest.mark.parametrize("task", [Classes, Labels])
def test_mteb_sorts_videos(task, embedder, files, monkeypatch):
    seen = []
    encode = embedder.encode_videos
    monkeypatch.setattr(embedder, "encode_videos", lambda sources, *a, **k: seen.extend(sources) or encode(sources))
    results = mteb.evaluate(MtebModel(embedder), [task().use(as_column(files))], cache=None)
    assert 0 <= results.task_results[0].scores["test"][0]["main_score"] <= 1
    assert set(map(Path, seen)) <= set(files) and len(seen) >= 4


def test_two_allocators_of_one_name_never_share_a_result(embedder, files, tmp_path):
    config, task = EmbedConfig(budget="2f", candidates=4), Captions().use(as_column(files[:3]))
    cache, counted = ResultCache(tmp_path), []

    def run(kind: type[Allocator]) -> float:
        # As two learned ones are, from folders a/best and b/best.
        mine = type("Mine", (kind,), {"name": "best", "identity": lambda self: f"best {kind.__name__}"})
        model = MtebModel(AllocEmbed(embedder.backbone, mine(), config))
        encode = model.encode
        model.encode = lambda *a, **k: counted.append(kind) or encode(*a, **k)
        return mteb.evaluate(model, [task], cache=cache).task_results[0].scores["test"][0]["main_score"]

    first = [run(BaseFrames), run(Full)]
    assert counted == [BaseFrames, BaseFrames, Full, Full], "the second one was embedded, not taken from the first"
    assert len(list(tmp_path.rglob("TinyT2V.json"))) == 2
    assert [run(BaseFrames), run(Full)] == first and len(counted) == 4, "each one's own result is found again"


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
    assert len({meta.revision for meta in models}) == len({meta.name for meta in models}) == 3
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
