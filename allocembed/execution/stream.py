"""From jobs to vectors: worker threads prepare items, the backbone embeds them. The one pipeline of the package.

`AllocEmbed.stream`, indexing and benchmarks all run through `embed_jobs`. On a GPU the consumer embeds packed batches.
On a CPU each item is embedded alone, so that its vector does not depend, bit for bit, on what is embedded beside it.
There a small backbone embeds in the worker threads, one video per core.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from allocembed.backbones.base import Backbone, Item
from allocembed.backbones.batches import PendingVectors
from allocembed.errors import AllocEmbedError, VideoError
from allocembed.execution.device import DeviceLane
from allocembed.threads import Event, RunAhead, core_count
from allocembed.video import Decoders

Job = TypeVar("Job")
Tag = TypeVar("Tag")
BATCH = 8
QUEUED = 2  # batches under way on a GPU: one that it works on, and the next
LOOK = 0.005  # seconds between looks at whether a batch is ready, while no part is
HELD = 1024  # complete jobs that may wait for an earlier one
LESS = "use a smaller budget, scale range or number of candidates"
SMALL_MODEL_PARAMETERS = 100_000_000  # on a CPU, the matrices of a smaller backbone are too small for several threads


@dataclass(frozen=True, eq=False)
class PrepareResources:
    """The lane on the device and the decoder threads that `prepare` may use."""

    lane: DeviceLane
    decoder_threads: int


@dataclass(frozen=True, eq=False)
class Prepared(Generic[Tag]):
    """An item ready for the backbone, and what to return with its vector."""

    item: Item
    tag: Tag


@dataclass(eq=False)
class JobOutcome(Generic[Job, Tag]):
    """All vectors of one job, in the order they were prepared, or the error that ended it."""

    job: Job
    pieces: list[tuple[Tag, np.ndarray]] = field(default_factory=list)
    error: AllocEmbedError | None = None


_Part: TypeAlias = Prepared[Tag] | tuple[Tag, np.ndarray] | AllocEmbedError
"""To be embedded, embedded already, or the end of its job."""


def embed_jobs(
    backbone: Backbone,
    jobs: Iterable[Job],
    prepare: Callable[[Job, PrepareResources], Iterable[Prepared[Tag]]],
    *,
    batch: int = BATCH,
    workers: int | None = None,
    decoders: Decoders | None = None,
    ordered: bool = True,
) -> Iterator[JobOutcome[Job, Tag]]:
    """Prepare jobs in threads, embed what they yield, and return one outcome per job.

    `prepare` decodes outside and computes on the device inside `resources.lane()`. An AllocEmbedError in it ends its
    own job only; any other exception ends the run. `workers` is by default one per core if the backbone is on a GPU or
    small, else one. If `decoders` have places beside the cores, they say how many there are by default. There are never
    more workers than jobs, if their number is known. Outcomes come in the order of the jobs, or as they are complete.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    side_by_side = embeds_side_by_side(backbone)
    on_gpu = backbone.packs
    cores = core_count()
    usual, places = cores if side_by_side or on_gpu else 1, 0
    if decoders and decoders.places:
        usual, places = decoders.readers(cores), decoders.places
    workers = min(workers or usual, 2 * batch + places)
    if isinstance(jobs, Sized):
        workers = min(workers, max(1, len(jobs)))
    # A decoder needs several threads only if there are more cores than workers.
    resources = PrepareResources(DeviceLane(backbone.device), max(1, cores // workers))

    def work(job: Job) -> Iterator[_Part[Tag]]:
        try:
            for prepared in prepare(job, resources):
                yield (prepared.tag, backbone.embed([prepared.item]).numpy()[0]) if side_by_side else prepared
        except AllocEmbedError as error:
            yield error
        except MemoryError as error:
            yield VideoError(_named(job), f"the memory is too small for it ({error}); {LESS}")

    ahead = RunAhead(
        work,
        jobs,
        workers=workers,
        jobs_ahead=workers + 2 * batch,
        parts_ahead=2 * batch,
        torch_threads=1 if side_by_side or on_gpu else None,
    )
    collector = _Collector[Job, Tag](backbone, batch if on_gpu else 1, ordered)
    with ahead:
        for event in ahead:
            if event is None:
                collector.catch_up()
                ahead.patience = LOOK if collector.begun_batches else None
            else:
                collector.add(event)
            ahead.release(collector.complete())
            yield from collector.outcomes_due()
            ahead.release(collector.complete())
        collector.finish()
        collector.complete()
        yield from collector.outcomes_due()


def _named(job: object) -> str:
    """A few words about a job, if there are any."""
    first = job[0] if isinstance(job, tuple) and job else job
    return str(first) if isinstance(first, str | Path) else "a video"


def embeds_side_by_side(backbone: Backbone) -> bool:
    """Whether whole videos go through the backbone in parallel, each on a core of its own."""
    # Compiled code is specialised for a number of threads and would be compiled again for every core.
    return not backbone.packs and not backbone.compiled and backbone.parameter_count < SMALL_MODEL_PARAMETERS


class _Collector(Generic[Job, Tag]):
    """Gathers parts into batches and outcomes. While a GPU works on a batch, the next one is in its queue already."""

    def __init__(self, backbone: Backbone, batch: int, ordered: bool) -> None:
        self.backbone, self.batch, self.ordered = backbone, batch, ordered
        self.outcomes: dict[int, JobOutcome[Job, Tag]] = {}
        self.waiting: list[tuple[int, Prepared[Tag]]] = []
        self.begun_batches: deque[tuple[list[tuple[int, Prepared[Tag]]], PendingVectors]] = deque()
        self.ended: set[int] = set()
        self.whole: set[int] = set()
        self.owed = self.following = 0

    def add(self, event: Event[Job, _Part[Tag]]) -> None:
        """Take a part, and begin to embed if that makes a batch."""
        number, part = event.number, event.part
        outcome = self.outcomes.setdefault(number, JobOutcome(event.job))
        if part is None:
            self.ended.add(number)
        elif isinstance(part, Prepared):
            self.waiting.append((number, part))
        elif isinstance(part, AllocEmbedError):
            outcome.error = part
        else:
            outcome.pieces.append(part)
        if len(self.waiting) >= self.batch:
            if len(self.begun_batches) == QUEUED:
                self._settle()
            self._begin()

    def catch_up(self) -> None:
        """Take the vectors that are ready, and do not let a GPU wait for a whole batch."""
        while self.begun_batches and self.begun_batches[0][1].ready():
            self._settle()
        if self.waiting and len(self.begun_batches) < QUEUED:
            self._begin()

    def finish(self) -> None:
        """Embed what is left."""
        if self.waiting:
            self._begin()
        while self.begun_batches:
            self._settle()

    def complete(self) -> int:
        """Note the jobs that have ended and whose parts are all embedded; return how many others may begin instead.

        A job that takes long does not hold up those after it, whose vectors need little memory.
        """
        unfinished = {number for number, _ in self.waiting}
        unfinished |= {number for some, _ in self.begun_batches for number, _ in some}
        more = self.ended - unfinished
        self.ended -= more
        self.whole |= more
        self.owed += len(more)
        begin = self.owed if len(self.whole) <= HELD else 0
        self.owed -= begin
        return begin

    def outcomes_due(self) -> Iterator[JobOutcome[Job, Tag]]:
        """Outcomes of complete jobs, in the order of the jobs if asked for."""
        for number in sorted(self.whole):
            if self.ordered and number != self.following:
                return
            self.whole.remove(number)
            self.following += 1
            outcome = self.outcomes.pop(number)
            if outcome.error is not None:
                outcome.pieces = []
            yield outcome

    def _begin(self) -> None:
        some, self.waiting = self.waiting, []
        if self.backbone.packs:
            self.begun_batches.append((some, self.backbone.begin([each.item for _, each in some], batching="pack")))
        else:
            self._note(some, embed_items(self.backbone, [each.item for _, each in some]))

    def _settle(self) -> None:
        """Wait for the batch that has been under way for longest."""
        some, begun = self.begun_batches.popleft()
        self._note(some, begun.vectors().numpy())

    def _note(self, some: list[tuple[int, Prepared[Tag]]], vectors: np.ndarray) -> None:
        for (number, prepared), vector in zip(some, vectors, strict=True):
            self.outcomes[number].pieces.append((prepared.tag, vector))


def embed_items(backbone: Backbone, items: Sequence[Item]) -> np.ndarray:
    """Vectors (N, dim): packed on a GPU, each item alone on a CPU."""
    if not items:
        return np.empty((0, backbone.dim), np.float32)
    if backbone.packs:
        return backbone.embed(items, batching="pack").numpy()
    return np.concatenate([backbone.embed([item]).numpy() for item in items])
