"""The rewards of allocations: equations 13–21 of the paper, from similarities to advantages.

Every function is pure, works on any leading batch axes `...` and computes in float32 or wider. `score_group` combines
them; each row of the paper's ablation table is one field of `RewardOptions`. Choices that the paper leaves open are
explained at the function they concern:

- a tie is a failure (`success`);
- the deviation within a group is the population's (`group_advantage`);
- "success gating" is the a_k of equation 20, not that of equation 16 (`RewardOptions.success_gate`);
- a query without negatives teaches nothing (`score_group`).
"""

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from allocembed.budget import SCALE_RANGE, check_range
from allocembed.rdpo.config import RewardOptions

PAPER = RewardOptions()


@dataclass(frozen=True)
class Scores:
    """Results of `score_group` for every allocation; each field is (..., K), `success` bool, the others float."""

    success: Tensor
    gap: Tensor
    reward: Tensor
    retrieval_advantage: Tensor
    confidence: Tensor
    incentive: Tensor
    advantage: Tensor

    def where(self, rows: Tensor, other: Self) -> Self:
        """These scores, with those of `other` in some rows (...,) bool."""
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return type(self)(*(torch.where(rows.unsqueeze(-1), theirs, mine) for mine, theirs in pairs))


def full_precision(tensor: Tensor) -> Tensor:
    """Convert to float32, unless the tensor is float64 already.

    >>> full_precision(torch.ones(1, dtype=torch.bfloat16)).dtype, full_precision(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def success(positive: Tensor, negatives: Tensor, mask: Tensor) -> Tensor:
    """a_k (equation 13): whether the positive ranks first.

    `positive` (..., K) and `negatives` (..., K, N) are similarities, `mask` (..., N) is True for valid negatives;
    returns bool (..., K). The positive must be strictly above every negative: a tie is a failure, because otherwise a
    backbone that maps everything to one vector would always succeed. A query with no negatives is a failure too.

    >>> positive = torch.tensor([0.9, 0.5, 0.6])
    >>> negatives = torch.tensor([[0.3, 0.1], [0.6, 0.2], [0.6, 0.0]])
    >>> success(positive, negatives, torch.tensor([True, True])).tolist()  # above, below, tie
    [True, False, False]
    >>> success(positive, negatives, torch.tensor([False, True])).tolist()
    [True, True, True]
    >>> success(positive, negatives, torch.tensor([False, False])).tolist()
    [False, False, False]
    """
    beaten = negatives < positive.unsqueeze(-1)
    return (beaten | ~mask.unsqueeze(-2)).all(-1) & mask.any(-1, keepdim=True)


def mean_negative(negatives: Tensor, mask: Tensor) -> Tensor:
    """μ⁻_k (equation 14): mean similarity to the valid negatives; 0 if there are none.

    `negatives` (..., K, N), `mask` (..., N); returns (..., K).

    >>> negatives = torch.tensor([[0.3, 0.1, 0.9], [0.5, 0.0, 0.9]])
    >>> mean_negative(negatives, torch.tensor([True, True, False]))
    tensor([0.2000, 0.2500])
    >>> mean_negative(negatives, torch.tensor([False, False, False]))
    tensor([0., 0.])
    """
    kept = negatives.masked_fill(~mask.unsqueeze(-2), 0)
    total = kept.sum(-1, dtype=torch.promote_types(kept.dtype, torch.float32))
    return total / mask.sum(-1, keepdim=True).clamp_min(1)


def similarity_gap(positive: Tensor, mean_negative: Tensor) -> Tensor:
    """g_k (equation 15): the positive minus the mean negative; all (..., K).

    >>> similarity_gap(torch.tensor([0.9, 0.5]), torch.tensor([0.2, 0.6]))
    tensor([ 0.7000, -0.1000])
    """
    return full_precision(positive) - mean_negative


def rank_validated_gap(success: Tensor, gap: Tensor) -> Tensor:
    """r_k = a_k·g_k (equation 16): the gap of successful allocations, 0 for the others; all (..., K).

    >>> rank_validated_gap(torch.tensor([True, False]), torch.tensor([0.7, 0.5]))
    tensor([0.7000, 0.0000])
    """
    return torch.where(success, gap, 0)


def group_advantage(reward: Tensor, epsilon: float = RewardOptions.epsilon) -> Tensor:
    """A_ret,k (equation 17): rewards (..., K) standardised over the K allocations of one input.

    The deviation is the population's (divided by K, like the mean): it is defined for K = 1, and advantages have mean
    square 1 for every K, so λ has the same weight against them. Dividing by K − 1 would shrink them by 3 % at K = 16.
    Equal rewards give exactly 0.

    >>> group_advantage(torch.tensor([0.7, 0.4, 0.3, 0.0]), epsilon=1e-9)  # mean 0.35, deviation 0.25
    tensor([ 1.4000,  0.2000, -0.2000, -1.4000])
    >>> group_advantage(torch.full((3,), 0.1)), group_advantage(torch.tensor([0.7]))
    (tensor([0., 0., 0.]), tensor([0.]))
    """
    centred = _centred(full_precision(reward))
    return centred / (centred.square().mean(-1, keepdim=True).sqrt() + epsilon)


def scale_cost(scales: Tensor, valid: Tensor | None = None, scale_range: tuple[float, float] = SCALE_RANGE) -> Tensor:
    """c_k (equation 18), the paper's proxy: the position of the mean scale in the range, in [0, 1].

    `scales` (..., K, C) of all chunks, `valid` (..., C) False where padded; returns (..., K). The proxy ignores spread,
    although tokens grow with the square of the scale: {0.2, 1.8} counts as much as {1, 1}, at 1.64× the tokens.

    >>> scale_cost(torch.tensor([[0.2, 0.2], [0.2, 1.8], [1.0, 1.0], [1.8, 1.8]]))
    tensor([0.0000, 0.5000, 0.5000, 1.0000])
    >>> scale_cost(torch.tensor([[0.6, 1.8]]), torch.tensor([True, False]))
    tensor([0.2500])
    """
    low, high = check_range(scale_range)
    scales = full_precision(scales)
    if valid is None:
        mean = scales.mean(-1)
    else:
        mean = scales.masked_fill(~valid.unsqueeze(-2), 0).sum(-1) / valid.sum(-1, keepdim=True).clamp_min(1)
    return ((mean - low) / (high - low)).clamp(0, 1) if high > low else torch.zeros_like(mean)


def token_cost(tokens: Tensor, most: Tensor | int, least: Tensor | int = 0) -> Tensor:
    """Our c_k: the true cost in tokens, as its position between `least` (0) and `most` (1), clipped.

    `tokens` (..., K) are exact costs; `most` and `least` are numbers or (...). With the cost of every chunk at
    s_max and at s_min this is equation 18 in tokens; `most` alone gives the fraction of a budget or of the full input.

    >>> token_cost(torch.tensor([48, 96, 192]), most=96)
    tensor([0.5000, 1.0000, 1.0000])
    >>> token_cost(torch.tensor([[40, 100], [40, 100]]), most=torch.tensor([160, 80]), least=40)
    tensor([[0.0000, 0.5000],
            [0.0000, 1.0000]])
    """
    most, least = (torch.as_tensor(bound, device=tokens.device).unsqueeze(-1) for bound in (most, least))
    return (full_precision(tokens - least) / (most - least).clamp_min(1)).clamp(0, 1)


def confidence(gap: Tensor, gamma: float = RewardOptions.gamma, tau: float = RewardOptions.tau) -> Tensor:
    """h_k (equation 19): σ((g_k − γ) / τ); both (..., K).

    >>> confidence(torch.tensor([0.25, 0.45, 0.65]))
    tensor([0.1192, 0.5000, 0.8808])
    """
    return ((full_precision(gap) - gamma) / tau).sigmoid()


def efficiency_incentive(
    success: Tensor, confidence: Tensor, cost: Tensor, weight: float = RewardOptions.efficiency_weight
) -> Tensor:
    """I_eff,k = λ·a_k·h_k·(1 − c_k) (equation 20); all (..., K).

    >>> succeeded, sure, cost = torch.tensor([True, True, False]), torch.tensor([1.0, 0.5, 1.0]), torch.tensor(0.25)
    >>> efficiency_incentive(succeeded, sure, cost)
    tensor([0.3000, 0.1500, 0.0000])
    """
    return weight * success * full_precision(confidence) * (1 - full_precision(cost))


def advantage(retrieval_advantage: Tensor, incentive: Tensor, centre_efficiency: bool = False) -> Tensor:
    """A_k = A_ret,k + I_eff,k (equation 21); all (..., K). Centring subtracts the group's mean incentive.

    >>> retrieval, incentive = torch.tensor([1.0, -1.0]), torch.tensor([0.3, 0.1])
    >>> advantage(retrieval, incentive)
    tensor([ 1.3000, -0.9000])
    >>> advantage(retrieval, incentive, centre_efficiency=True)
    tensor([ 1.1000, -1.1000])
    """
    return retrieval_advantage + (_centred(incentive) if centre_efficiency else incentive)


def score_group(
    similarity_positive: Tensor,
    similarity_negatives: Tensor,
    negative_mask: Tensor,
    cost: Tensor,
    options: RewardOptions = PAPER,
) -> Scores:
    """Score the K allocations of each input against the same candidates (equations 13–21).

    `similarity_positive` (..., K), `similarity_negatives` (..., K, N), `negative_mask` (..., N) bool, and `cost`
    (..., K) from `scale_cost` or `token_cost`. An input with no negatives cannot be ranked:
    its gap, incentive and advantage are 0 under all options but `cosine`, which needs no rivals.

    >>> positive = torch.tensor([0.9, 0.6])
    >>> negatives = torch.tensor([[0.3, 0.1], [0.6, 0.2]])
    >>> scores = score_group(positive, negatives, torch.tensor([True, True]), cost=torch.tensor([0.5, 0.0]))
    >>> scores.success.tolist(), scores.reward
    ([True, False], tensor([0.7000, 0.0000]))
    >>> scores.advantage  # 1 + 0.4·σ(2.5)·0.5, and −1
    tensor([ 1.1845, -0.9997])
    """
    _check_shapes(similarity_positive, similarity_negatives, negative_mask, cost)
    succeeded = success(similarity_positive, similarity_negatives, negative_mask)
    ranked = negative_mask.any(-1, keepdim=True)
    gap = similarity_gap(similarity_positive, mean_negative(similarity_negatives, negative_mask))
    gap = torch.where(ranked, gap, 0)

    if options.reward == "validated":
        reward = rank_validated_gap(succeeded, gap)
    elif options.reward == "cosine":
        reward = full_precision(similarity_positive)
    else:
        reward = succeeded.to(gap.dtype) if options.reward == "success" else gap
    retrieval = group_advantage(reward, options.epsilon)

    gate = succeeded if options.success_gate else ranked.expand_as(succeeded)
    sure = confidence(gap, options.gamma, options.tau) if options.confidence else torch.ones_like(gap)
    incentive = efficiency_incentive(gate, sure, cost, options.efficiency_weight)
    total = advantage(retrieval, incentive, options.centre_efficiency)
    return Scores(succeeded, gap, reward, retrieval, sure, incentive, total)


def _centred(values: Tensor) -> Tensor:
    """Values (..., K) minus their mean; subtracting the first beforehand makes equal values exactly 0."""
    shifted = values - values[..., :1]
    return shifted - shifted.mean(-1, keepdim=True)


def _check_shapes(positive: Tensor, negatives: Tensor, mask: Tensor, cost: Tensor) -> None:
    """Raise for shapes that would broadcast in an unintended way."""
    group, count = positive.shape, negatives.shape[-1]
    if negatives.shape[:-1] != group or mask.shape != (*group[:-1], count) or cost.shape != group:
        raise ValueError(
            "for positives (..., K) the negatives must be (..., K, N), the mask (..., N) and the cost (..., K); got "
            f"{tuple(group)}, {tuple(negatives.shape)}, {tuple(mask.shape)} and {tuple(cost.shape)}"
        )
    if mask.dtype != torch.bool:
        raise ValueError(f"the mask of negatives must be bool, not {mask.dtype}; compare it with 0 first")
