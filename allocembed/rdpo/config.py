"""Settings of a training run. The docstrings of the fields are their documentation: `allocembed train --help` prints
them.

The defaults are the preset `allocembed`: the sizes of the paper's run (its table 4) with our changes. The preset
`paper` is that run as printed; docs/training.md lists the differences. A TOML file holds the same keys, flat; the
command line overrides the file. Installed packages add presets and data through the entry-point groups
`allocembed.presets` and `allocembed.training_data`.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from allocembed.backbones.registry import REGISTRY
from allocembed.budget import SCALE_RANGE, Budget, check_range
from allocembed.config import make
from allocembed.errors import ConfigError, DataError
from allocembed.plugins import Names

if TYPE_CHECKING:
    from allocembed.rdpo.data.base import Source

PATHS = ("data", "videos", "validation_data", "out")
MODELS = ("backbone", "preview_source", "start_from")
"""Options that may also be hub ids or short names; only an existing folder is a path."""
FREE_TO_CHANGE = frozenset(
    {"out", "minutes", "save_every", "save_minutes", "timings", "workers", "device", "batch_tokens", "micro_batch"}
)
"""Options that may differ when a run is resumed: they decide when and where things happen, not what is learned."""


@dataclass(frozen=True)
class RewardOptions:
    """What is rewarded. The defaults are the paper's Full RDPO; each of its ablations changes one field.

    >>> RewardOptions(reward="success").reward  # the row "Retrieval Success Only"
    'success'
    >>> RewardOptions(reward="rank")
    Traceback (most recent call last):
    allocembed.errors.ConfigError: reward must be validated, success, gap or cosine, not 'rank'
    """

    reward: Literal["validated", "success", "gap", "cosine"] = "validated"
    """validated: a_k·g_k (equation 16); success: a_k, "Retrieval Success Only"; gap: g_k, "Similarity Gap Only";
    cosine: the mere similarity to the target, without rivals."""
    confidence: bool = True
    """Weigh the efficiency incentive by confidence; off is "w/o Confidence Guidance": h_k = 1 in equation 20."""
    success_gate: bool = True
    """Give the efficiency incentive to successful allocations only. Off is "w/o Success Gating": equation 20 without
    a_k, so failures are rewarded for low cost too. (The paper means this gate, see its appendix A.1; the a_k of
    equation 16 has its own row, "the ungated similarity gap".)"""
    efficiency_weight: float = 0.4
    """λ of equation 20; 0 is "w/o Efficiency Incentive"."""
    centre_efficiency: bool = False
    """Subtract the group's mean from the incentive, so that it only compares members of the group. The paper does not:
    its incentive is never negative, which makes every successful allocation likelier, also the costly ones."""
    gamma: float = 0.45
    """γ of equation 19: the gap at which confidence is one half."""
    tau: float = 0.10
    """τ of equation 19: how soft the step at γ is."""
    epsilon: float = 1e-4
    """ε of equation 17, which the paper does not state. This value is well above the noise (a few 1e-6) between two
    embeddings of one allocation in different batches, so noise does not become a full advantage."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                *others, last = get_args(kind)
                raise ConfigError(f"{name} must be {', '.join(others)} or {last}, not {getattr(self, name)!r}")
        for name, value in vars(self).items():
            numbers = [each for each in (value if isinstance(value, tuple) else [value]) if isinstance(each, float)]
            if not all(map(math.isfinite, numbers)):
                raise ConfigError(f"{name} must be a finite number, not {value}")
        self._check(lambda value: value >= 0, "0 or more", "efficiency_weight")
        self._check(lambda value: value > 0, "greater than 0", "tau", "epsilon")

    def _check(self, holds: Any, condition: str, *names: str) -> None:
        for name in names:
            if not holds(getattr(self, name)):  # NaN fulfils no condition
                raise ConfigError(f"{name} must be {condition}, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RewardOptions):
    """A training run. The reward's options are inherited, so that they are defined in one place."""

    backbone: str = "vlm2vec-v2-2b"
    """Frozen embedding model that scores the allocations: short name, hub id or folder."""
    data: str = ""
    """A .jsonl file of videos with texts (see docs/training.md), or a name that an installed package adds. Without it,
    all videos in the folder `videos` are used, without texts."""
    videos: str = ""
    """Folder of videos to learn from without texts; with `data`, of the videos and frame folders that the .jsonl names.
    Default: the folder of the .jsonl."""
    target: Literal["text", "video"] = "text"
    """What a good allocation must find: text, the caption or answer; video, the video's own vector at full resolution
    instead of captions. A video without a text has its own vector as target in any case; an answer to a question
    stays the target of that question."""
    target_prompt: Literal["query", "none"] = "query"
    """How a target without a question is embedded: query, as a search sentence, with the backbone's prompt for them, as
    in search; none, the bare text, as VLM2Vec's training embeds captions."""
    own_reward: Literal["cosine", "validated", "success", "gap"] = "cosine"
    """The `reward` of examples whose target is their own vector. Among other videos it is nearly always found, so ranks
    say little."""
    search_rounds: int = 0
    """Rounds of a search from the sampled allocations towards the target; the best of them are then imitated (expert
    iteration). Each round costs as much as the sampling."""
    queue: int = 0
    """Full-resolution vectors of earlier steps that are kept as further rivals of videos without texts."""
    out: str = "allocator"
    """Folder for everything the run writes: best/, state/, train.toml, train.jsonl."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 and so on. Under torchrun each process uses the GPU of its local rank."""
    seed: int = 0
    """Seed of weights, examples and sampled actions. Results do not depend on the number of processes."""

    start_from: str = ""
    """Folder or hub id of an allocator to start from; its sizes and previews must be those of this run."""
    preview: Literal["backbone", "smolvlm2"] = "smolvlm2"
    """Source of the allocator's features: smolvlm2, or backbone (a backbone's vision tower on small previews)."""
    preview_source: str = ""
    """Name, hub id or folder of the preview model. Default: SmolVLM2-256M, or the run's own backbone."""
    preview_tokens: int = 12
    """Visual tokens per chunk in a backbone's preview; SmolVLM2 has its own number."""
    preview_summary: bool = False
    """For videos with a question, let the backbone's language model read each preview too. These summaries lie in the
    space of its sentences, so they show which chunk the question is about. Not in the paper."""
    width: int = 1024
    """Width of the frame module; with the next three options it has 50 M parameters on SmolVLM2's features."""
    heads: int = 16
    """Attention heads of the frame module."""
    layers: int = 2
    """Space-time layers of the frame module."""
    expansion: int = 4
    """Width of its feed-forward layers, as a multiple of the width."""

    steps: int = 125
    """Training steps, each with new examples and new rollouts."""
    examples: int = 1024
    """Videos per step, over all processes; all of them if there are fewer."""
    rollouts: int = 16
    """K, the allocations sampled for each example."""
    mini_batch: int = 256
    """Examples per weight update; a step makes examples / mini_batch updates."""
    micro_batch: int = 64
    """Examples per forward pass of the policy on one process; gradients accumulate over the mini-batch."""
    learning_rate: float = 2e-5
    """Learning rate of AdamW after the warm-up."""
    warmup: int = 5
    """Steps over which the learning rate rises linearly."""
    decay: float = 0.0
    """Fraction of the steps, at the end, over which the learning rate falls to a tenth."""
    weight_decay: float = 0.1
    """Weight decay of AdamW."""
    gradient_clip: float = 1.0
    """Largest gradient norm; longer gradients are scaled down."""
    averaging: float = 0.0
    """Decay of the running mean of the weights, such as 0.95. The mean is validated and kept, because single steps are
    noisy; 0 keeps the weights themselves, as in the paper."""
    clip_low: float = 0.20
    """ε_l of equation 23: a ratio below 1 − ε_l earns nothing more."""
    clip_high: float = 0.28
    """ε_h of equation 23: a ratio above 1 + ε_h earns nothing more."""

    budgets: tuple[str, ...] = ("8f/24",)
    """Budget/candidate frames. Each step draws one of them, validation uses the first. Repeat an entry to draw it more
    often."""
    scale_range: tuple[float, float] = SCALE_RANGE
    """Smallest and largest scale."""
    budget_mode: Literal["projected", "soft"] = "projected"
    """projected: project each sampled allocation onto the budget before scoring it, so the policy can only
    redistribute. soft: score it as sampled, as in the paper; the budget is then only an upper bound in validation and
    use."""
    policy_head: Literal["bounded", "softplus"] = "bounded"
    """bounded: α and β lie between 1 and 20, so no distribution has two peaks or stops exploring. softplus: any
    positive numbers, the paper's equation 6; not with preview_summary."""
    ladder: int = 0
    """Sizes on which the scales of projected rollouts lie while training, such as 8; 0 for any size. Rollouts then
    share more of the vision tower's work. Validation and use have any size."""
    cost: Literal["tokens", "scale"] = "tokens"
    """Cost in the efficiency incentive: tokens, the true one; scale, the paper's mean scale."""

    global_negatives: int = 3072
    """Texts drawn from the corpus as further negatives, the same for a whole step; 0 is "w/o Global Negatives"."""
    like_with_like: bool = False
    """Rank each target among its own kind, as in use: an answer among the options of its question (or all answers, if
    it has none), a search sentence among sentences. The paper ranks all among all."""
    pool: int = 8192
    """Texts in the corpus of data that is drawn, not read. The corpus of a .jsonl is all its texts."""
    mixture: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Of data that is drawn: shares of examples whose target is one moment, the whole video, the answer to a
    question."""
    validation: int = 512
    """Examples held out for validation; of a folder of videos at most a fifth. 0 for all of `validation_data`."""
    validation_data: str = ""
    """A .jsonl file of validation examples, of which the first `validation` are used, with videos in the same folder.
    None of its videos is trained on. Default: some of the training data."""
    validate_every: int = 25
    """Steps between validations; the best checkpoint is kept in out/best."""
    save_every: int = 25
    """Steps between saved states, from which --resume continues."""
    save_minutes: float = 30.0
    """Save a state after this many minutes too, at the end of a step; 0 for no such limit."""
    minutes: float = 0.0
    """Stop after this many minutes with everything saved; 0 for no limit."""
    batch_tokens: int = 65536
    """Tokens per forward pass of the backbone. Lower it if memory runs out."""
    workers: int = 8
    """Threads that read the videos of a .jsonl."""
    training_pixels: int = 0
    """Shrink larger frames to this many pixels when they are read, such as 230400 (640 × 360); 0 for their own size.
    Saves memory and time. The allocator sees small previews in any case."""
    timings: bool = False
    """Synchronise the GPU after each part of a step, so that the times printed at the end are exact; slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("steps", "examples", "mini_batch", "micro_batch", "validate_every", "save_every")
        self._check(lambda value: value >= 1, "at least 1", *positive)
        self._check(lambda value: value >= 1, "at least 1", "batch_tokens", "workers", "preview_tokens", "pool")
        self._check(lambda value: value >= 1, "at least 1", "width", "heads", "layers", "expansion")
        self._check(lambda value: value < 2**63, "less than 2**63", "seed")
        self._check(lambda value: value > 0, "greater than 0", "learning_rate", "gradient_clip")
        not_negative = ("seed", "warmup", "weight_decay", "global_negatives", "queue", "search_rounds", "minutes")
        self._check(lambda value: value >= 0, "0 or more", *not_negative, "save_minutes", "clip_low", "clip_high")
        if self.validation < (0 if self.validation_data else 1):
            raise ConfigError(
                f"validation must be at least 1, not {self.validation}; with --validation-data, 0 means all of it"
            )
        self._check(lambda value: value >= 2, "at least 2, because rollouts are compared with each other", "rollouts")
        self._check(lambda value: 0 <= value < 1, "a fraction from 0 to below 1", "averaging")
        self._check(lambda value: 0 <= value <= 1, "a fraction of the steps, from 0 to 1", "decay")
        self._check(lambda value: value == 0 or value >= 2, "0, or at least 2 sizes", "ladder")
        self._check(lambda value: value == 0 or value >= 1024, "0, or at least 1024 pixels", "training_pixels")
        if self.preview_summary and self.preview != "backbone":
            raise ConfigError("preview_summary needs preview = backbone: SmolVLM2 does not embed what it sees")
        if self.preview_summary and self.policy_head == "softplus":
            raise ConfigError("preview_summary needs policy_head = bounded: the paper's softplus has no place for it")
        check_range(self.scale_range)
        if min(self.mixture) < 0 or abs(sum(self.mixture) - 1) > 1e-6:
            raise ConfigError(f"the shares of the mixture must add up to 1, such as 0.6 0.2 0.2; got {self.mixture}")
        if not self.budgets:
            raise ConfigError("budgets must have at least one entry, such as 8f/24")
        for setting in self.budgets:
            parse_budget(setting)

    @property
    def settings(self) -> list[tuple[Budget, int]]:
        """The budgets and their numbers of candidate frames."""
        return [parse_budget(setting) for setting in self.budgets]

    def as_dict(self) -> dict[str, Any]:
        """Plain TOML and JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def as_toml(self) -> str:
        """A TOML file that starts the same run."""
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in self.as_dict().items())


DEFAULT_PRESET = "allocembed"
PRESETS: Names[Path] = Names(
    "allocembed.presets", {path.stem: path for path in sorted((Path(__file__).parent / "presets").glob("*.toml"))}
)
"""TOML files of options over the defaults, by name."""
TRAINING_DATA: Names[Callable[[TrainConfig], Source]] = Names("allocembed.training_data", {})
"""Makers of sources that `data` names, besides the files and folders of every user."""


def parse_budget(setting: str) -> tuple[Budget, int]:
    """Parse "8f/24": a budget and its number of candidate frames.

    >>> parse_budget("16f/48")
    (Budget(frames=16, limit=None), 48)
    """
    budget, _, candidates = setting.partition("/")
    if not candidates.strip().isdecimal() or int(candidates) < 1:
        raise ConfigError(f"cannot read the budget {setting!r}: write 8f/24, a budget and its candidate frames")
    return Budget.parse(budget), int(candidates)


def make_config(given: Mapping[str, Any], file: Path | None = None, preset: str | None = None) -> TrainConfig:
    """A preset, the keys of a TOML file over it, and `given` options over both. The file may name a `preset`.

    >>> make_config({"steps": 7, "budgets": ["8f/24", "16f/48"]}, preset="paper").budgets
    ('8f/24', '16f/48')
    """
    stated = _read_toml(file) if file else {}
    named = stated.pop("preset", DEFAULT_PRESET)
    chosen = named if preset is None else preset
    if not isinstance(chosen, str) or chosen not in PRESETS:
        absence = PRESETS.absence(str(chosen))
        raise ConfigError(absence or f"unknown preset {chosen!r}: use one of {', '.join(PRESETS)}")
    return make(TrainConfig, {**_read_toml(PRESETS[chosen]), **stated, **given})


def check_data(data: str) -> None:
    """Raise DataError for `data` that is neither a known name nor a file."""
    if not data or data in TRAINING_DATA or Path(data).is_file():
        return
    known = "".join(f", or --data {name}" for name in TRAINING_DATA)
    missing = f"cannot read {data}: no such file; pass a .jsonl file with --data{known}"
    raise DataError(TRAINING_DATA.absence(data) or missing)


def absolute_paths(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The options with absolute paths, so that train.toml means the same from any folder.

    >>> absolute_paths({"backbone": "nano-qwen3", "videos": "", "start_from": "you/name", "steps": 3})
    {'backbone': 'nano-qwen3', 'videos': '', 'start_from': 'you/name', 'steps': 3}
    >>> absolute_paths({"out": "run"})["out"] == str(Path("run").absolute())
    True
    """
    return {name: str(Path(value).absolute()) if _is_path(name, value) else value for name, value in stated.items()}


def _is_path(name: str, value: Any) -> bool:
    if name in MODELS:
        return bool(value) and value.lower() not in REGISTRY and Path(value).is_dir()
    return name in PATHS and bool(value) and not (name == "data" and value in TRAINING_DATA)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        stated = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read {file}: {cause}; write a TOML file of lines such as steps = 100") from error
    if tables := [name for name, value in stated.items() if isinstance(value, dict)]:
        raise ConfigError(
            f"cannot read {file}: {tables[0]} is a table, and options are flat; write lines such as steps = 100"
        )
    return stated
