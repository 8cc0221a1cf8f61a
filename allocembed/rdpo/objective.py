"""The update of the policy: Beta actions, their log-probabilities, and the clipped objective of equations 22–23.

Everything is computed in float32 (float64 stays float64), whatever precision the model runs in: rounding the actions
to bfloat16 alone changes log-probabilities by up to 0.08, a sixth of what clipping lets through.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from allocembed.rdpo.config import TrainConfig
from allocembed.rdpo.rewards import full_precision

CLIP_LOW, CLIP_HIGH = TrainConfig.clip_low, TrainConfig.clip_high  # ε_l and ε_h, table 4
ACTION_MARGIN = 1e-4
"""Actions keep this distance from 0 and 1, where log-densities and their gradients are unbounded. It moves a scale in
[0.2, 1.8] by at most 1.6e-4, and float32 still has three digits of 1 − a there."""
LOG_RATIO_LIMIT = 5.0
"""Bound on |log ρ|. It is far outside the clipping range. It matters only where PPO has no bound: where the ratio
grows with a negative advantage. One outlier then weighs at most e⁵ ≈ 148 and cannot overflow."""


@dataclass(frozen=True)
class Diagnostics:
    """Distances of the policy from the one that sampled, over valid actions; scalars on their device."""

    clip_fraction: Tensor
    mean_ratio: Tensor


def sample_actions(alpha: Tensor, beta: Tensor, k: int, generator: torch.Generator | None = None) -> Tensor:
    """Sample K actions per chunk (equations 6 and 11): parameters (..., C) give (..., K, C) in (0, 1).

    The result carries no gradient. The generator must be on the parameters' device.

    >>> shape = torch.full((2, 3), 4.0)
    >>> actions = sample_actions(shape, shape, k=1000, generator=torch.Generator().manual_seed(0))
    >>> actions.shape, bool((actions.mean(1) - 0.5).abs().max() < 0.02)
    (torch.Size([2, 1000, 3]), True)
    """
    shapes = torch.broadcast_tensors(full_precision(alpha.detach()), full_precision(beta.detach()))
    # torch.distributions accepts no generator; like its Beta, this is one of two Gamma variates over their sum.
    first, second = (
        torch._standard_gamma(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
            shape.unsqueeze(-2).expand(*shape.shape[:-1], k, shape.shape[-1]).contiguous(), generator=generator
        ).clamp_min(torch.finfo(shape.dtype).tiny)
        for shape in shapes
    )
    return (first / (first + second)).clamp(ACTION_MARGIN, 1 - ACTION_MARGIN)


def beta_log_prob(actions: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Log-density of actions (..., K, C) under Beta(α, β) of (..., C); returns (..., K, C).

    >>> one, two = torch.tensor([1.0]), torch.tensor([2.0])
    >>> beta_log_prob(torch.tensor([[0.5], [0.9]]), two, two).exp()  # 6·a·(1 − a)
    tensor([[1.5000],
            [0.5400]])
    >>> beta_log_prob(torch.tensor([[0.0], [1.0]]), two, one)  # 2·a, with a clamped into (0, 1)
    tensor([[-8.5172],
            [ 0.6930]])
    """
    actions = full_precision(actions).clamp(ACTION_MARGIN, 1 - ACTION_MARGIN)
    alpha, beta = full_precision(alpha).unsqueeze(-2), full_precision(beta).unsqueeze(-2)
    normaliser = alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
    return (alpha - 1) * actions.log() + (beta - 1) * (-actions).log1p() - normaliser


def log_ratio(log_prob_new: Tensor, log_prob_old: Tensor) -> Tensor:
    """log ρ (equation 22) of any shape, within ±LOG_RATIO_LIMIT; the old policy carries no gradient.

    >>> log_ratio(torch.tensor([-1.0, 80.0, -80.0]), torch.tensor([-1.5, 0.0, 0.0]))
    tensor([ 0.5000,  5.0000, -5.0000])
    """
    difference = full_precision(log_prob_new) - full_precision(log_prob_old).detach()
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def clipped_objective(
    log_prob_new: Tensor,
    log_prob_old: Tensor,
    advantage: Tensor,
    valid: Tensor,
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
    *,
    total_actions: float | Tensor | None = None,
) -> Tensor:
    """J(θ) (equation 23), a scalar to maximise: the mean over valid actions of min(ρA, clip(ρ)A).

    `log_prob_new` and `log_prob_old` are (B, K, C); `advantage` (B, K) applies to every chunk of its allocation;
    `valid` (B, C) is False where padded, and padded values are never read. All valid actions have the same weight. For
    a part of a batch pass `total_actions`, the valid actions (K per valid chunk) of all parts: the objectives and
    gradients of the parts then sum to those of the whole.

    >>> old, up = torch.zeros(1, 1, 2), torch.tensor([1.1, 1.5]).log().expand(1, 1, 2)
    >>> clipped_objective(up, old, torch.tensor([[1.0]]), torch.tensor([[True, True]]))  # (1.1 + 1.28) / 2
    tensor(1.1900)
    >>> clipped_objective(up, old, torch.tensor([[-1.0]]), torch.tensor([[True, True]]))  # −(1.1 + 1.5) / 2
    tensor(-1.3000)
    >>> clipped_objective(up, old, torch.tensor([[1.0]]), torch.tensor([[True, False]]))
    tensor(1.1000)
    """
    _check_shapes(log_prob_new, log_prob_old, advantage, valid)
    moved = _masked_log_ratio(log_prob_new, log_prob_old, valid).exp()
    worth = full_precision(advantage).detach().unsqueeze(-1)
    terms = torch.minimum(moved * worth, moved.clamp(1 - clip_low, 1 + clip_high) * worth)
    count = _count(valid, advantage) if total_actions is None else total_actions
    return torch.where(valid.unsqueeze(1), terms, 0).sum() / count


@torch.no_grad()
def diagnose(
    log_prob_new: Tensor,
    log_prob_old: Tensor,
    advantage: Tensor,
    valid: Tensor,
    clip_low: float = CLIP_LOW,
    clip_high: float = CLIP_HIGH,
) -> Diagnostics:
    """Mean ratio, and the fraction of valid actions whose gradient clipping removes; inputs as above.

    An action outside the clipping range still learns if it moved against its advantage.

    >>> old, up = torch.zeros(1, 2, 2), torch.tensor([1.1, 1.5]).log().expand(1, 2, 2)
    >>> diagnose(up, old, torch.tensor([[1.0, -1.0]]), torch.tensor([[True, True]]))
    Diagnostics(clip_fraction=tensor(0.2500), mean_ratio=tensor(1.3000))
    """
    _check_shapes(log_prob_new, log_prob_old, advantage, valid)
    moved = _masked_log_ratio(log_prob_new, log_prob_old, valid).exp()
    worth = advantage.unsqueeze(-1)
    cut = ((worth > 0) & (moved > 1 + clip_high)) | ((worth < 0) & (moved < 1 - clip_low))
    count = _count(valid, advantage)
    return Diagnostics((cut & valid.unsqueeze(1)).sum() / count, 1 + (moved - 1).sum() / count)


def _count(valid: Tensor, advantage: Tensor) -> Tensor:
    """Number of valid actions, K per valid chunk; at least 1, because it is a divisor."""
    return (valid.sum() * advantage.shape[1]).clamp_min(1)


def _masked_log_ratio(log_prob_new: Tensor, log_prob_old: Tensor, valid: Tensor) -> Tensor:
    """Log-ratios, 0 where padded; masked before any computation, so that a NaN there cannot reach a gradient."""
    keep = valid.unsqueeze(1)
    return log_ratio(torch.where(keep, log_prob_new, 0), torch.where(keep, log_prob_old, 0))


def _check_shapes(new: Tensor, old: Tensor, advantage: Tensor, valid: Tensor) -> None:
    """Raise for shapes that would broadcast in an unintended way."""
    chunks = (new.shape[0], new.shape[-1])
    if new.ndim != 3 or old.shape != new.shape or advantage.shape != new.shape[:2] or valid.shape != chunks:
        raise ValueError(
            "log-probabilities must be (B, K, C), the advantage (B, K) and valid (B, C); got "
            f"{tuple(new.shape)}, {tuple(old.shape)}, {tuple(advantage.shape)} and {tuple(valid.shape)}"
        )
    if valid.dtype != torch.bool:
        raise ValueError(f"valid must be bool, not {valid.dtype}; compare it with 0 first")
