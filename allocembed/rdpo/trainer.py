"""RDPO, top to bottom: sample K allocations of each video, see how each one ranks, make the better ones likelier.

Differences from GRPO, on which it builds:
- The policy is a Beta distribution per chunk, not a language model. All chunks are sampled in one pass, and the ratio
  is taken per chunk (equation 22).
- The reward is a rank among real texts, in-batch and global (12), graded by a similarity gap (13–17).
- An efficiency incentive is added to the advantage (18–21) and is not normalised with it.
- Clipping is asymmetric. There is no reference model and no KL term.

Differences from the paper, and why. The first three are options, and the preset `paper` has the paper's side of each:
- **Projected rollouts** (`budget_mode`): each sample is projected onto the budget before it is scored, as in use.
  Otherwise more detail always helps, and in an early experiment the policy drifted to 3–6× the cost. After `soft`
  rollouts, the paper's way, the budget is only an upper bound in validation and use. `recipes/ablations.py` compares
  them.
- **Cost in tokens** (`cost`): by the paper's mean scale, {0.2, 1.8} costs as much as {1, 1}; in tokens it costs 1.64×
  as much. Projected rollouts all cost nearly the budget, so the incentive then has little effect.
- **Bounded α and β** (`policy_head`): from 1 to 20, so that no distribution has two peaks, and none is too sharp to
  explore.
- The policy sees questions, not instructions: an instruction says nothing about a place in the video.
- The unit of allocation is a chunk, as in the backbone. Nothing is averaged after sampling.
- The policy sees each example once per pass, whatever K is, so mini- and micro-batches count examples, not allocations.
- Frozen features are computed once per example, and rollouts share the work of the vision tower (`rollouts`).

Left out on purpose: several epochs over one set of rollouts, an entropy bonus (the upper bound on α and β serves the
same purpose), and a learned value function.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from allocembed.allocators.base import AllocationRequest
from allocembed.backbones.base import Backbone
from allocembed.errors import PolicyError
from allocembed.execution.distributed import Processes
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.preview import Previewer, asks
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.rdpo.candidates import Candidates
from allocembed.rdpo.checkpoint import TrainedParts
from allocembed.rdpo.config import TrainConfig
from allocembed.rdpo.data.base import TRAINING, Source, TrainingBatch, VideoBatch
from allocembed.rdpo.log import StepTimer
from allocembed.rdpo.meter import Meter
from allocembed.rdpo.negatives import TextPool
from allocembed.rdpo.objective import beta_log_prob, clipped_objective, diagnose, sample_actions
from allocembed.rdpo.rewards import score_group, success
from allocembed.rdpo.rollouts import Allocations, PolicyInputs, RolloutEncoder, Rollouts, allocate_rollouts, join
from allocembed.rdpo.sharding import clip_gradients, shard

LOOK_BYTES = 2**31  # frames that are on the device at once for previews


class Trainer:
    """A policy, the frozen models that score it, and how it learns from a batch."""

    def __init__(
        self, config: TrainConfig, processes: Processes, backbone: Backbone, previewer: Previewer, source: Source
    ) -> None:
        self.config, self.processes, self.source = config, processes, source
        self.backbone, self.previewer, self.device = backbone, previewer, backbone.device
        self.timer = StepTimer(self.device, exact=config.timings)
        prompt = backbone.query_instruction if config.target_prompt == "query" else None
        self.encoder = RolloutEncoder(backbone, config.batch_tokens, query_instruction=prompt, timer=self.timer)
        self.policy = make_policy(config, previewer)
        self.averaged = AveragedModel(self.policy, multi_avg_fn=self._move_mean) if config.averaging else None
        # The mean is copied before the weights are sharded, then sharded alike.
        for policy in {id(policy): policy for policy in (self.policy, self.mean)}.values():
            shard(policy, processes)
        self.optimiser = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.candidates = Candidates(config, processes, self.encoder, source)

    @property
    def mean(self) -> ScalePolicy:
        """The policy that is validated and kept: the running mean of the weights, or the policy itself without one."""
        return self.policy if self.averaged is None else self.averaged.module  # pyright: ignore[reportReturnType]

    @property
    def parts(self) -> TrainedParts:
        return TrainedParts(self.policy, self.averaged, self.optimiser, self.candidates.queue)

    def prepare(self, stream: int, step: int) -> Any:
        """The host's part of a training batch, or of the validation set."""
        config = self.config
        count, choice = config.validation or len(self.source.held), 0
        if stream == TRAINING:
            count = config.examples
            choice = int(np.random.default_rng([config.seed, stream, step]).integers(len(config.settings)))
        return self.source.prepare(stream, step, count, *config.settings[choice], self.processes.mine(count))

    def step(self, batch: TrainingBatch, number: int) -> dict[str, float]:
        """Sample, score and learn from one batch; return what to report."""
        meter = Meter()
        with self.timer("preview"):
            inputs = [self.look(videos, batch) for videos in batch.videos]
        with self.timer("policy"):
            shapes = self.shapes(self.policy, inputs)
        with self.timer("texts"):
            candidates, targets = self.candidates.draw(batch, number)
        rollouts, broken = [], 0
        for videos, seen, (alpha, beta) in zip(batch.videos, inputs, shapes, strict=True):
            with self.timer("sampling"):
                actions = self.sample(alpha.cpu(), beta.cpu(), number, videos.members)
                found = self.allocate(actions.numpy(), videos, batch, self.config.budget_mode)
            vectors = self.embed(videos, batch, found.grids)
            actions = actions.to(self.device)
            finite = vectors.isfinite().all(-1).all(-1) & targets[videos.members].isfinite().all(-1)
            if not bool(finite.all()):
                # A vector that is not finite would spoil the update of all videos in its mini-batch.
                rows = finite.nonzero()[:, 0]
                broken += len(videos) - len(rows)
                if not len(rows):
                    continue
                videos, found, seen = videos.select(rows), found.select(rows), seen.select(rows)
                vectors, actions, alpha, beta = vectors[rows], actions[rows], alpha[rows], beta[rows]
            with self.timer("scoring"):
                advantage = self.score(vectors, videos, found, candidates, targets, batch, meter)
            if self.config.search_rounds:
                with self.timer("search"):
                    actions, advantage = self.search(actions, vectors, videos, targets, batch, number, meter)
            rollouts.append(Rollouts(videos.members, seen, actions, beta_log_prob(actions, alpha, beta), advantage))
            meter.add("sharpness", alpha + beta)
        with self.timer("update"):
            skipped = self.update(join(rollouts), len(batch.examples), number, meter)
        if self.averaged is not None:
            self.averaged.update_parameters(self.policy)
        total = int(self.processes.sum(torch.tensor(float(broken))).item())
        return {**meter.means(self.processes), "not finite": skipped, "broken": total}

    def _move_mean(self, means: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor | int) -> None:
        """Move the mean towards the weights; faster in the first steps, so that no untrained weights stay in it."""
        count = int(updates)
        keep = min(self.config.averaging, count / (count + 10))
        for mean, weight in zip(means, weights, strict=True):
            mean.lerp_(weight, 1 - keep)

    def look(self, videos: VideoBatch, batch: TrainingBatch) -> PolicyInputs:
        """Preview features of all chunks, and features of the questions, padded to the longest."""
        chunks = torch.from_numpy(videos.chunks(self.previewer.frames_per_chunk)).to(self.device)
        questions, features = batch.questions(videos), []
        for frames in videos.frames.split(max(1, LOOK_BYTES // videos.frames[0].numel())):
            seen = frames.to(self.device)[:, chunks]
            features.append(self.previewer.look(seen.flatten(0, 1), asked=any(map(asks, questions))))
        visual = torch.cat(features).unflatten(0, (len(videos), -1))
        words = self.previewer.read([question or "" for question in questions])
        text = torch.nn.utils.rnn.pad_sequence(words, batch_first=True)
        lengths = torch.tensor([len(word) for word in words], device=text.device)
        mask = torch.arange(text.shape[1], device=text.device) < lengths[:, None]
        return PolicyInputs(visual, text, mask)

    @torch.no_grad()
    def shapes(self, policy: ScalePolicy, inputs: Sequence[PolicyInputs]) -> list[tuple[Tensor, Tensor]]:
        """α and β (b, C) of the chunks of all inputs, without gradient."""
        found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in inputs]
        for number, rows in self._passes([np.arange(len(seen)) for seen in inputs]):
            shapes = self._forward(policy, inputs[number] if number is not None else None, rows)
            if number is not None:
                found[number].append(shapes)
        return [(torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])) for parts in found]

    def _passes(self, rows: Sequence[np.ndarray]) -> Iterator[tuple[int | None, np.ndarray]]:
        """Micro-batches of the rows of each input. Sharded weights are gathered in every pass, so all processes must
        make equally many: those with fewer rows end with empty passes."""
        size = self.config.micro_batch
        parts = [(n, each[first : first + size]) for n, each in enumerate(rows) for first in range(0, len(each), size)]
        # Agreed before the first pass, because every process must communicate in the same order.
        empty = int(self.processes.largest(len(parts))) - len(parts)
        yield from [*parts, *[(None, np.zeros(1, int))] * empty]

    def _forward(self, policy: ScalePolicy, inputs: PolicyInputs | None, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """α and β of some rows of the inputs; of zeros in an empty pass."""
        if inputs is None:
            module = policy.config.module
            visual, text = (1, 1, 2, module.visual_width), (1, 2, module.text_width)
            return policy(torch.zeros(visual, device=self.device), torch.zeros(text, device=self.device))
        index = torch.from_numpy(rows).to(self.device)
        return policy(inputs.visual[index], inputs.text[index], None, inputs.text_mask[index])

    def sample(self, alpha: Tensor, beta: Tensor, step: int, members: np.ndarray) -> Tensor:
        """Actions (b, K, C). Each example has its own generator, so no draw depends on the rest of the batch."""
        drawn = []
        for row, member in enumerate(members.tolist()):
            seed = np.random.SeedSequence([self.config.seed, step, member]).generate_state(1, np.uint64).item()
            generator = torch.Generator().manual_seed(seed % 2**63)
            drawn.append(sample_actions(alpha[row], beta[row], self.config.rollouts, generator))
        return torch.stack(drawn)

    def allocate(
        self, actions: np.ndarray, videos: VideoBatch, batch: TrainingBatch, mode: str, *, training: bool = True
    ) -> Allocations:
        """The allocations of actions (b, K, C), mapped to scales in the range (equation 7), under the budget."""
        low, high = self.config.scale_range
        scales = low + actions.astype(np.float64) * (high - low)
        request = AllocationRequest(self.backbone.geometry, batch.budget, (low, high))
        rungs = self.config.ladder if training else 0
        return allocate_rollouts(scales, videos, request, mode=mode, cost=self.config.cost, rungs=rungs)

    def embed(self, videos: VideoBatch, batch: TrainingBatch, grids: np.ndarray) -> Tensor:
        """Vectors (b, K, dim) of videos under the grids (b, K, C, 2), with their questions and instructions."""
        return self.encoder.embed(videos, batch.questions(videos), grids, batch.instructions(videos))

    def score(
        self,
        vectors: Tensor,
        videos: VideoBatch,
        found: Allocations,
        candidates: TextPool,
        targets: Tensor,
        batch: TrainingBatch,
        meter: Meter,
    ) -> Tensor:
        """Advantages (b, K) of rollouts with vectors (b, K, dim) against the candidates' vectors (N, dim)."""
        similarity = vectors @ targets.nan_to_num().T
        members = torch.from_numpy(videos.members).to(self.device)
        positive = similarity.gather(-1, members[:, None, None].expand(-1, similarity.shape[1], 1))[..., 0]
        mask = self.candidates.negatives(batch, videos.members.tolist(), candidates) & targets.isfinite().all(-1)
        price = torch.from_numpy(found.price).to(self.device)
        scores = score_group(positive, similarity, mask, price, self.config)
        own = torch.tensor([batch.examples[member].own for member in videos.members.tolist()], device=self.device)
        if bool(own.any()):
            alone = score_group(positive, similarity, mask, price, replace(self.config, reward=self.config.own_reward))
            scores = scores.where(own, alone)
        meter.add("hit1", scores.success)
        meter.add("gap", scores.gap)
        meter.add("reward", scores.reward)
        meter.add("incentive", scores.incentive)
        meter.add("undecided", (scores.retrieval_advantage == 0).all(-1))
        meter.add_allocations(found)
        return scores.advantage

    def search(
        self,
        actions: Tensor,
        vectors: Tensor,
        videos: VideoBatch,
        targets: Tensor,
        batch: TrainingBatch,
        step: int,
        meter: Meter,
    ) -> tuple[Tensor, Tensor]:
        """Search on from sampled actions (b, K, C) towards the targets, and return the best quarter to imitate.

        The cross-entropy method on the logits of the actions: each round samples K around the best so far.
        """
        count, wanted = actions.shape[1], targets[torch.from_numpy(videos.members).to(self.device)][:, None]
        keep = max(2, count // 4)
        logits, cosine = actions.logit(1e-4), (vectors * wanted).sum(-1)
        shape = (count, logits.shape[-1])
        for number in range(self.config.search_rounds):
            best = cosine.topk(keep, 1).indices
            elite = logits.gather(1, best[..., None].expand(-1, -1, logits.shape[-1]))
            logits, cosine = elite, cosine.gather(1, best)
            noise = [
                np.random.default_rng([self.config.seed, step, member, number]).standard_normal(shape, np.float32)
                for member in videos.members.tolist()
            ]
            noise = torch.from_numpy(np.stack(noise)).to(elite.device)
            drawn = elite.mean(1, keepdim=True) + noise * (elite.std(1, keepdim=True) + 0.05)
            found = self.allocate(drawn.sigmoid().cpu().numpy(), videos, batch, self.config.budget_mode)
            fresh = self.embed(videos, batch, found.grids)
            logits = torch.cat([logits, drawn], 1)
            cosine = torch.cat([cosine, (fresh * wanted).sum(-1).nan_to_num(-1)], 1)
        best = cosine.topk(keep, 1)
        meter.add("searched", best.values)
        chosen = logits.gather(1, best.indices[..., None].expand(-1, -1, logits.shape[-1])).sigmoid()
        return chosen.clamp(1e-4, 1 - 1e-4), torch.ones_like(best.values)

    def update(self, rollouts: Sequence[Rollouts], examples: int, step: int, meter: Meter) -> int:
        """Go once through the rollouts in mini-batches of examples; after the first, the ratio is no longer 1.

        Returns the number of updates skipped because their gradient was not finite.
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
                    alpha, beta = self._forward(self.policy, None, rows)
                    (0 * (alpha.sum() + beta.sum())).backward()
                    continue
                each, index = rollouts[number], torch.from_numpy(rows).to(self.device)
                alpha, beta = self._forward(self.policy, each.inputs, rows)
                new, old = beta_log_prob(each.actions[index], alpha, beta), each.log_prob[index]
                worth, valid = each.advantage[index], torch.ones_like(alpha, dtype=torch.bool)
                clip = (config.clip_low, config.clip_high)
                objective = clipped_objective(new, old, worth, valid, *clip, total_actions=total)
                # Sharded gradients are averaged over the processes, but the objective is a sum.
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

        `hit1`: each video's target among all texts of the set, as in training. `search1`: each search sentence's video
        among all videos of the set, the most common use. `score`: the mean of both, which selects the best checkpoint.
        `answer1`: `hit1` of the targets that are answers. Videos without texts have `cosine`, the mean cosine to their
        full-resolution vector, and `own1`, how often it is the nearest one; they enter the score by their share.
        """
        batch, meter = self.source.finish(prepared, self.device), Meter()
        shapes = [] if uniform else self.shapes(self.mean, [self.look(videos, batch) for videos in batch.videos])
        count, dim = len(batch.examples), self.backbone.dim
        own = torch.zeros((len(self.processes.mine(count)), dim + 1), device=self.device)
        for number, videos in enumerate(batch.videos):
            if uniform:
                actions = np.full((len(videos), 1, len(videos.chunks(self.previewer.frames_per_chunk))), 0.5)
            else:
                alpha, beta = shapes[number]
                actions = (alpha / (alpha + beta))[:, None].cpu().numpy()
            capped = self.config.budget_mode == "soft" and not uniform
            found = self.allocate(actions, videos, batch, "capped" if capped else "projected", training=False)
            vectors = self.embed(videos, batch, found.grids)[:, 0]
            row = torch.from_numpy((videos.members - self.processes.rank) // self.processes.world).to(self.device)
            own[row] = torch.cat([vectors, torch.ones_like(vectors[:, :1])], -1)
            meter.add_allocations(found)
        gathered = self.processes.gather(own, count)
        vectors, there = gathered[:, :dim], (gathered[:, dim] > 0) & gathered.isfinite().all(-1)
        queries = torch.tensor([example.query for example in batch.examples], device=self.device)
        options = self.candidates.options(batch, beyond=batch.targets)
        candidates = batch.targets + options
        targets = self.candidates.targets(batch)
        if len(options):
            targets = torch.cat([targets, self.candidates.embed_texts(options.texts, [False] * len(options))])
        there &= targets[:count].isfinite().all(-1)
        similarity = vectors @ targets.nan_to_num().T
        mask = self.candidates.negatives(batch, range(count), candidates) & targets.isfinite().all(-1)
        right = similarity.diagonal()[:, None]
        hits = success(right, similarity[:, None], mask)[:, 0]
        searches = success(right, similarity[:, :count].T[:, None], mask[:, :count] & there)[:, 0]
        means = meter.means(self.processes)
        alone = torch.tensor([example.own for example in batch.examples], device=self.device)
        with_text, own = there & ~alone, there & alone
        if bool(with_text.any()) or not bool(own.any()):
            means["hit1"] = means["score"] = hits[with_text].float().mean().item()
        if bool((with_text & queries).any()):
            means["search1"] = searches[with_text & queries].float().mean().item()
            means["score"] = (means["hit1"] + means["search1"]) / 2
        if bool((with_text & ~queries).any()):
            means["answer1"] = hits[with_text & ~queries].float().mean().item()
        if bool(own.any()):
            means["own1"] = hits[own].float().mean().item()
            means["cosine"] = similarity.diagonal()[own].mean().item()
            share = own.sum().item() / there.sum().item()
            means["score"] = share * means["cosine"] + (1 - share) * means.get("score", 0.0)
        return means


def learning_rate(config: TrainConfig, step: int) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, constant, linear decay to a tenth.

    >>> config = TrainConfig(steps=10, warmup=2, decay=0.5, learning_rate=1.0)
    >>> [round(learning_rate(config, step), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.82, 0.64, 0.46, 0.28, 0.1]
    """
    up = min(1.0, (step + 1) / max(1, config.warmup))
    left = (config.steps - step - 1) / (config.decay * config.steps) if config.decay else 1.0
    return config.learning_rate * up * (0.1 + 0.9 * min(1.0, left))


def make_policy(config: TrainConfig, previewer: Previewer) -> ScalePolicy:
    """The policy at the start of a run, for a previewer's features; the same on every process."""
    sizes = (config.width, config.heads, config.layers, config.expansion)
    widths, summary = (previewer.visual_width, previewer.text_width), previewer.summary
    module = FrameModuleConfig(
        *widths, *sizes, summary=summary, learns_questions=summary, policy_head=config.policy_head
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        about = (config.preview, previewer.source, config.preview_tokens, config.scale_range)
        policy = ScalePolicy(PolicyConfig(module, *about, grow=config.budget_mode == "projected"))
    if config.start_from:
        first = ScalePolicy.from_pretrained(config.start_from)
        if replace(first.config.module, learns_questions=summary) != module:
            raise PolicyError(
                f"cannot start from {config.start_from}: its sizes are {first.config.module}, those of this run "
                f"{module}; use its preview, preview_summary, width, heads, layers, expansion and policy_head"
            )
        # An allocator made before 0.3 has no output that corrects questions; it keeps that of a fresh policy.
        policy.load_state_dict({**policy.state_dict(), **first.state_dict()})
    return policy.to(previewer.device)
