"""Measure how near vectors under a budget come to the full ones, and recommend a setting. No captions are needed.

A setting is a method with a budget. Its fidelity on a video is the cosine of the video's vector to the same video's
full-resolution vector. All settings are measured on the same videos, so two of them are compared by paired differences.
Importing this module does not import torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from allocembed.benchmarks.metrics import TIE, hits

ENOUGH_VIDEOS = 8
"""With fewer videos, standard errors and intervals say little."""
WITHIN = 0.02
"""Most that a cheaper setting may lose to the best one, as a share of the mean distance between two videos."""
SAME_PRICE = 1.1
"""Prices up to this ratio count as equal: times vary from run to run, and budgets are not filled to the last token."""
LITTLE = 0.9  # of the time of full resolution: what saves less is hardly worth a choice
UNSTEADY = 1.25
"""If two equal runs differ by this ratio, something else uses the machine."""
RESAMPLES = 1000
Price = Literal["time", "tokens"]


class Setting(NamedTuple):
    """A method with a budget."""

    method: str
    budget: str

    def __str__(self) -> str:
        return f"{self.method} at {self.budget}"


@dataclass(frozen=True, eq=False)
class Timings:
    """Milliseconds of T videos, embedded one at a time."""

    allocation: np.ndarray
    """(T, S) to allocate and resize."""
    embedding: np.ndarray
    """(T, S) to embed."""
    full: np.ndarray
    """(T, 2) both of them at full resolution."""
    decoding: np.ndarray | None
    """(T,) to decode one video for all settings; None if the frames were in memory."""
    ratio: float = 1.0
    """How many times as long the slower of two equal runs took, median."""

    @property
    def totals(self) -> np.ndarray:
        """(T, S) milliseconds to allocate and embed."""
        return self.allocation + self.embedding

    @property
    def full_total(self) -> float:
        """Median at full resolution."""
        return float(np.median(self.full.sum(1)))


class Estimate(NamedTuple):
    """A mean over videos, its standard error and its 95 % interval by Student's t; NaN if one video cannot tell."""

    mean: float
    error: float
    low: float
    high: float

    @property
    def is_positive(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.low > 0

    @property
    def differs(self) -> bool:
        """Whether zero is outside the interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class FidelityTable:
    """Vectors and costs of V videos at S settings, beside their full-resolution vectors."""

    settings: Sequence[Setting]
    sources: Sequence[str]
    full: np.ndarray
    """(V, dim) unit vectors at full resolution."""
    vectors: np.ndarray
    """(V, S, dim) unit vectors."""
    tokens: np.ndarray
    """(V, S) visual tokens of each vector."""
    look_tokens: np.ndarray
    """(V, S) tokens that the method read besides, to find the allocation."""
    full_tokens: np.ndarray
    """(V,) visual tokens at full resolution."""
    failures: Sequence[str] = ()
    """Videos that could not be read, and why."""
    left_out: Sequence[str] = ()
    """Settings that are impossible for some video, and why."""
    timings: Timings | None = None

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def cosines(self) -> np.ndarray:
        """(V, S) cosine of each vector to the full one of its video."""
        return np.einsum("vsd,vd->vs", self.vectors.astype(np.float64), self.full.astype(np.float64))

    @cached_property
    def found(self) -> np.ndarray:
        """(V, S) 1 if the vector's nearest full vector, of all videos, is that of its own video."""
        full, own = self.full.astype(np.float64), np.arange(len(self))
        columns = [hits(self.vectors[:, place] @ full.T, own) for place in range(len(self.settings))]
        return np.stack(columns, 1)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(setting.method for setting in self.settings))

    @property
    def reference(self) -> str:
        """The method that the others are compared with."""
        return "uniform" if "uniform" in self.methods else self.methods[0]

    @property
    def copies(self) -> int:
        """Videos whose full vector equals that of another video."""
        full = self.full.astype(np.float64)
        return int(((full @ full.T >= 1 - TIE).sum(1) > 1).sum())

    @cached_property
    def between(self) -> float:
        """Mean cosine between the full vectors of two different videos."""
        full = self.full.astype(np.float64)
        return float(((full.sum(0) ** 2).sum() - (full**2).sum()) / (len(self) * (len(self) - 1)))

    def prices(self, by: Price) -> np.ndarray:
        """(S,) price of each setting: median milliseconds for allocation and embedding, or mean visual tokens."""
        return np.median(self.timings.totals, 0) if by == "time" and self.timings else self.tokens.mean(0)

    def slower(self, setting: Setting, other: Setting) -> float | None:
        """How many times as long a setting takes as another one, if that was measured."""
        if self.timings is None:
            return None
        times = self.prices("time")
        return float(times[self.settings.index(setting)] / times[self.settings.index(other)])

    def difference(self, setting: Setting, other: Setting) -> Estimate:
        """How much nearer a setting is to the full vectors than another one, on the same videos."""
        place, beside = self.settings.index(setting), self.settings.index(other)
        return estimate(self.cosines[:, place] - self.cosines[:, beside])

    def against_reference(self, setting: Setting) -> Estimate | None:
        """The difference to the reference method under the same budget, if there is one."""
        other = Setting(self.reference, setting.budget)
        return None if other == setting or other not in self.settings else self.difference(setting, other)


@dataclass(frozen=True)
class Recommendation:
    """The setting to use, in a sentence, and how sure that is."""

    setting: Setting
    sentence: str
    share: float
    """Share of resamples of the videos in which the rule chooses this setting."""
    runner_up: Setting | None
    """The setting chosen most often in the other resamples."""
    warnings: Sequence[str]


def recommend(table: FidelityTable, *, within: float = WITHIN, by: Price = "time", seed: int = 0) -> Recommendation:
    """Recommend the cheapest setting that is nearly as good as the best one.

    Nearly as good: its mean cosine is lower by at most `within` of the mean distance between two videos. Of settings
    with about the same price it is the one with the highest cosine; but the reference method is kept unless the paired
    interval shows that the other one is better. A setting that costs as many tokens as full resolution is not
    recommended, nor one that takes as long, for its time. The rule is repeated on resamples of the videos and of the
    times.
    """
    prices = table.prices(by)
    cheap = table.tokens.mean(0) < table.full_tokens.mean()
    quick = cheap if cheap.any() else np.ones_like(cheap)
    if by == "time" and table.timings and (faster := quick & (prices < table.timings.full_total)).any():
        quick = faster
    quick = np.flatnonzero(quick)
    loss = within * (1 - table.between)
    plain = np.array([setting.method == table.reference for setting in table.settings])
    chosen = table.settings[quick[_choose(table.cosines[:, quick], prices[quick], plain[quick], loss)]]
    chance, others = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        drawn = table.cosines[chance.integers(0, len(table), len(table))]
        if by == "time" and table.timings:
            timed = len(table.timings.full)
            prices = np.median(table.timings.totals[chance.integers(0, timed, timed)], 0)
        pick = table.settings[quick[_choose(drawn[:, quick], prices[quick], plain[quick], loss)]]
        if pick != chosen:
            others.append(pick)
    share = 1 - len(others) / RESAMPLES
    runner_up = max(dict.fromkeys(others), key=others.count) if others else None
    sentence = f"{_describe(table, chosen)}; {_beside_reference(table, chosen)}"
    if not cheap.any():
        sentence = "full resolution, because no setting that was measured costs fewer tokens; try smaller budgets"
    warnings = _warnings(table, share, runner_up)
    if by == "time" and table.timings and cheap.any():
        part = table.prices("time")[table.settings.index(chosen)] / table.timings.full_total
        if LITTLE < part < 1:
            warnings.insert(0, f"it saves {100 * (1 - part):.0f} % of the time here; --by tokens recommends by tokens")
    return Recommendation(chosen, sentence, share, runner_up, warnings)


def estimate(values: np.ndarray) -> Estimate:
    """Mean of values (V,), with its standard error and 95 % interval.

    >>> estimate(np.array([1.0, 2.0, 3.0])).mean, estimate(np.array([1.0])).error
    (2.0, nan)
    """
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return Estimate(mean, *[float("nan")] * 3)
    error = float(values.std(ddof=1)) / count**0.5
    reach = t_quantile(count - 1) * error
    return Estimate(mean, error, mean - reach, mean + reach)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, exact for 1 and 2 degrees of freedom, else by Cornish and Fisher's series.

    >>> [round(t_quantile(freedom), 2) for freedom in (1, 2, 7, 63)]
    [12.71, 4.3, 2.36, 2.0]
    """
    if freedom < 3:
        return (12.7062, 4.3027)[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def as_json(table: FidelityTable, advice: Recommendation) -> dict[str, Any]:
    """Everything as plain JSON values; numbers that are not known are null."""
    rows = []
    for place, setting in enumerate(table.settings):
        against = table.against_reference(setting)
        rows.append(
            {
                **setting._asdict(),
                "cosine": _estimate_json(estimate(table.cosines[:, place])),
                "hit@1": _estimate_json(estimate(100 * table.found[:, place])),
                "tokens": _number(table.tokens[:, place].mean()),
                "share_of_full": _number((table.tokens[:, place] / table.full_tokens).mean()),
                "look_tokens": _number(table.look_tokens[:, place].mean()),
                "ms": _times_json(table.timings, place),
                f"minus_{table.reference}": None if against is None else _estimate_json(against),
            }
        )
    return {
        "videos": len(table),
        "rows": rows,
        "full": {"tokens": _number(table.full_tokens.mean()), "ms": _times_json(table.timings, None)},
        "cosine_between_videos": _number(table.between),
        "decode_ms": _number(decode_ms(table)),
        "recommendation": {
            **advice.setting._asdict(),
            "sentence": advice.sentence,
            "share_of_resamples": _number(advice.share),
            "runner_up": advice.runner_up._asdict() if advice.runner_up else None,
        },
        "warnings": list(advice.warnings),
        "left_out": [*table.left_out, *table.failures],
    }


def decode_ms(table: FidelityTable) -> float | None:
    """Median milliseconds to decode a video, if that was measured."""
    decoding = None if table.timings is None else table.timings.decoding
    return None if decoding is None else float(np.median(decoding))


def _choose(cosines: np.ndarray, prices: np.ndarray, plain: np.ndarray, loss: float) -> int:
    """Index of the setting to use, from the fidelity (V, S), the prices (S,) and which settings are plain (S,)."""
    means = cosines.mean(0)
    good = means >= means.max() - loss
    near = good & (prices <= SAME_PRICE * prices[good].min())
    best = int(np.where(near, means, -np.inf).argmax())
    if plain[best] or not (near & plain).any():
        return best
    usual = int(np.where(near & plain, means, -np.inf).argmax())
    return best if estimate(cosines[:, best] - cosines[:, usual]).is_positive else usual


def _describe(table: FidelityTable, setting: Setting) -> str:
    place = table.settings.index(setting)
    cosine, hit = estimate(table.cosines[:, place]), 100 * table.found[:, place].mean()
    tokens = 100 * (table.tokens[:, place] / table.full_tokens).mean()
    costs = f"{tokens:.0f} % of the tokens"
    if table.timings:
        costs += f" and {100 * table.prices('time')[place] / table.timings.full_total:.0f} % of the time"
    return (
        f"{setting}, with a mean cosine of {cosine.mean:.3f} to full resolution for {costs}; {hit:.0f} % of the "
        f"{len(table)} videos find their own full vector first"
    )


def _beside_reference(table: FidelityTable, setting: Setting) -> str:
    """The budget that the reference method needs for this fidelity, or a better method under this budget."""
    if setting.method != table.reference:
        usual = [other for other in table.settings if other.method == table.reference]
        equal = [other for other in usual if not table.difference(setting, other).is_positive]
        if not equal:
            return f"{table.reference} does not reach that cosine under any budget measured"
        least = min(equal, key=lambda other: table.tokens[:, table.settings.index(other)].mean())
        return f"{table.reference} needs {least.budget} for the same"
    others = [other for other in table.settings if other.budget == setting.budget and other != setting]
    if not others:
        return "no other method was measured under that budget"
    found = {other: table.against_reference(other) for other in others}
    better = {other: by for other, by in found.items() if by and by.is_positive}
    if not better:
        return "no method is better under that budget by more than chance"
    best = max(better, key=lambda other: better[other].mean)
    words = f"{best.method} is better by {better[best].mean:.3f} under that budget"
    slower = table.slower(best, setting)
    return words if slower is None else f"{words}, but takes {slower:.1f} times as long"


def _warnings(table: FidelityTable, share: float, runner_up: Setting | None) -> list[str]:
    """Warnings for readers of the recommendation."""
    warnings = []
    if len(table) < ENOUGH_VIDEOS:
        warnings.append(
            f"only {len(table)} videos: too few to tell methods apart; use {ENOUGH_VIDEOS} or more, better 64"
        )
    if share < 0.8 and runner_up:
        warnings.append(
            f"not sure: {100 * (1 - share):.0f} % of the resamples lead to another choice, most often {runner_up}; "
            "measure more videos"
        )
    if table.timings and table.timings.ratio > UNSTEADY:
        warnings.append(
            f"the times are not reliable: the slower of two equal runs took {table.timings.ratio:.1f} times as long; "
            "stop what else uses this machine, or use --by tokens"
        )
    if (dear := table.tokens.mean(0) >= table.full_tokens.mean()).any():
        names = ", ".join(str(setting) for setting, is_dear in zip(table.settings, dear, strict=True) if is_dear)
        warnings.append(f"these cost as many tokens as full resolution, or more: {names}")
    if table.timings and (slow := table.prices("time") >= table.timings.full_total).any():
        names = ", ".join(str(setting) for setting, is_slow in zip(table.settings, slow, strict=True) if is_slow)
        warnings.append(f"here these take as long as full resolution, or longer: {names}")
    found = [table.against_reference(setting) for setting in table.settings]
    if (known := [each for each in found if each]) and not any(each.differs for each in known):
        warnings.append(f"no method differs from {table.reference} on these {len(table)} videos by more than chance")
    if copies := table.copies:
        warnings.append(
            f"{copies} videos have the same full vector as another one, which lowers Hit@1: are they copies?"
        )
    if table.found.mean(0).min() > 0.999:
        warnings.append("every setting finds every video: Hit@1 cannot tell these settings apart, the cosine can")
    return warnings


def _estimate_json(found: Estimate) -> dict[str, float | None]:
    names = ("mean", "standard_error", "low", "high")
    return {name: _number(value) for name, value in zip(names, found, strict=True)}


def _times_json(timings: Timings | None, place: int | None) -> dict[str, float | None] | None:
    """Median milliseconds of a setting, or of full resolution for None."""
    if timings is None:
        return None
    parts = timings.full if place is None else np.stack([timings.allocation[:, place], timings.embedding[:, place]], 1)
    allocation, embedding = np.median(parts, 0)
    total = np.median(parts.sum(1))
    return {"allocation": _number(allocation), "embedding": _number(embedding), "total": _number(total)}


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 6)
