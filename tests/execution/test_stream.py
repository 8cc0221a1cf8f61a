"""Many videos at once: read ahead by threads, in order, in bounded memory, and each vector what it would be alone."""

import threading
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from allocembed import AllocEmbed, Failure, VideoError
from allocembed.backbones.qwen_vl.backbone import QwenVLBackbone
from allocembed.backbones.qwen_vl.language import run_layer
from allocembed.backbones.qwen_vl.tower import run_block
from allocembed.execution import stream
from allocembed.execution.stream import Prepared, embed_jobs
from allocembed.testing.items import text, video
from allocembed.threads import map_ordered
from allocembed.video import DecodeLimits, sample
from allocembed.video.decoders.nvdec.gpu import Nvdec
from tests.allocators.test_learned import save_policy
from tests.clips import LONG_GROUPS, picture, write_video
from tests.nvdec import stand_in


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def embeds(request) -> AllocEmbed:
    return AllocEmbed.from_pretrained(request.getfixturevalue(request.param), "content", device="cpu", candidates=8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Six videos of different lengths and contents, and in their middle one that is none."""
    folder = tmp_path_factory.mktemp("videos")
    made = [
        write_video(folder / f"{number}.mp4", [picture(7 * number + index) for index in range(12 + 5 * number)])
        for number in range(6)
    ]
    broken = folder / "broken.mp4"
    broken.write_bytes(b"no video")
    return [*made[:3], broken, *made[3:]]


@pytest.fixture(scope="module")
def alone(embeds, files) -> list[np.ndarray | None]:
    return [None if file.stem == "broken" else embeds.encode_video(file, "what?").vector for file in files]


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("workers", [None, 1, 3])
@pytest.mark.parametrize("batch", [1, 4])
def test_vectors_are_what_they_are_alone_bit_for_bit(embeds, files, alone, batch, workers, large, monkeypatch):
    before = torch.get_num_threads()
    if large:  # prepared in threads, embedded by the caller
        monkeypatch.setattr(stream, "SMALL_MODEL_PARAMETERS", 0)
        torch.set_num_threads(1)  # as many as each video has where several go side by side
    try:
        results = list(embeds.stream(files, "what?", batch=batch, workers=workers))
    finally:
        torch.set_num_threads(before)
    assert [result.source for result in results] == [str(file) for file in files]
    for result, vector in zip(results, alone, strict=True):
        if vector is None:
            assert isinstance(result, Failure)
        else:
            assert np.array_equal(result.vector, vector)


@pytest.mark.slow
@pytest.mark.parametrize("compile", [False, True], ids=["as it is", "compiled"])
def test_a_compiled_backbone_reads_in_one_thread(qwen3_folder, files, monkeypatch, compile):
    several = AllocEmbed.from_pretrained(qwen3_folder, "content", device="cpu", candidates=8, compile=compile)
    threads, forward = set(), several.backbone.forward
    monkeypatch.setattr(several.backbone, "block", run_block)  # compiling takes seconds, and is not what this is about
    monkeypatch.setattr(several.backbone, "layer", run_layer)
    monkeypatch.setattr(
        several.backbone, "forward", lambda *given: threads.add(threading.get_ident()) or forward(*given)
    )
    list(several.stream(files, workers=2))
    assert (threads == {threading.get_ident()}) == compile


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_no_more_than_twice_the_batch_and_what_workers_hold_is_read_ahead(embeds, monkeypatch, large):
    if large:
        monkeypatch.setattr(stream, "SMALL_MODEL_PARAMETERS", 0)
    frames = np.stack([picture(index) for index in range(4)])
    opened, embedded, begun, done, ahead = embeds.open, embeds.backbone.embed, [], [], []

    def noted(*given, **more):
        begun.append(1)
        ahead.append(len(begun) - len(done))
        return opened(*given, **more)

    def counted(items):
        done.extend(items)
        return embedded(items)

    monkeypatch.setattr(embeds, "open", noted)
    monkeypatch.setattr(embeds.backbone, "embed", counted)
    for _ in embeds.stream([frames] * 40, batch=2, workers=3):
        time.sleep(0.02)  # a slow reader of results
    assert len(done) == 40 and 1 < max(ahead) <= 2 * 2 + 3


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_leaving_early_ends_the_work_and_its_threads(embeds, files, monkeypatch, large):
    if large:
        monkeypatch.setattr(stream, "SMALL_MODEL_PARAMETERS", 0)
    threads = threading.active_count()
    results = embeds.stream(files * 3, batch=2)
    assert next(results).source == str(files[0])
    results.close()
    assert threading.active_count() == threads


def test_the_callers_torch_threads_stay_as_they_were(embeds, files):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in embeds.stream(files, workers=2):
            assert torch.get_num_threads() == 2
        seen = []
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert seen == [2]
    finally:
        torch.set_num_threads(before)


def test_a_fault_comes_out_where_it_belongs():
    def work(number: int) -> int:
        if number == 2:
            raise KeyError(number)
        return number

    with pytest.raises(KeyError):
        list(map_ordered(work, range(5), workers=2))


def test_the_order_is_kept_when_later_work_is_quicker():
    delays = [0.1, 0.0, 0.05, 0.0]
    results = map_ordered(lambda job: (time.sleep(job[1]), job[0])[1], enumerate(delays), workers=4)
    assert list(results) == [0, 1, 2, 3]


@pytest.mark.parametrize("given", [{"batch": 0}, {"workers": 0}])
def test_nothing_can_be_done_by_nobody(embeds, given):
    with pytest.raises(ValueError, match="at least 1, not 0"):
        list(embeds.stream([], **given))


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_frames_do_not_depend_on_the_decoders_threads(tmp_path, seek):
    file = write_video(tmp_path / "long.mp4", 150, options=LONG_GROUPS)
    usual = sample(file, 12, seek=seek)
    for threads in (1, 3):
        clip = sample(file, 12, seek=seek, limits=replace(DecodeLimits(), threads=threads))
        assert np.array_equal(clip.frames, usual.frames) and np.array_equal(clip.times, usual.times)


@pytest.mark.parametrize("method", ["content", "learned"])
def test_the_way_over_a_gpu_does_the_same_in_packed_batches(qwen3_folder, files, method, tmp_path, monkeypatch):
    """With the CPU for a GPU: frames as a tensor, plans and patches made from it, several videos in one row."""
    allocator = save_policy(tmp_path, "backbone", str(qwen3_folder)) if method == "learned" else method
    embeds = AllocEmbed.from_pretrained(qwen3_folder, allocator, device="cpu", candidates=8)
    good = [file for file in files if file.stem != "broken"]
    expected = [embeds.encode_video(file) for file in good]
    monkeypatch.setattr(stream, "SMALL_MODEL_PARAMETERS", 0)
    monkeypatch.setattr(QwenVLBackbone, "packs", True)
    found = list(embeds.stream(good, batch=4, workers=2))
    assert [one.allocation for one in found] == [one.allocation for one in expected]
    cosines = [float(one.vector @ other.vector) for one, other in zip(found, expected, strict=True)]
    assert min(cosines) >= 1 - 1e-5


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("packs", [True, False])
def test_a_job_may_have_many_pieces_or_fail_after_some(embeds, monkeypatch, ordered, packs):
    monkeypatch.setattr(stream, "SMALL_MODEL_PARAMETERS", 0)
    monkeypatch.setattr(QwenVLBackbone, "packs", packs)

    def prepare(job: int, worker):
        for piece in range(job % 4):
            yield Prepared(video(embeds.backbone, [(1, 2)], "x", seed=10 * job + piece), piece)
        if job % 5 == 4:
            raise VideoError(str(job), "broken")

    outcomes = list(embed_jobs(embeds.backbone, range(23), prepare, batch=3, workers=4, ordered=ordered))
    if ordered:
        assert [outcome.job for outcome in outcomes] == list(range(23))
    for outcome in sorted(outcomes, key=lambda outcome: outcome.job):
        failed = outcome.job % 5 == 4
        assert (outcome.error is not None) == failed
        assert [tag for tag, _ in outcome.pieces] == ([] if failed else list(range(outcome.job % 4)))
        for piece, vector in outcome.pieces:
            item = video(embeds.backbone, [(1, 2)], "x", seed=10 * outcome.job + piece)
            assert np.abs(embeds.backbone.embed([item]).numpy()[0] - vector).max() < 1e-5


def test_many_failures_behind_a_waiting_piece_do_not_block(embeds, monkeypatch):
    """Ended jobs may hold every place while a batch is not full."""
    monkeypatch.setattr(stream, "SMALL_MODEL_PARAMETERS", 0)
    monkeypatch.setattr(QwenVLBackbone, "packs", True)

    def prepare(job: int, worker):
        if job:
            raise VideoError(str(job), "broken")
        yield Prepared(text("first"), job)

    outcomes = list(embed_jobs(embeds.backbone, range(60), prepare, batch=4, workers=2))
    assert len(outcomes) == 60 and len(outcomes[0].pieces) == 1


def test_any_other_error_stops_the_run_after_what_was_finished(embeds):
    def prepare(job: int, worker):
        if job == 30:
            raise ZeroDivisionError
        yield Prepared(text(str(job)), job)

    done = []
    with pytest.raises(ZeroDivisionError):
        done += [outcome.job for outcome in embed_jobs(embeds.backbone, range(60), prepare, batch=2)]
    assert threading.active_count() < 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [1, 4])
def test_a_gpu_gives_nearly_the_same_vectors_packed(qwen3_folder, files, workers):
    on = AllocEmbed.from_pretrained(qwen3_folder, "content", device="cuda", candidates=8)
    good = [file for file in files if file.stem != "broken"]
    vectors = np.stack([on.encode_video(file).vector for file in good])
    together = list(on.stream(good, batch=4, workers=workers))
    assert (1 - (vectors * np.stack([each.vector for each in together])).sum(1)).max() <= 1e-5


@pytest.mark.parametrize(
    ("workers", "jobs", "together", "threads"), [(None, 10, 5, 1), (4, 8, 4, 2), (2, 4, 2, 4), (None, 1, 1, 8)]
)
def test_there_are_as_many_workers_as_decoders_and_some_beside(embeds, monkeypatch, workers, jobs, together, threads):
    monkeypatch.setattr(stream, "core_count", lambda: 8)
    monkeypatch.setattr(Nvdec, "places", 3)
    barrier, given = threading.Barrier(together, timeout=20), []

    def prepare(job, worker):
        given.append(worker.decoder_threads)
        barrier.wait()
        return iter(())

    outcomes = list(embed_jobs(embeds.backbone, range(jobs), prepare, workers=workers, decoders=stand_in()))
    assert len(outcomes) == jobs and set(given) == {threads}


class Pretender:
    """A backbone on a GPU, as far as `embed_jobs` can tell, that notes when batches begin and are waited for."""

    packs, compiled, parameter_count, dim, device = True, False, 10**9, 1, torch.device("cpu")

    def __init__(self, seconds=0.0):
        self.log, self.seconds = [], seconds

    def begin(self, items, *, batching):
        self.log.append(("begin", len(items)))
        ends = time.monotonic() + self.seconds

        def vectors():
            self.log.append(("wait", len(items)))
            time.sleep(max(0.0, ends - time.monotonic()))
            return torch.tensor([[float(item)] for item in items])

        return SimpleNamespace(ready=lambda: time.monotonic() >= ends, vectors=vectors)


def test_a_slow_video_does_not_hold_up_those_after_it():
    later = threading.Event()

    def prepare(job, worker):
        if job == 30:
            later.set()
        assert job or later.wait(20)
        yield Prepared(job, job)

    outcomes = list(embed_jobs(Pretender(), range(40), prepare, batch=2, workers=3))
    assert [outcome.job for outcome in outcomes] == list(range(40))
    assert all(vector == job == outcome.job for outcome in outcomes for job, vector in outcome.pieces)


def test_only_so_many_vectors_wait_for_a_slow_video(monkeypatch):
    monkeypatch.setattr(stream, "HELD", 5)
    started, first = [], threading.Event()

    def prepare(job, worker):
        started.append(job)
        assert job or first.wait(20)
        yield Prepared(job, job)

    threading.Timer(0.5, lambda: (seen.append(len(started)), first.set())).start()
    seen = []
    outcomes = list(embed_jobs(Pretender(), range(60), prepare, batch=2, workers=3))
    assert len(outcomes) == 60 and 5 < seen[0] <= 5 + 2 * (4 + 3)


def test_a_batch_begins_before_the_last_one_is_waited_for():
    backbone = Pretender(seconds=0.2)  # meanwhile the queue fills

    def prepare(job, worker):
        for number in range(8):
            yield Prepared(number, number)

    (outcome,) = embed_jobs(backbone, [0], prepare, batch=2, workers=1)
    assert [number for number, _ in outcome.pieces] == list(range(8))
    begun = [place for place, (what, _) in enumerate(backbone.log) if what == "begin"]
    assert any(later == early + 1 for early, later in pairwise(begun))


def test_what_waits_is_embedded_when_nothing_else_is_ready():
    backbone, embedded = Pretender(), threading.Event()
    begin = backbone.begin
    backbone.begin = lambda items, **more: (embedded.set(), begin(items, **more))[1]

    def prepare(job, worker):
        assert job == 0 or embedded.wait(20)  # the second video comes after the first one was embedded
        yield Prepared(job, job)

    assert len(list(embed_jobs(backbone, range(2), prepare, batch=8, workers=2))) == 2
    assert [count for what, count in backbone.log if what == "begin"] == [1, 1]
