"""RDPO, top to bottom: sample K allocations of every video, see how each one ranks, make the better ones likelier.

How it differs from GRPO, on which it builds:
- the policy is a Beta distribution for every chunk, not a language model; all chunks are sampled in one pass, and the
  ratio is taken for each (equation 22);
- the reward is a rank among real texts, in-batch and global (12), graded by a similarity gap (13–17);
- an efficiency incentive stands beside the advantage (18–21), which is not normalised with it;
- clipping is asymmetric; there is no reference model and no KL term.

How it differs from the paper, and why:
- **projected rollouts** (`budget_mode`): each sample is projected onto the budget before it is scored, as it will be in
  use. Without it detail always helps, and in an earlier probe the policy drifted to 3–6× the cost. `soft` is the
  paper's way (`recipes/ablations.py` compares them);
- **cost in tokens** (`cost`): the paper's mean scale says that {0.2, 1.8} costs as much as {1, 1}; it is 1.64× as much.
  When rollouts are projected they all cost nearly the budget, and the incentive has little left to say;
- a chunk, two frames, is the unit of allocation, as it is in the backbone: nothing is averaged after sampling;
- the policy sees each example once a pass, whatever K is, so mini- and micro-batches count examples, not allocations;
- frozen features are computed once an example, and the vision tower's work is shared between rollouts (`rollouts`).

Left out on purpose: several epochs over one set of rollouts, an entropy bonus (the ceiling on α and β does its work),
and a learned value function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allocembed.backbones import Backbone
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.preview import Previewer, asks
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.rdpo.config import TrainConfig
from allocembed.rdpo.data import TRAINING, Batch, Source, Videos
from allocembed.rdpo.log import Clock
from allocembed.rdpo.meter import Meter
from allocembed.rdpo.negatives import TextPool, allowed_negatives
from allocembed.rdpo.objective import beta_log_prob, clipped_objective, diagnose, sample_actions
from allocembed.rdpo.processes import Processes, clip_gradients, shard
from allocembed.rdpo.rewards import score_group, success
from allocembed.rdpo.rollouts import Allocations, Reader, allocate

BANK = 32768  # a corpus of at most so many texts is embedded once, at the start; a larger one as it is drawn


@dataclass(frozen=True, eq=False)
class View:
    """What the policy sees of some videos of equal size: frozen features, computed once."""

    visual: Tensor  # (b, C, P, width)
    text: Tensor  # (b, L, width)
    text_mask: Tensor  # (b, L)

    def __len__(self) -> int:
        return len(self.visual)


@dataclass(frozen=True, eq=False)
class Rollouts:
    """K sampled allocations of each of b videos, and what they were worth."""

    members: np.ndarray  # (b,) numbers of the examples
    view: View
    actions: Tensor  # (b, K, C)
    log_prob: Tensor  # (b, K, C), under the policy that sampled them
    advantage: Tensor  # (b, K)


class Trainer:
    """A policy, the frozen models that tell what it is worth, and how it learns from a batch."""

    def __init__(
        self, config: TrainConfig, processes: Processes, backbone: Backbone, previewer: Previewer, source: Source
    ) -> None:
        self.config, self.processes, self.source = config, processes, source
        self.backbone, self.previewer, self.device = backbone, previewer, backbone.device
        self.clock = Clock(self.device, exact=config.timings)
        self.reader = Reader(backbone, config.batch_tokens, clock=self.clock)
        self.policy = shard(make_policy(config, previewer), processes)
        # The running mean of the weights: what is validated and kept.
        self.mean = shard(make_policy(config, previewer), processes) if config.averaging else self.policy
        self.optimiser = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.bank = self._fill_bank()

    def prepare(self, stream: int, step: int) -> Any:
        """The host's part of a step's batch, or of the validation set."""
        config = self.config
        count, choice = config.validation, 0
        if stream == TRAINING:
            count = config.examples
            choice = int(np.random.default_rng([config.seed, stream, step]).integers(len(config.settings)))
        return self.source.prepare(stream, step, count, *config.settings[choice], self.processes.mine(count))

    def step(self, batch: Batch, number: int) -> dict[str, float]:
        """Samples, scores and learns from one batch; returns what to report."""
        config, meter = self.config, Meter()
        with self.clock("preview"):
            views = [self._look(videos, batch) for videos in batch.videos]
        with self.clock("policy"):
            shapes = self._shapes(self.policy, views)
        with self.clock("texts"):
            candidates, targets = self._candidates(batch, number)
        rollouts = []
        for videos, view, (alpha, beta) in zip(batch.videos, views, shapes, strict=True):
            with self.clock("sampling"):
                actions = self._sample(alpha.cpu(), beta.cpu(), number, videos.members)
                found = self._allocate(actions.numpy(), videos, batch, config.budget_mode)
            vectors = self.reader.embed(videos, texts_of(batch, videos), found.grids)
            actions = actions.to(self.device)
            with self.clock("scoring"):
                advantage = self._score(vectors, videos, found, candidates, targets, batch, meter)
            rollouts.append(Rollouts(videos.members, view, actions, beta_log_prob(actions, alpha, beta), advantage))
            meter.add("sharpness", alpha + beta)
        with self.clock("update"):
            skipped = self._update(join(rollouts), len(batch.examples), number, meter)
        self._average(number)
        return {**meter.means(self.processes), "not finite": skipped}

    @torch.no_grad()
    def _average(self, step: int) -> None:
        """Moves the mean towards the weights; faster over the first steps, so that nothing untrained stays in it."""
        if self.mean is self.policy:
            return
        keep = min(self.config.averaging, step / (step + 10))
        for mean, weight in zip(self.mean.parameters(), self.policy.parameters(), strict=True):
            mean.lerp_(weight, 1 - keep)

    def _look(self, videos: Videos, batch: Batch) -> View:
        """Preview features of all chunks, and those of the task texts, padded to the longest."""
        frames = videos.frames[:, torch.from_numpy(videos.pairs).to(videos.frames.device)]
        texts = texts_of(batch, videos)
        visual = self.previewer.look(frames.flatten(0, 1), asked=any(map(asks, texts)))
        visual, words = visual.unflatten(0, frames.shape[:2]), self.previewer.read([text or "" for text in texts])
        text = torch.nn.utils.rnn.pad_sequence(words, batch_first=True)
        lengths = torch.tensor([len(word) for word in words], device=text.device)
        return View(visual, text, torch.arange(text.shape[1], device=text.device) < lengths[:, None])

    @torch.no_grad()
    def _shapes(self, policy: ScalePolicy, views: Sequence[View]) -> list[tuple[Tensor, Tensor]]:
        """α and β (b, C) of every view's chunks under a policy as it is."""
        found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in views]
        for number, rows in self._passes([np.arange(len(view)) for view in views]):
            shapes = self._forward(policy, views[number] if number is not None else None, rows)
            if number is not None:
                found[number].append(shapes)
        return [tuple(torch.cat(parts) for parts in zip(*shapes, strict=True)) for shapes in found]

    def _passes(self, rows: Sequence[np.ndarray]) -> Iterator[tuple[int | None, np.ndarray]]:
        """Micro-batches of each view's rows. Sharded weights are gathered in every pass, so all processes must make
        equally many: whoever has fewer ends with empty ones."""
        size = self.config.micro_batch
        parts = [(n, each[first : first + size]) for n, each in enumerate(rows) for first in range(0, len(each), size)]
        # Agreed on before the first pass: every process must communicate in the same order.
        empty = int(self.processes.largest(len(parts))) - len(parts)
        yield from [*parts, *[(None, np.zeros(1, int))] * empty]

    def _forward(self, policy: ScalePolicy, view: View | None, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """α and β of a view's rows; of nothing in particular without one."""
        if view is None:
            module = policy.config.module
            visual, text = (1, 1, 2, module.visual_width), (1, 2, module.text_width)
            return policy(torch.zeros(visual, device=self.device), torch.zeros(text, device=self.device))
        index = torch.from_numpy(rows).to(self.device)
        return policy(view.visual[index], view.text[index], None, view.text_mask[index])

    def _sample(self, alpha: Tensor, beta: Tensor, step: int, members: np.ndarray) -> Tensor:
        """Actions (b, K, C). Every example has its own generator, so that nobody's draw depends on who is beside it."""
        drawn = []
        for row, member in enumerate(members.tolist()):
            seed = np.random.SeedSequence([self.config.seed, step, member]).generate_state(1, np.uint64).item()
            generator = torch.Generator().manual_seed(seed % 2**63)
            drawn.append(sample_actions(alpha[row], beta[row], self.config.rollouts, generator))
        return torch.stack(drawn)

    def _allocate(self, actions: np.ndarray, videos: Videos, batch: Batch, mode: str) -> Allocations:
        """What actions (b, K, C) come to as scales in the range (equation 7), in tokens, under the budget."""
        low, high = self.config.scale_range
        scales = low + actions.astype(np.float64) * (high - low)
        options = {"mode": mode, "cost": self.config.cost}
        return allocate(scales, videos, self.backbone, batch.budget, self.config.scale_range, **options)

    def _candidates(self, batch: Batch, step: int) -> tuple[TextPool, Tensor]:
        """The candidate set U (equation 12): all processes' targets, then the corpus's; and its vectors (N, dim)."""
        own = batch.targets
        drawn = self.source.corpus.draw(
            self.config.global_negatives, seed=self.config.seed, step=step, beyond=frozenset(own.texts)
        )
        vectors = [self._embed_texts(own.texts, [example.query for example in batch.examples])]
        if self.bank is not None and len(drawn):
            rows, bank = self.bank
            vectors.append(bank[torch.tensor([rows[text] for text in drawn.texts], device=self.device)])
        elif len(drawn):
            vectors.append(self._embed_texts(drawn.texts, [text in self.source.queries for text in drawn.texts]))
        options = self._options(batch, beyond=own + drawn)
        if len(options):
            vectors.append(self._embed_texts(options.texts, [False] * len(options)))
        return own + drawn + options, torch.cat(vectors)

    def _options(self, batch: Batch, beyond: TextPool) -> TextPool:
        """The options of the batch's questions that are not among the candidates anyway."""
        if not self.config.like_with_like:
            return TextPool((), ())
        texts = {text: None for example in batch.examples for text in example.options}
        more = [text for text in texts if text not in set(beyond.texts)]
        return TextPool([("option", text) for text in more], more)

    def _embed_texts(self, texts: Sequence[str], queries: Sequence[bool]) -> Tensor:
        """Vectors (N, dim) of texts that all processes know; each embeds its share."""
        mine = self.processes.mine(len(texts))
        if not len(mine):
            vectors = torch.empty((0, self.backbone.dim), device=self.device)
        else:
            vectors = self.reader.texts([texts[i] for i in mine], [queries[i] for i in mine])
        return self.processes.gather(vectors, len(texts))

    def _fill_bank(self) -> tuple[dict[str, int], Tensor] | None:
        """Vectors of the whole corpus and where each text's is, if the corpus is small enough to keep."""
        texts = list(dict.fromkeys(self.source.corpus.texts))
        if not self.config.global_negatives or len(texts) > BANK:
            return None
        vectors = self._embed_texts(texts, [text in self.source.queries for text in texts])
        return {text: row for row, text in enumerate(texts)}, vectors

    def _score(
        self,
        vectors: Tensor,
        videos: Videos,
        found: Allocations,
        candidates: TextPool,
        targets: Tensor,
        batch: Batch,
        meter: Meter,
    ) -> Tensor:
        """Advantages (b, K) of rollouts with vectors (b, K, dim) against the candidates' (N, dim)."""
        similarity = vectors @ targets.T
        members = torch.from_numpy(videos.members).to(self.device)
        positive = similarity.gather(-1, members[:, None, None].expand(-1, similarity.shape[1], 1))[..., 0]
        mask = self._negatives(batch, videos.members.tolist(), candidates)
        price = torch.from_numpy(found.price).to(self.device)
        scores = score_group(positive, similarity, mask, price, self.config)
        meter.add("hit1", scores.success)
        meter.add("gap", scores.gap)
        meter.add("reward", scores.reward)
        meter.add("incentive", scores.incentive)
        meter.add("undecided", (scores.retrieval_advantage == 0).all(-1))
        meter.add_allocations(found)
        return scores.advantage

    def _negatives(self, batch: Batch, members: Sequence[int], candidates: TextPool) -> Tensor:
        """Which candidates are negatives of the targets of some of the batch's examples: bool (b, N)."""
        targets = [batch.examples[member] for member in members]
        own = TextPool([example.sample for example in targets], [example.target for example in targets])
        allowed = allowed_negatives(own, candidates)
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

    def _update(self, rollouts: Sequence[Rollouts], examples: int, step: int, meter: Meter) -> int:
        """Goes once through the rollouts in mini-batches of examples; after the first, the ratio is no longer 1.

        Returns how many updates were left out because their gradient was not finite.
        """
        config, skipped = self.config, 0
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        for first in range(0, examples, config.mini_batch):
            inside = [
                np.flatnonzero((each.members >= first) & (each.members < first + config.mini_batch))
                for each in rollouts
            ]
            actions = sum(len(rows) * each.actions[0].numel() for rows, each in zip(inside, rollouts, strict=True))
            total = self.processes.sum(torch.tensor(float(actions))).item()
            if not total:
                continue
            for number, rows in self._passes(inside):
                if number is None:
                    (0 * sum(shape.sum() for shape in self._forward(self.policy, None, rows))).backward()
                    continue
                each, index = rollouts[number], torch.from_numpy(rows).to(self.device)
                alpha, beta = self._forward(self.policy, each.view, rows)
                new, old = beta_log_prob(each.actions[index], alpha, beta), each.log_prob[index]
                worth, valid = each.advantage[index], torch.ones_like(alpha, dtype=torch.bool)
                clip = (config.clip_low, config.clip_high)
                objective = clipped_objective(new, old, worth, valid, *clip, total_actions=total)
                # Sharded gradients are averaged over the processes, and this one is a sum.
                (-self.processes.world * objective).backward()
                moved = diagnose(new, old, worth, valid, *clip)
                meter.add("clipped", moved.clip_fraction, len(rows))
                meter.add("ratio", moved.mean_ratio, len(rows))
            norm = clip_gradients(self.policy, config.gradient_clip)
            if np.isfinite(norm):
                self.optimiser.step()
                meter.add("gradient", torch.tensor(norm))
            else:
                skipped += 1
            self.optimiser.zero_grad(set_to_none=True)
        return skipped

    @torch.no_grad()
    def validate(self, prepared: Any, *, uniform: bool = False) -> dict[str, float]:
        """Hit@1 of the policy's mean allocations, or of uniform ones, on the validation set.

        `hit1` is that of each video's target among the set's texts, as in training; `search1` that of each search
        sentence's video among the set's videos, which is what most people will use it for; `score` their mean, by
        which the best checkpoint is chosen; `answer1` that of the targets that are answers.
        """
        batch, meter = self.source.finish(prepared, self.device), Meter()
        views = [] if uniform else [self._look(videos, batch) for videos in batch.videos]
        shapes = self._shapes(self.mean, views)
        count, dim = len(batch.examples), self.backbone.dim
        own = torch.zeros((len(self.processes.mine(count)), dim + 1), device=self.device)
        for number, videos in enumerate(batch.videos):
            if uniform:
                actions = np.full((len(videos), 1, len(videos.pairs)), 0.5)
            else:
                alpha, beta = shapes[number]
                actions = (alpha / (alpha + beta))[:, None].cpu().numpy()
            found = self._allocate(actions, videos, batch, "projected")
            vectors = self.reader.embed(videos, texts_of(batch, videos), found.grids)[:, 0]
            row = torch.from_numpy((videos.members - self.processes.rank) // self.processes.world).to(self.device)
            own[row] = torch.cat([vectors, torch.ones_like(vectors[:, :1])], -1)
            meter.add_allocations(found)
        gathered = self.processes.gather(own, count)
        vectors, there = gathered[:, :dim], gathered[:, dim] > 0
        queries = torch.tensor([example.query for example in batch.examples], device=self.device)
        options = self._options(batch, beyond=batch.targets)
        candidates = batch.targets + options
        targets = self._embed_texts(candidates.texts, [*queries.tolist(), *[False] * len(options)])
        similarity, mask = vectors @ targets.T, self._negatives(batch, range(count), candidates)
        right = similarity.diagonal()[:, None]
        hits = success(right, similarity[:, None], mask)[:, 0]
        searches = success(right, similarity[:, :count].T[:, None], mask[:, :count] & there)[:, 0]
        means = meter.means(self.processes)
        means["hit1"] = hits[there].float().mean().item()
        means["score"] = means["hit1"]
        if bool((there & queries).any()):
            means["search1"] = searches[there & queries].float().mean().item()
            means["score"] = (means["hit1"] + means["search1"]) / 2
        if bool((there & ~queries).any()):
            means["answer1"] = hits[there & ~queries].float().mean().item()
        return means


def join(rollouts: Sequence[Rollouts]) -> list[Rollouts]:
    """Puts rollouts together that the policy can see in one pass: those of as many chunks and patches."""
    alike: dict[tuple[int, int], list[Rollouts]] = defaultdict(list)
    for each in rollouts:
        alike[each.view.visual.shape[1:3]].append(each)
    return [_joined(parts) if len(parts) > 1 else parts[0] for parts in alike.values()]


def _joined(parts: Sequence[Rollouts]) -> Rollouts:
    longest = max(part.view.text.shape[1] for part in parts)

    def padded(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0,) * (2 * tensor.ndim - 3) + (longest - tensor.shape[1],))

    view = View(
        torch.cat([part.view.visual for part in parts]),
        torch.cat([padded(part.view.text) for part in parts]),
        torch.cat([padded(part.view.text_mask) for part in parts]),
    )
    tensors = (torch.cat([getattr(part, name) for part in parts]) for name in ("actions", "log_prob", "advantage"))
    return Rollouts(np.concatenate([part.members for part in parts]), view, *tensors)


def texts_of(batch: Batch, videos: Videos) -> list[str | None]:
    """The task text of each video."""
    return [batch.examples[member].text for member in videos.members.tolist()]


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of a step, counted from 0: up over the warm-up, level, and down to a tenth over the decay.

    >>> config = TrainConfig(steps=10, warmup=2, decay=0.5, learning_rate=1.0)
    >>> [round(learning_rate(config, step), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.82, 0.64, 0.46, 0.28, 0.1]
    """
    up = min(1.0, (step + 1) / max(1, config.warmup))
    left = (config.steps - step - 1) / (config.decay * config.steps) if config.decay else 1.0
    return config.learning_rate * up * (0.1 + 0.9 * min(1.0, left))


def make_policy(config: TrainConfig, previewer: Previewer) -> ScalePolicy:
    """The policy that a run begins with, for a previewer's features; the same on every process."""
    sizes = {name: getattr(config, name) for name in ("width", "heads", "layers", "expansion")}
    widths = {"visual_width": previewer.visual_width, "text_width": previewer.text_width}
    module = FrameModuleConfig(**widths, **sizes, summary=previewer.summary)
    about = {"preview_source": previewer.source, "preview_tokens": config.preview_tokens}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        policy = ScalePolicy(PolicyConfig(module, config.preview, **about, scale_range=config.scale_range))
    if config.start_from:
        first = ScalePolicy.from_pretrained(config.start_from)
        if first.config.module != module:
            raise ValueError(
                f"{config.start_from} has other sizes than this run: {first.config.module}, not {module}. Give its own "
                "preview, preview_summary, width, heads, layers and expansion"
            )
        policy.load_state_dict(first.state_dict())
    return policy.to(previewer.device)
