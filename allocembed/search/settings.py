"""The settings of an index. They are stored in it, and vectors made otherwise are refused.

A name does not say which weights were used. So the vector of one fixed sentence is stored too, or of one fixed picture
if the model reads no texts. A model that gives another vector is another model, whatever its name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed import __version__
from allocembed.allocators.registry import load_allocator
from allocembed.backbones.checkpoint import same_model
from allocembed.config import EmbedConfig, make
from allocembed.errors import AllocEmbedError, SearchError
from allocembed.search.segments import parse_segments
from allocembed.video.decoders.registry import is_interchangeable

if TYPE_CHECKING:
    from allocembed.allocators.base import Allocator
    from allocembed.embedder import AllocEmbed

FORMAT = 2  # of the tables; increased when an older program could not read them
NEAR = 1.0  # seconds; a moment of half a minute does not need the very frame
PROBE = "a red car passes a house by the sea"
SAME_MODEL = 0.99  # cosine of two vectors of the probe; bfloat16 and float32 differ by less


@dataclass(frozen=True)
class IndexSettings:
    """The config of every video in an index."""

    config: EmbedConfig = field(default_factory=EmbedConfig)
    """Settings of a whole video; a window gets a share of the budget."""
    segments: str = "auto"
    """Windows: auto, off, or seconds."""
    near: float = 0.0
    """Seconds by which a frame of a window may be off in order to be a keyframe, which is faster to decode; 0 in older
    indexes. Frames of whole videos are exact."""
    probe: tuple[float, ...] = ()
    """The model's vector of `PROBE`, or of a picture."""
    weights: str = ""
    """What tells the allocator from others of its name: a digest of a learned policy's weights, or of another allocator
    its `identity`. Empty if the name says it all."""
    inputs: str = ""
    """The model's input pipeline in full. Empty in indexes of 0.2, whose pipelines were others."""
    version: str = __version__
    """The version of allocembed that made the index."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        parse_segments(self.segments)

    def completed(self, embedder: AllocEmbed) -> IndexSettings:
        """A copy with what only the loaded models know: the allocator behind `auto`, the range, probe and digest."""
        auto = self.config.allocator == "auto"
        config = replace(
            self.config,
            allocator=embedder.allocator.name if auto else self.config.allocator,
            scale_range=embedder.scale_range,
            dim=embedder.backbone.dim,
        )
        probe = tuple(float(value) for value in _probe(embedder))
        inputs = repr(embedder.backbone.inputs)
        return replace(self, config=config, probe=probe, weights=_policy_digest(embedder.allocator), inputs=inputs)

    def check_reloads(self, embedder: AllocEmbed) -> None:
        """Raise SearchError if the stored name would not give a later run the embedder's own allocator."""
        name, given = self.config.allocator, embedder.allocator
        try:
            found = load_allocator(name, embedder.backbone)
        except AllocEmbedError:
            found = None
        kind = type(given)
        if found is None or type(found) is not kind or found.identity() != given.identity():
            raise SearchError(
                f"an index keeps the name of its allocator, and {name} does not stand for this {kind.__name__}: add "
                f'{name} = "{kind.__module__}:{kind.__qualname__}" to the entry points allocembed.allocators of its '
                f"package, or set allocembed.allocators.registry.METHODS[{name!r}] in each run. Options belong to the "
                "name"
            )

    def check(self, embedder: AllocEmbed) -> None:
        """Raise SearchError if the embedder's vectors do not belong with those of this index."""
        probe = _probe(embedder)
        alike = float(np.dot(probe, self.probe)) if len(probe) == len(self.probe) else 0.0
        if alike < SAME_MODEL:
            raise SearchError(
                f"the index was made with {self.config.backbone} ({len(self.probe)} dimensions), and "
                f"{embedder.backbone.name} ({len(probe)}) gives other vectors: use that model, or make a new index "
                "with --to ANOTHER"
            )
        if self.weights != _policy_digest(embedder.allocator):
            raise SearchError(
                f"the index was made with another version of the allocator {self.config.allocator}: "
                "restore the old one, or make a new index with --to ANOTHER"
            )
        if self.inputs and self.inputs != repr(embedder.backbone.inputs):
            raise SearchError(
                "the index was made with other inputs of the model (frame sizes, frames or prompt): use the same "
                "--inputs and version of allocembed, or make a new index with --to ANOTHER"
            )
        # Named inputs may be the model's default, which is compared above.
        self.check_config(
            replace(embedder.config, backbone=self.config.backbone, allocator="auto", inputs=self.config.inputs)
        )

    def check_may_grow(self) -> None:
        """Raise SearchError if new videos would get other vectors than those that an older version has added."""
        if not self.inputs:
            raise SearchError(
                f"the index was made by allocembed {self.version}, which read frames in another way: it can be "
                "searched, but nothing can be added; make a new index with --to ANOTHER"
            )

    def check_config(self, config: EmbedConfig | None, segments: str | None = None) -> None:
        """Raise SearchError if settings contradict the index. Those left to their automatic value never do."""
        differences = {} if config is None else self.config.differences(config)
        if segments is not None and segments != self.segments:
            differences["segments"] = (self.segments, segments)
        for name, (old, new) in differences.items():
            if (
                new is None
                or name == "inputs"
                or (name == "allocator" and new == "auto")
                or (name == "backbone" and same_model(old, new))
            ):
                continue
            flag = "--" + name.replace("_", "-")
            raise SearchError(
                f"the index was made with {flag} {_spell(old)}, not {_spell(new)}: vectors made in two ways cannot be "
                f"compared. Leave {flag} out, or make a new index with --to ANOTHER"
            )

    def as_json(self) -> str:
        """One line for the index. Of how to compute, only how files are read is kept: limits, and foreign decoders."""
        config = self.config
        kept = {"max_pixels": config.max_pixels, "max_seconds": config.max_seconds}
        if not is_interchangeable(config.decoder):
            kept["decoder"] = config.decoder
        return json.dumps(vars(self) | {"config": config.settings() | kept})

    @classmethod
    def from_json(cls, text: str) -> IndexSettings:
        """Parse that line; raise SearchError if a newer program wrote it.

        >>> settings = IndexSettings(EmbedConfig(budget="4f"), segments="30", probe=(0.5, 0.5))
        >>> IndexSettings.from_json(settings.as_json()) == settings
        True
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            made_by, number = stored.get("version"), stored.get("format")
            if number == FORMAT:
                return make(cls, stored | {"config": EmbedConfig.from_dict(stored["config"])})
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SearchError(f"the settings of the index are damaged ({error}): make a new index") from error
        raise SearchError(
            f"the index has format {number}, and allocembed {__version__} reads {FORMAT}: use the version that "
            f"made it ({made_by}), or index again"
        )


def _probe(embedder: AllocEmbed) -> np.ndarray:
    if embedder.backbone.reads_texts:
        return embedder.encode_text(PROBE).vector
    y, x = np.indices((64, 64))
    picture = np.stack([4 * y, 4 * x, 2 * (x + y)], -1).astype(np.uint8)
    # Whatever the budget is: another one has an error of its own.
    return embedder.with_config(EmbedConfig(budget="1f")).encode_image(picture).vector


def _policy_digest(allocator: Allocator) -> str:
    policy = getattr(allocator, "policy", None)
    if policy is None:
        stated = allocator.identity()
        return "" if stated == allocator.name else stated
    from allocembed.digests import weights_digest

    return weights_digest(policy)


def _spell(value: Any) -> str:
    """A setting as it is written on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
