"""Targets of rollouts and their rivals: the candidate set of a step and its vectors (equation 12).

The target of an example is a text or, without one, the video's own vector at full resolution. Texts are ranked among
texts, videos among videos.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from allocembed.execution.distributed import Processes
from allocembed.rdpo.config import TrainConfig
from allocembed.rdpo.data.base import Source, TrainingBatch, own_example
from allocembed.rdpo.negatives import TextPool, VectorQueue, allowed_negatives
from allocembed.rdpo.rollouts import RolloutEncoder, footage_of

BANK = 32768  # a corpus of at most this many texts is embedded once, at the start; a larger one as it is drawn


class Candidates:
    """Draws and embeds the candidates of each step, and says which of them are negatives of which example."""

    def __init__(self, config: TrainConfig, processes: Processes, encoder: RolloutEncoder, source: Source) -> None:
        self.config, self.processes, self.encoder, self.source = config, processes, encoder, source
        self.backbone, self.device = encoder.backbone, encoder.backbone.device
        self.bank = self._fill_bank()
        self.queue = VectorQueue(config.queue, self.backbone.dim)

    def draw(self, batch: TrainingBatch, step: int) -> tuple[TextPool, Tensor]:
        """The candidate set U (equation 12), all processes' targets then texts of the corpus, and its vectors."""
        own = batch.targets
        drawn = self.source.corpus.draw(
            self.config.global_negatives, seed=self.config.seed, step=step, beyond=frozenset(own.texts)
        )
        vectors = [self.targets(batch)]
        if self.bank is not None and len(drawn):
            rows, bank = self.bank
            vectors.append(bank[torch.tensor([rows[text] for text in drawn.texts], device=self.device)])
        elif len(drawn):
            vectors.append(self.embed_texts(drawn.texts, [text in self.source.queries for text in drawn.texts]))
        options = self.options(batch, beyond=own + drawn)
        if len(options):
            vectors.append(self.embed_texts(options.texts, [False] * len(options)))
        pool = own + drawn + options
        if self.config.queue and any(example.own for example in batch.examples):
            rivals, earlier = self.queue.rivals({example.sample for example in batch.examples})
            pool += TextPool(rivals, [own_example(sample).target for sample in rivals])
            vectors.append(earlier.to(self.device))
            fresh = [place for place, example in enumerate(batch.examples) if example.own]
            self.queue.add([batch.examples[place].sample for place in fresh], vectors[0][fresh])
        return pool, torch.cat(vectors)

    def targets(self, batch: TrainingBatch) -> Tensor:
        """Vectors (N, dim) of the examples' targets: texts, or the videos themselves at full resolution.

        The vector of a video that could not be read is not finite.
        """
        texts = [place for place, example in enumerate(batch.examples) if not example.own]
        targets = torch.zeros((len(batch.examples), self.backbone.dim), device=self.device)
        if len(texts) < len(targets):
            targets = self._full_vectors(batch)
        if texts:
            chosen = [batch.examples[place] for place in texts]
            targets[texts] = self.embed_texts([each.target for each in chosen], [each.query for each in chosen])
        return targets

    def _full_vectors(self, batch: TrainingBatch) -> Tensor:
        """Vectors (N, dim) at native size of the videos whose own vector is the target; NaN for all others."""
        vectors = torch.zeros((len(batch.examples), self.backbone.dim + 1), device=self.device)
        for videos in batch.videos:
            rows = [row for row, member in enumerate(videos.members.tolist()) if batch.examples[member].own]
            if not rows:
                continue
            chosen = videos.select(torch.tensor(rows))
            chunks = len(chosen.chunks(self.backbone.geometry.frames_per_chunk))
            native = footage_of(chosen).native(self.backbone.geometry)
            grids = np.tile([native.rows, native.cols], (len(chosen), 1, chunks, 1))
            found = self.encoder.embed(chosen, batch.questions(chosen), grids, batch.instructions(chosen))[:, 0]
            places = torch.from_numpy(chosen.members).to(self.device)
            vectors[places] = torch.cat([found, torch.ones_like(found[:, :1])], -1)
        vectors = self.processes.sum(vectors)
        return torch.where(vectors[:, -1:] > 0, vectors[:, :-1], torch.nan)

    def options(self, batch: TrainingBatch, beyond: TextPool) -> TextPool:
        """Options of the batch's questions that are not among the candidates yet."""
        if not self.config.like_with_like:
            return TextPool((), ())
        texts = {text: None for example in batch.examples for text in example.options}
        more = [text for text in texts if text not in set(beyond.texts)]
        return TextPool([("option", text) for text in more], more)

    def negatives(self, batch: TrainingBatch, members: Sequence[int], candidates: TextPool) -> Tensor:
        """Mask (b, N) of the candidates that are negatives of these examples' targets, bool."""
        targets = [batch.examples[member] for member in members]
        own = TextPool([example.sample for example in targets], [example.target for example in targets])
        allowed = allowed_negatives(own, candidates)
        names = {example.target for example in batch.examples if example.own}
        names |= {own_example(sample).target for sample in self.queue.samples}
        videos, rivals = (torch.tensor([text in names for text in pool.texts]) for pool in (own, candidates))
        allowed &= videos[:, None] == rivals  # videos are ranked among videos, texts among texts
        if self.config.like_with_like:
            answers = batch.answers | self.source.answers
            mine, theirs = (torch.tensor([text in answers for text in pool.texts]) for pool in (own, candidates))
            allowed &= mine[:, None] == theirs
            places = {text: place for place, text in enumerate(candidates.texts)}
            for row, example in enumerate(targets):
                if example.options:
                    allowed[row] = False
                    allowed[row, [places[text] for text in example.options]] = True
        return allowed.to(self.device)

    def embed_texts(self, texts: Sequence[str], queries: Sequence[bool]) -> Tensor:
        """Vectors (N, dim) of texts that all processes have; each process embeds its share."""
        mine = self.processes.mine(len(texts))
        if not len(mine):
            vectors = torch.empty((0, self.backbone.dim), device=self.device)
        else:
            vectors = self.encoder.texts([texts[i] for i in mine], [queries[i] for i in mine])
        return self.processes.gather(vectors, len(texts))

    def _fill_bank(self) -> tuple[dict[str, int], Tensor] | None:
        """Vectors of the whole corpus, and the row of each text, if the corpus is small enough to keep."""
        texts = list(dict.fromkeys(self.source.corpus.texts))
        if not self.config.global_negatives or len(texts) > BANK:
            return None
        vectors = self.embed_texts(texts, [text in self.source.queries for text in texts])
        return {text: row for row, text in enumerate(texts)}, vectors
