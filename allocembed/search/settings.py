"""What an index was made with. It is written into the index, and an index made with anything else is refused.

Names alone don't say which weights were used, so the vector of one fixed sentence is kept beside them: a model whose
vector of it differs is another model, whatever it is called.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.budget import CANDIDATES, Budget
from allocembed.search.errors import SearchError
from allocembed.search.segments import parse_segments

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed

FORMAT = 1  # of the tables; rises when an older program could not read them
PROBE = "a red car passes a house by the sea"
SAME_MODEL = 0.99  # cosine of the probe's vectors; bfloat16 against float32 stays above it
PLAIN = ("backbone", "allocator", "budget", "candidates", "scale_range", "seek", "segments", "dim")


@dataclass(frozen=True)
class Settings:
    """How every video of an index is embedded."""

    backbone: str
    allocator: str = "auto"
    """A method, or the folder or hub id of a learned allocator."""
    budget: str = "8f"
    """The most visual tokens for a whole video; a window gets a quarter of it."""
    candidates: int = CANDIDATES
    scale_range: tuple[float, float] | None = None
    seek: str = "exact"
    segments: str = "auto"
    dim: int | None = None
    probe: tuple[float, ...] = ()
    """The model's vector of `PROBE`."""
    weights: str = ""
    """Digest of a learned allocator's weights."""
    version: str = ""
    """Of allocembed, when the index was made."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        parse_segments(self.segments)
        object.__setattr__(self, "budget", str(Budget.parse(self.budget)))
        # A relative folder means something else from another one.
        for name in ("backbone", "allocator"):
            value = str(getattr(self, name))
            object.__setattr__(self, name, str(Path(value).resolve()) if Path(value).is_dir() else value)

    def load(self, device: str = "auto", dtype: str = "auto", *, compile: bool = False) -> AllocEmbed:
        """The embedder that these settings describe."""
        from allocembed.embedder import AllocEmbed

        return AllocEmbed.from_pretrained(
            self.backbone,
            self.allocator,
            device=device,
            dtype=dtype,
            dim=self.dim,
            compile=compile,
            budget=self.budget,
            candidates=self.candidates,
            scale_range=self.scale_range,
            seek=self.seek,
        )

    def completed(self, embedder: AllocEmbed) -> Settings:
        """The same with what only the loaded models tell: which allocator `auto` is, vectors, digests."""
        return replace(
            self,
            allocator=embedder.allocator.name if self.allocator == "auto" else self.allocator,
            scale_range=embedder.scale_range,
            dim=embedder.backbone.dim,
            probe=tuple(float(value) for value in _probe(embedder)),
            weights=_digest(embedder),
            version=version("allocembed"),
        )

    def check(self, embedder: AllocEmbed, *, videos: bool = True) -> None:
        """Refuses an embedder whose vectors don't belong with this index's; `videos=False` asks of its texts only."""
        probe = _probe(embedder)
        alike = float(np.dot(probe, self.probe)) if len(probe) == len(self.probe) else 0.0
        if alike < SAME_MODEL:
            raise SearchError(
                f"the index was made with {self.backbone} ({len(self.probe)} dimensions), and {embedder.backbone.name} "
                f"({len(probe)}) gives other vectors: use that model, or make a new index with --to ANOTHER"
            )
        if videos and self.weights != _digest(embedder):
            raise SearchError(
                f"the index was made with another version of the allocator {self.allocator}: "
                "put the old one back, or make a new index with --to ANOTHER"
            )

    def check_given(self, given: dict[str, Any]) -> None:
        """Refuses options that contradict the index; those that were not given (None) follow it."""
        from allocembed.backbones.loading import same

        wanted = replace(self, **{name: value for name, value in given.items() if value is not None})
        for name in PLAIN:
            old, new = getattr(self, name), getattr(wanted, name)
            if name == "backbone" and same(old, new):
                continue
            if name == "allocator" and new == "auto":
                continue
            if old != new:
                flag = "range" if name == "scale_range" else name
                raise SearchError(
                    f"the index was made with --{flag} {old}, not {new}: vectors made in two ways don't compare. "
                    f"Leave --{flag} out, or make a new index with --to ANOTHER"
                )

    def as_json(self) -> str:
        """One line for the index."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Reads that line back; refuses one from a newer program."""
        stored = json.loads(text)
        if stored.get("format") != FORMAT:
            raise SearchError(
                f"the index has format {stored.get('format')}, and this allocembed {version('allocembed')} reads "
                f"{FORMAT}: use the version that made it ({stored.get('version')}), or index again"
            )
        known = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
        return cls(**known)


def _probe(embedder: AllocEmbed) -> np.ndarray:
    return embedder.encode_text(PROBE).vector


def _digest(embedder: AllocEmbed) -> str:
    """Short digest of a learned allocator's weights; nothing for a method without any."""
    policy = getattr(embedder.allocator, "policy", None)
    if policy is None:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
