"""The learned policy as a checkpoint: a folder with its config, its weights, and a model card.

A policy depends on the features it was trained on, so its config names the preview model too. Saving, loading and
pushing follow the hub's conventions. huggingface_hub's own mixin is not used: it prints to stdout, keeps an old model
card, and can leave half-written files when killed.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save
from torch import nn

from allocembed.backbones.hub import find_folder
from allocembed.budget import SCALE_RANGE, check_range
from allocembed.errors import BackboneError, ConfigError, PolicyError
from allocembed.output.files import whole_file, write_text
from allocembed.policy.frame_module import FrameModule, FrameModuleConfig
from allocembed.policy.preview import KINDS, PREVIEW_TOKENS

CONFIG, WEIGHTS, MODEL_CARD = "config.json", "model.safetensors", "README.md"
MODEL_TYPE = "allocembed_policy"
SIZES = {
    "paper": FrameModuleConfig(),  # 50 M parameters on the features of SmolVLM2; the paper has 48 M
    "nano": FrameModuleConfig(visual_width=256, text_width=256, width=256, heads=8),  # under 7 MB in bfloat16
}


@dataclass(frozen=True)
class PolicyConfig:
    """Everything but the weights; saved beside them."""

    module: FrameModuleConfig
    preview: str
    """The kind of the preview model: "backbone" or "smolvlm2"."""
    preview_source: str
    """Short name, hub id or folder of the preview model."""
    preview_tokens: int = PREVIEW_TOKENS
    """Size of a preview, if a backbone makes it."""
    scale_range: tuple[float, float] = SCALE_RANGE
    """The range in training, and the default at inference."""
    grow: bool = True
    """Whether a plan that costs less than the budget is enlarged to use it up, as in training with projected rollouts.
    If not, the budget is only an upper bound, and the scales below it are the policy's own, as in the paper."""
    trained: dict[str, Any] = field(default_factory=dict)
    """Facts for the model card, as plain JSON: `backbone`, `data`, `steps`, `scores` and so on."""

    def __post_init__(self) -> None:
        if self.preview not in KINDS:
            raise ConfigError(f"unknown preview {self.preview!r}: use one of {', '.join(KINDS)}")
        object.__setattr__(self, "scale_range", check_range(self.scale_range))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON; `from_dict` reads it back.

        >>> config = PolicyConfig(SIZES["nano"], "backbone", "nano-qwen3", trained={"steps": 300})
        >>> PolicyConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
        True
        """
        return {"model_type": MODEL_TYPE, **asdict(self)}

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> Self:
        stated = dict(stated)
        if (kind := stated.pop("model_type", None)) != MODEL_TYPE:
            raise ConfigError(f"this is the config of a {kind} model, not of an {MODEL_TYPE}")
        return cls(module=FrameModuleConfig(**stated.pop("module")), **stated)


class ScalePolicy(nn.Module):
    """Preview features to a Beta distribution over the scale of each chunk (equations 5 and 6)."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.frame_module = FrameModule(config.module)

    def forward(
        self,
        visual: torch.Tensor,
        text: torch.Tensor,
        chunk_mask: torch.Tensor | None = None,
        text_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Alpha and beta, (B, C) fp32 each, from chunks (B, C, P, visual_width) and texts (B, L, text_width).

        `chunk_mask` (B, C) and `text_mask` (B, L) are False where padded; default: nothing is padded.
        """
        return self.frame_module(visual, text, chunk_mask, text_mask)

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        state_dict: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Write config, weights and model card. Pass gathered weights as `state_dict` if the module's are sharded."""
        folder = Path(folder)
        weights = self.state_dict() if state_dict is None else state_dict
        weights = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in weights.items()}
        with whole_file(folder / WEIGHTS) as scratch:
            scratch.write_bytes(save(weights, metadata={"format": "pt"}))
        for name, text in (
            (CONFIG, json.dumps(self.config.as_dict(), indent=2) + "\n"),
            (MODEL_CARD, model_card(self.config)),
        ):
            write_text(folder / name, text)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str | torch.device = "cpu") -> Self:
        """Load a folder or hub id in fp32, whatever dtype it was saved in, ready for inference."""
        folder = _find(str(source))
        if not (folder / CONFIG).is_file() and (folder / "best" / CONFIG).is_file():
            folder = folder / "best"  # the folder of a run
        if missing := [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]:
            raise PolicyError(
                f"{folder} holds no learned allocator: {' and '.join(missing)} missing. Pass a folder written by "
                "allocembed train, or download it again"
            )
        try:
            config = PolicyConfig.from_dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
            weights = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
            with torch.device("meta"):
                policy = cls(config)
            policy.load_state_dict(weights, assign=True)
        except Exception as error:  # damaged files raise errors of every kind
            cause = " ".join(str(error).split())
            raise PolicyError(
                f"cannot load the allocator in {folder} ({type(error).__name__}: {cause[:300]}): the folder is damaged "
                "or of another version; download it again, or train it again with allocembed train"
            ) from error
        return policy.to(device).eval()

    def push_to_hub(
        self, repo: str, *, private: bool | None = None, token: str | None = None, dtype: torch.dtype = torch.bfloat16
    ) -> str:
        """Upload the checkpoint as a model repository, created if needed; return the URL of the commit."""
        hub = HfApi(token=token)
        repo = hub.create_repo(repo, private=private, exist_ok=True).repo_id
        with tempfile.TemporaryDirectory() as scratch:
            self.save_pretrained(scratch, dtype=dtype)
            return str(hub.upload_folder(repo_id=repo, folder_path=scratch, commit_message="Upload allocator"))


def model_card(config: PolicyConfig) -> str:
    """The model card: what the allocator is, its training, its scores.

    >>> facts = {"backbone": "nano-qwen3", "scores": {"uniform": 61.5, "learned": 70.25}}
    >>> text = model_card(PolicyConfig(SIZES["nano"], "backbone", "nano-qwen3", trained=facts))
    >>> [line for line in text.splitlines() if line.startswith("| ")][:4]
    ['| trained | |', '| backbone | nano-qwen3 |', '| scores | |', '| uniform | 61.5 |']
    """
    low, high = config.scale_range
    return f"""---
license: mit
library_name: allocembed
tags: [video-embedding, token-budget]
---
# A learned allocator for AllocEmbed

Gives every chunk of a video its own resolution, so that the whole fits a token budget. It sees small previews through
`{config.preview_source}` ({config.preview}) and was trained with scales from {low:g} to {high:g}.

```python
from allocembed import AllocEmbed

AllocEmbed.from_pretrained(allocator="this folder or hub id").encode_video("talk.mp4")
```

{_tables(config.trained)}"""


def _tables(trained: Mapping[str, Any]) -> str:
    if not trained:
        return "Its training is unknown; if it is untrained, its allocations mean nothing.\n"
    plain = {name: value for name, value in trained.items() if not isinstance(value, Mapping)}
    parts = {"trained": plain, **{name: value for name, value in trained.items() if isinstance(value, Mapping)}}
    tables = [
        "\n".join([f"| {title} | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts.items())])
        for title, facts in parts.items()
        if facts
    ]
    return "\n\n".join(tables) + "\n"


def _cell(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _find(source: str) -> Path:
    try:
        return find_folder(source, source)
    except BackboneError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise PolicyError(
            f"cannot load the allocator {source!r} ({cause}): pass the folder or hub id of one made by allocembed "
            "train, or the name of a method, such as uniform"
        ) from error
