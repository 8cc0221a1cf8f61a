"""Everything a training run can be told. The fields' docstrings are the only documentation of the hyper-parameters:
`allocembed train --help` prints them.

The defaults are the paper's run (its table 4), which is the preset `paper`; `nano` trains the allocator of the nano
backbones in their own world. A TOML file holds the same keys, flat; the command line overrides the file.
"""

from __future__ import annotations

import ast
import inspect
import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from allocembed.budget import SCALE_RANGE, Budget, check_range
from allocembed.policy.scale_policy import SIZES
from allocembed.rdpo.objective import CLIP_HIGH, CLIP_LOW
from allocembed.rdpo.rewards import RewardOptions

WORLD = "world"
CHOICES = {
    "budget_mode": ("projected", "soft"),
    "cost": ("tokens", "scale"),
    "preview": ("backbone", "smolvlm2"),
}
# What may change between a run and its continuation: it moves when and where things happen, not what is learned.
FREE_TO_CHANGE = frozenset({"out", "minutes", "save_every", "timings", "workers", "device", "batch_tokens"})


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RewardOptions):
    """A training run. What is rewarded is inherited from `RewardOptions`, so that it is said in one place."""

    backbone: str = "vlm2vec-v2-2b"
    """Frozen embedding model that scores the allocations: short name, hub id or folder."""
    data: str = ""
    """A .jsonl file of videos with texts (see docs/training.md), or `world`, the procedural one."""
    videos: str = ""
    """Folder in which the jsonl's videos and frame folders are looked for; that of the jsonl itself if not given."""
    out: str = "allocator"
    """Folder for everything the run writes: best/, state/, train.toml, train.jsonl."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 … Under torchrun every process takes the GPU of its own number."""
    seed: int = 0
    """Of the weights, the examples and the sampled actions. Results do not depend on the number of processes."""

    start_from: str = ""
    """Folder or hub id of an allocator whose weights are the first; its sizes and its previews must be the run's."""
    preview: str = "smolvlm2"
    """Where the allocator's features come from: smolvlm2, or backbone (a backbone's own tower on small previews)."""
    preview_source: str = ""
    """Name, hub id or folder of the preview model; SmolVLM2-256M, or the run's own backbone, if not given."""
    preview_tokens: int = 12
    """Visual tokens a chunk has in the preview of a backbone; SmolVLM2 has its own number."""
    preview_summary: bool = False
    """Whether, where a question is asked, the backbone's language model reads every preview too: its summaries lie
    where its sentences do, and tell which chunk the question is about. Ours, not the paper's."""
    width: int = 1024
    """Of the frame module; with the next three it makes 50 M parameters on SmolVLM2's features."""
    heads: int = 16
    """Attention heads of the frame module."""
    layers: int = 2
    """Space-time layers of the frame module."""
    expansion: int = 4
    """Width of its feed-forward layers, in widths."""

    steps: int = 125
    """Steps, each with new examples and new rollouts."""
    examples: int = 1024
    """Videos with text a step, over all processes."""
    rollouts: int = 16
    """K, the allocations sampled for each example."""
    mini_batch: int = 256
    """Examples in one update of the weights; a step makes examples / mini_batch updates."""
    micro_batch: int = 64
    """Examples in one pass of the policy on one process; gradients are summed up to the mini-batch."""
    learning_rate: float = 2e-5
    """Learning rate of AdamW, after the warm-up."""
    warmup: int = 5
    """Steps over which the learning rate rises from nothing."""
    decay: float = 0.0
    """Share of the steps, at the end, over which the learning rate falls to a tenth."""
    weight_decay: float = 0.1
    """Weight decay of AdamW."""
    gradient_clip: float = 1.0
    """The largest norm of a gradient; longer ones are shortened."""
    averaging: float = 0.0
    """How much of the running mean of the weights a step keeps, as in 0.95. The mean is what is validated and kept, as
    single steps are noisy; 0 keeps the weights themselves, as the paper does."""
    clip_low: float = CLIP_LOW
    """ε_l of equation 23: a ratio below 1 − ε_l earns nothing more."""
    clip_high: float = CLIP_HIGH
    """ε_h of equation 23: a ratio above 1 + ε_h earns nothing more."""

    budgets: tuple[str, ...] = ("8f/24",)
    """Budget/candidate frames; every step draws one of them, and validation takes the first. One that is written
    three times is drawn three times as often."""
    scale_range: tuple[float, float] = SCALE_RANGE
    """Smallest and largest scale."""
    budget_mode: str = "projected"
    """projected: every sampled allocation is projected onto the budget before it is scored, so that the policy can only
    redistribute. soft: it is scored as it was sampled, the paper's way."""
    cost: str = "tokens"
    """What the efficiency incentive calls cost: tokens, the true one; scale, the paper's mean scale."""

    global_negatives: int = 3072
    """Texts drawn from the corpus as further negatives, the same for all of a step; 0 is "w/o Global Negatives"."""
    like_with_like: bool = False
    """Whether every target is ranked among its like, as it will be in use: an answer among the options of its question,
    or among all answers where it has none, and a search sentence among sentences. The paper ranks all among all."""
    pool: int = 8192
    """Texts in the corpus of the world. A jsonl's corpus is all its texts."""
    mixture: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of the world's examples whose target is one moment, the whole video, the answer to a question."""
    validation: int = 512
    """Examples kept apart for validation."""
    validate_every: int = 25
    """Steps between validations; the best checkpoint is kept in out/best."""
    save_every: int = 25
    """Steps between saved states, from which --resume goes on."""
    minutes: float = 0.0
    """Stop after so many minutes, with everything saved; 0 for no limit."""
    batch_tokens: int = 65536
    """Tokens in one pass of the backbone. Lower it when the memory does not suffice."""
    workers: int = 8
    """Threads that read the videos of a jsonl."""
    timings: bool = False
    """Wait for the GPU after every part of a step, so that the times printed at the end are exact; slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"there is no {name} {getattr(self, name)!r}: take {' or '.join(known)}")
        for name in ("steps", "examples", "mini_batch", "micro_batch", "validate_every", "save_every", "validation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("batch_tokens", "workers", "preview_tokens", "pool"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "gradient_clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)}")
        for name in ("seed", "warmup", "weight_decay", "global_negatives", "minutes", "clip_low", "clip_high"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.preview_summary and self.preview != "backbone":
            raise ValueError("preview_summary takes preview = backbone: SmolVLM2 has no vectors of what it sees")
        if self.rollouts < 2:
            raise ValueError(
                f"rollouts must be at least 2, not {self.rollouts}: one alone has none to be compared with"
            )
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging is a share of the mean, from 0 to below 1, not {self.averaging}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay is a share of the steps, from 0 to 1, not {self.decay}")
        check_range(self.scale_range)
        if min(self.mixture) < 0 or abs(sum(self.mixture) - 1) > 1e-6:
            raise ValueError(f"the shares of the mixture must add up to 1, as in 0.6,0.2,0.2; got {self.mixture}")
        if not self.budgets:
            raise ValueError("give at least one budget, as in 8f/24")
        for setting in self.budgets:
            parse_budget(setting)

    @property
    def settings(self) -> list[tuple[Budget, int]]:
        """The budgets and their numbers of candidate frames."""
        return [parse_budget(setting) for setting in self.budgets]

    def as_dict(self) -> dict[str, Any]:
        """What TOML and JSON can hold."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def as_toml(self) -> str:
        """A file from which the same run can be started."""
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.as_dict().items())


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # One GPU, minutes: a small policy on the backbone's own previews. γ is lower than the paper's because what the nano
    # backbones call a confident gap is smaller than what VLM2Vec-V2 does.
    "nano": {
        "backbone": "nano-qwen3",
        "data": WORLD,
        "preview": "backbone",
        "preview_summary": True,
        "width": SIZES["nano"].width,
        "heads": SIZES["nano"].heads,
        "steps": 65,
        "examples": 128,
        "rollouts": 16,
        "mini_batch": 32,
        "learning_rate": 4e-4,
        "warmup": 10,
        "weight_decay": 0.01,
        "averaging": 0.9,
        "budgets": ("8f/24",) * 6 + ("16f/48", "20f/60"),
        "global_negatives": 1024,
        "like_with_like": True,
        "gamma": 0.3,
        "centre_efficiency": True,
        "validation": 1024,
        "batch_tokens": 131072,
    },
}


def parse_budget(setting: str) -> tuple[Budget, int]:
    """Reads "8f/24": a budget, and the candidate frames that share it.

    >>> parse_budget("16f/48")
    (Budget(frames=16, limit=None), 48)
    """
    budget, _, candidates = setting.partition("/")
    if not candidates.strip().isdecimal() or int(candidates) < 1:
        raise ValueError(f"cannot read the budget {setting!r}: write 8f/24, a budget and its candidate frames")
    return Budget.parse(budget), int(candidates)


def make_config(given: Mapping[str, Any], file: Path | None = None, preset: str | None = None) -> TrainConfig:
    """A config from a preset, the keys of a TOML file over it, and `given` ones over both.

    >>> make_config({"steps": 7, "budgets": "8f/24,16f/48"}, preset="nano").budgets
    ('8f/24', '16f/48')
    >>> make_config({"learning_rat": 1e-4})
    Traceback (most recent call last):
    ValueError: there is no option learning_rat; did you mean learning_rate?
    """
    stated = read_toml(file) if file else {}
    chosen = stated.pop("preset", None) if preset is None else preset
    stated.pop("preset", None)
    chosen = "paper" if chosen is None else chosen
    if chosen not in PRESETS:
        raise ValueError(f"there is no preset {chosen!r}: take one of {', '.join(PRESETS)}")
    return TrainConfig(
        **PRESETS[chosen] | {name: read_value(name, value) for name, value in {**stated, **given}.items()}
    )


def read_toml(file: Path) -> dict[str, Any]:
    """The keys of a TOML file, checked by `make_config`."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot read {file}: {cause}; it must be a TOML file of lines such as steps = 100") from error


def read_value(name: str, value: Any) -> Any:
    """The value of an option as its field wants it, from TOML or from the command line.

    >>> read_value("scale_range", "0.3,1.5"), read_value("learning_rate", 1), read_value("confidence", "no")
    ((0.3, 1.5), 1.0, False)
    """
    kinds = field_types()
    if name not in kinds:
        near = get_close_matches(name, kinds, n=1, cutoff=0.4)
        raise ValueError(f"there is no option {name}" + (f"; did you mean {near[0]}?" if near else ""))
    kind = kinds[name]
    try:
        if get_origin(kind) is tuple:
            parts = value.split(",") if isinstance(value, str) else list(value)
            inner = get_args(kind)
            if inner[-1] is not Ellipsis and len(parts) != len(inner):
                raise ValueError(value)
            return tuple(_plain(part, inner[0]) for part in parts)
        return _plain(value, kind)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be {value!r}: write it as in {_example(name)}") from error


def _plain(value: Any, kind: type) -> Any:
    """One value as bool, int, float or str; refuses what would lose something, such as 1.5 for an int."""
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        if not isinstance(value, bool):
            raise TypeError(value)
        return value
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError(value)
    if kind is int and isinstance(value, float):
        raise TypeError(value)
    return value.strip() if kind is str else kind(value)


def _example(name: str) -> str:
    default = TrainConfig().as_dict()[name]
    return f"{name} = {json.dumps(default)}"


@cache
def field_types() -> Mapping[str, Any]:
    """The type of every field, in the order in which help shows them: the run's own, then the reward's."""
    hints = get_type_hints(TrainConfig)
    inherited = [item.name for item in fields(RewardOptions)]
    own = [item.name for item in fields(TrainConfig) if item.name not in inherited]
    return types.MappingProxyType({name: hints[name] for name in (*own, *inherited)})


@cache
def field_docs() -> Mapping[str, str]:
    """The docstring of every field, as one line each.

    >>> field_docs()["rollouts"]
    'K, the allocations sampled for each example.'
    """
    docs = {}
    for source in (RewardOptions, TrainConfig):
        body = ast.parse(inspect.getsource(source)).body[0].body
        for item, following in pairwise(body):
            if isinstance(item, ast.AnnAssign) and isinstance(following, ast.Expr):
                docs[item.target.id] = " ".join(ast.literal_eval(following.value).split())
    return types.MappingProxyType(docs)
