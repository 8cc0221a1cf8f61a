"""The trainable part of the learned allocator: the frame module G and the scale policy (equations 5 to 7).

Input: preview features of every chunk and features of the question. Output: a Beta distribution over each chunk's
scale. The architecture follows ResAdapt, on which the paper builds. One layer attends to the text. Further layers
attend over time, then over the patches of a chunk. Text-guided pooling gives one vector per chunk, and a residual MLP
reads it beside five scalars. Two things differ. The unit is a chunk, not a frame. And the features are also
standardised across the video, because it matters how a chunk differs from the others.

If chunks have a summary, its fit to a question is known without training and decides from the start, because rankings
teach the match of pictures and words slowly. The network corrects that decision (`learns_questions`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from allocembed.errors import ConfigError

SCALARS = 5  # patch variance, gate entropy, gate peak, cosine to the chunk before, cosine to the text
# Effect of a question before training: slope of a chunk's value in its fit, the fit at half value, and how much of the
# value without a question is kept.
STEEP, THRESHOLD, KEPT = 3.0, 1.2, 0.0
SPREAD = 0.02  # floor on the standard deviation of the fits; smaller differences are noise
CEILING = 20.0  # of alpha and beta: sharper distributions do not explore, and their log-probabilities explode
LEAST_PARAMETER = 1e-3  # alpha or beta with a plain softplus, which underflows to 0; equation 6 requires more than 0
HEADS = ("bounded", "softplus")


@dataclass(frozen=True)
class FrameModuleConfig:
    """Sizes of the frame module. The defaults are those for SmolVLM2."""

    visual_width: int = 576
    """Width of the preview features."""
    text_width: int = 576
    """Width of the text features."""
    width: int = 1024
    heads: int = 16
    layers: int = 2
    """Layers of temporal, then spatial attention."""
    expansion: int = 4
    """Width of the feed-forward layers, as a multiple of `width`."""
    summary: bool = False
    """Whether the first feature of a chunk is its summary, in the space of the text features, and the first feature of
    a text is the last of the default task. Both serve only to find the chunk that a question is about."""
    learns_questions: bool = False
    """With a summary: whether the network corrects what the fit to a question decides, and so learns from questions.
    Allocators made before 0.3 have no such output."""
    policy_head: Literal["bounded", "softplus"] = "bounded"
    """bounded: alpha and beta lie in [1, CEILING]; softplus: they are any positive numbers, as in equation 6."""

    def __post_init__(self) -> None:
        if self.policy_head not in HEADS:
            raise ConfigError(f"unknown policy head {self.policy_head!r}: use one of {', '.join(HEADS)}")
        if self.policy_head == "softplus" and self.summary:
            raise ConfigError("the policy head softplus, the paper's, cannot use a summary: use the head bounded")
        if self.learns_questions and not self.summary:
            raise ConfigError("learns_questions corrects the fit of a summary to a question: set summary too")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ConfigError(f"width {self.width} must be an even multiple of heads {self.heads}")
        if self.summary and self.visual_width != self.text_width:
            raise ConfigError("with a summary, visual and text width must be equal: both lie in one space")


@dataclass(frozen=True, eq=False)
class QuestionEffect:
    """Changes that a question makes in the distributions of the chunks."""

    tilt: torch.Tensor
    """(B, C) what log alpha gains and log beta loses."""
    kept: torch.Tensor
    """(B, 1) the factor on both before that; 1 without a question."""
    asked: torch.Tensor
    """(B, 1) whether there is a question."""


class FrameModule(nn.Module):
    """Preview features (B, C, P, visual_width) and text tokens (B, L, text_width) to Beta parameters (B, C) each."""

    def __init__(self, config: FrameModuleConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.visual = nn.Linear(2 * config.visual_width, width)
        if config.summary:
            self.asked = nn.Parameter(torch.tensor([STEEP, THRESHOLD, KEPT]))
        self.text = nn.Linear(config.text_width, width)
        self.read_text = Attention(width, config.heads)
        self.read_text_forward = FeedForward(width, config.expansion)
        self.layers = nn.ModuleList(SpaceTimeLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(2 * width, 1)
        self.head = PolicyHead(width + SCALARS, config.policy_head, learns_questions=config.learns_questions)

    def forward(
        self,
        visual: torch.Tensor,
        text: torch.Tensor,
        chunk_mask: torch.Tensor | None = None,
        text_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`chunk_mask` (B, C) and `text_mask` (B, L) are False where padded; default: nothing is padded."""
        chunk_mask = visual.new_ones(visual.shape[:2], dtype=torch.bool) if chunk_mask is None else chunk_mask
        text_mask = text.new_ones(text.shape[:2], dtype=torch.bool) if text_mask is None else text_mask
        question = None
        if self.config.summary:
            question = self._ask(visual[:, :, 0].float(), text.float(), chunk_mask, text_mask)
            visual, text, text_mask = visual[:, :, 1:], text[:, 1:], text_mask[:, 1:]
        batch, chunks, patches, _ = visual.shape
        tokens = self.visual(both_views(visual, chunk_mask))
        words = self.text(F.layer_norm(text, text.shape[-1:]))
        flat = tokens.flatten(1, 2)
        flat = flat + self.read_text(flat, words, text_mask)
        tokens = (flat + self.read_text_forward(flat)).view(batch, chunks, patches, -1)
        for layer in self.layers:
            tokens = layer(tokens, chunk_mask)
        return self.head(self._pool(self.norm(tokens), words, text_mask), question)

    def _ask(
        self, summary: torch.Tensor, text: torch.Tensor, chunk_mask: torch.Tensor, text_mask: torch.Tensor
    ) -> QuestionEffect:
        """The effect of the text on each chunk; none if it is the default task."""
        last = text[torch.arange(len(text), device=text.device), (text_mask.sum(1) - 1).clamp(min=0)]
        asked = (last != text[:, 0]).any(-1, keepdim=True)
        steep, threshold, kept = self.asked.float()
        tilt = steep * (fits(summary, last, text[:, 0], chunk_mask) - threshold)
        return QuestionEffect(torch.where(asked, tilt, 0), torch.where(asked, kept, 1), asked)

    def _pool(self, tokens: torch.Tensor, words: torch.Tensor, text_mask: torch.Tensor) -> torch.Tensor:
        """One vector per chunk: patches weighted by their relation to the text, and the five scalars."""
        share = text_mask[..., None] / text_mask.sum(1)[:, None, None].clamp(min=1)
        topic = (words * share).sum(1)[:, None, None].expand_as(tokens)
        weight = self.gate(torch.cat([tokens, topic], -1))[..., 0].float().softmax(-1)
        pooled = (tokens * weight[..., None].to(tokens.dtype)).sum(2)
        entropy = -(weight * weight.clamp(min=1e-9).log()).sum(-1) / math.log(max(weight.shape[-1], 2))
        before = torch.cat([pooled[:, :1], pooled[:, :-1]], 1)
        scalars = [
            tokens.float().var(2, unbiased=False).mean(-1),
            entropy,
            weight.amax(-1),
            F.cosine_similarity(pooled.float(), before.float(), dim=-1),
            F.cosine_similarity(pooled.float(), topic[:, :, 0].float(), dim=-1),
        ]
        return torch.cat([pooled, torch.stack(scalars, -1).to(pooled.dtype)], -1)


class PolicyHead(nn.Module):
    """A residual MLP to alpha and beta, in fp32 whatever the rest computes in. `FrameModuleConfig` has its forms."""

    def __init__(self, width: int, form: str = "bounded", *, learns_questions: bool = False) -> None:
        super().__init__()
        self.form = form
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.out = nn.Linear(width, 2)
        self.correct = nn.Linear(width, 2) if learns_questions else None
        # Near zero, where softplus has a gradient: alpha and beta start at about 1.7 (the plain form: 0.7), broad and
        # equal for all chunks, and a question has nearly the effect of its fit.
        for out in filter(None, (self.out, self.correct)):
            nn.init.normal_(out.weight, std=0.01)
            nn.init.zeros_(out.bias)

    def forward(
        self, hidden: torch.Tensor, question: QuestionEffect | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            hidden = hidden + self.inner(self.norm(hidden))
            shapes = F.softplus(self.out(hidden))
            if self.form == "softplus":
                alpha, beta = shapes.clamp(min=LEAST_PARAMETER).unbind(-1)
                return alpha, beta
            shapes = 1 + shapes
            if question is not None:
                tilt = torch.stack([question.tilt, -question.tilt], -1)
                shapes = shapes.log() * question.kept[..., None] + tilt
                if self.correct is not None:
                    # Bounded first, so that the correction moves also those chunks that the fit puts far outside.
                    correction = torch.where(question.asked[..., None], self.correct(hidden), 0)
                    shapes = shapes.clamp(0, math.log(CEILING)) + correction
                shapes = shapes.exp()
        alpha, beta = shapes.clamp(1, CEILING).unbind(-1)
        return alpha, beta


class SpaceTimeLayer(nn.Module):
    """Attention over time at each patch position, then over the patches of each chunk, then feed-forward."""

    def __init__(self, config: FrameModuleConfig) -> None:
        super().__init__()
        self.temporal = Attention(config.width, config.heads, rotary=True)
        self.spatial = Attention(config.width, config.heads, rotary=True)
        self.forward_layer = FeedForward(config.width, config.expansion)

    def forward(self, tokens: torch.Tensor, chunk_mask: torch.Tensor) -> torch.Tensor:
        batch, chunks, patches, width = tokens.shape
        over_time = tokens.transpose(1, 2).reshape(batch * patches, chunks, width)
        mask = chunk_mask.repeat_interleave(patches, 0)
        over_time = over_time + self.temporal(over_time, over_time, mask)
        tokens = over_time.view(batch, patches, chunks, width).transpose(1, 2)
        over_space = tokens.reshape(batch * chunks, patches, width)
        over_space = over_space + self.spatial(over_space, over_space, None)
        return (over_space + self.forward_layer(over_space)).view(batch, chunks, patches, width)


class Attention(nn.Module):
    """Pre-norm multi-head attention of (N, Q, width) to (N, K, width), with rotary positions if order matters."""

    def __init__(self, width: int, heads: int, *, rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.norm_query, self.norm_key = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query: torch.Tensor, key: torch.Tensor, key_mask: torch.Tensor | None) -> torch.Tensor:
        seen = self.norm_key(key)

        def split(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        queries, keys, values = (
            split(self.query(self.norm_query(query))),
            split(self.key(seen)),
            split(self.value(seen)),
        )
        if self.rotary:
            queries, keys = rotate(queries), rotate(keys)
        mask = None
        if key_mask is not None:
            # A fully masked row attends to everything, and its caller masks the result: NaN would spread.
            mask = (key_mask | ~key_mask.any(-1, keepdim=True))[:, None, None, :]
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.out(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Pre-norm feed-forward layer."""

    def __init__(self, width: int, expansion: int) -> None:
        inner = expansion * width
        super().__init__(nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def fits(summary: torch.Tensor, asked: torch.Tensor, default: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The gain in fit (B, C) of chunks (B, C, D) to a text (B, D) over the default task, in standard deviations.

    The fit to the default task is subtracted because empty chunks are close to every text.

    >>> chunks, texts, everything = torch.eye(4)[None, :3], torch.eye(4)[None], torch.ones(1, 3, dtype=torch.bool)
    >>> (10 * fits(chunks, texts[:, 1], texts[:, 3], everything)[0]).round().int().tolist()
    [-7, 14, -7]
    """
    better = F.normalize(asked, dim=-1) - F.normalize(default, dim=-1)
    fit = (F.normalize(summary, dim=-1) @ better[..., None])[..., 0]
    weight = mask / mask.sum(1, keepdim=True).clamp(min=1)
    centred = fit - (fit * weight).sum(1, keepdim=True)
    return centred / ((centred.square() * weight).sum(1, keepdim=True) + SPREAD**2).sqrt()


def both_views(visual: torch.Tensor, chunk_mask: torch.Tensor) -> torch.Tensor:
    """Features (B, C, P, D), normalised each on its own and standardised across the chunks: (B, C, P, 2 · D).

    >>> video = torch.randn(2, 5, 3, 4)
    >>> views = both_views(video, torch.ones(2, 5, dtype=torch.bool))
    >>> views.shape, bool(views[..., 4:].mean((1, 2)).abs().max() < 1e-5)
    (torch.Size([2, 5, 3, 8]), True)
    """
    weight = chunk_mask[:, :, None, None].to(visual.dtype) / (chunk_mask.sum(1) * visual.shape[2])[:, None, None, None]
    mean = (visual * weight).sum((1, 2), keepdim=True)
    spread = ((visual - mean).square() * weight).sum((1, 2), keepdim=True).sqrt()
    return torch.cat([F.layer_norm(visual, visual.shape[-1:]), (visual - mean) / (spread + 1e-3)], -1)


def rotate(tensor: torch.Tensor) -> torch.Tensor:
    """Rotary positions along the second last axis of (N, heads, S, d).

    >>> bool(torch.allclose(rotate(torch.ones(1, 1, 1, 4)), torch.ones(1, 1, 1, 4)))
    True
    """
    half = tensor.shape[-1] // 2
    frequency = 1e4 ** (-torch.arange(half, device=tensor.device, dtype=torch.float32) / half)
    angle = torch.arange(tensor.shape[-2], device=tensor.device, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos().to(tensor.dtype), angle.sin().to(tensor.dtype)
    first, second = tensor[..., :half], tensor[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
