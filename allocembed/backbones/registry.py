"""Backbones by name: families of models, and checkpoints with short names. No torch.

An installed package adds a family through the entry-point group `allocembed.families`, and a short name through
`allocembed.backbones`. `checkpoint` finds the files and the inputs of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from allocembed.backbones.gemma.inputs import PIPELINES as GEMMA_PIPELINES
from allocembed.backbones.siglip.inputs import PIPELINES as SIGLIP_PIPELINES
from allocembed.geometry import Geometry, WholeTokenGeometry
from allocembed.inputs import Inputs
from allocembed.plugins import Names, load_place

if TYPE_CHECKING:
    from allocembed.backbones.base import Backbone
    from allocembed.backbones.text_half import TextHalf

DEFAULT_BACKBONE = "qwen3-vl-embedding-2b"


@dataclass(frozen=True)
class Family:
    """A kind of model: the class that runs it, as "module:class", and its input pipelines, the default first.

    `stock` are the pixel limits, (lowest, highest), that published checkpoints of the family state for images, but that
    their own video pipelines do not use. Any other limits in a checkpoint are its own.
    """

    backbone: str
    inputs: Mapping[str, Inputs]
    stock: tuple[int, int] | None = None
    text_half: str | None = None
    """Class that embeds sentences without the rest of the model, as "module:class"; see `text_half`."""
    reader: str | None = None
    """Function that reads the inputs a checkpoint states, as "module:function", if `read_inputs` cannot."""
    transformers: str | None = None
    """First version of transformers that has the model, if it is newer than the oldest supported one."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of transformers' `from_pretrained`."""
    tokenizer: bool = True
    """Whether its checkpoints have a tokenizer. False for models of pictures alone."""

    @property
    def geometry(self) -> Geometry:
        """The geometry of the default pipeline."""
        return next(iter(self.inputs.values())).geometry

    def load(self) -> type[Backbone]:
        """Import the class."""
        return load_place(self.backbone)

    def load_text_half(self) -> Callable[..., TextHalf]:
        """Import the class that embeds sentences."""
        return load_place(self.text_half or "")


CLIP_MEAN, CLIP_STD, HALF = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), (0.5, 0.5, 0.5)
# 4 to 1,280 tokens of 28² pixels per frame: VLM2Vec-V2's evaluation.
VLM2VEC = Geometry(14, 2, CLIP_MEAN, CLIP_STD, min_pixels=4 * 28**2, max_pixels=1280 * 28**2)
# VLM2Vec-V1's evaluation brings every frame to a square of 1344 pixels first, then under the limit: 35 × 35 tokens.
VLM2VEC_V1 = replace(VLM2VEC, square=1344)
# The demos of both generations read files with qwen-vl-utils, at most 360 × 420 pixels.
DEMO = Inputs(
    replace(VLM2VEC, min_pixels=128 * 28**2, max_pixels=360 * 420),
    rounds=True,
    picture_pixels=(4 * 28**2, 1280 * 28**2),
)
# GME's and Ops-MM-embedding's own code: 256 to 1,280 tokens. GME resizes twice, and cuts prompts at 1,800 tokens.
OPS_MM = Inputs(replace(VLM2VEC, min_pixels=256 * 28**2), layout="ops-mm")
GME = Inputs(
    WholeTokenGeometry(14, 2, CLIP_MEAN, CLIP_STD, 256 * 28**2, VLM2VEC.max_pixels), layout="gme", longest=1_800
)
# Qwen2.5-VL's stock video processor, with 2 frames a second, and the limits of pictures that its checkpoints state.
QWEN25 = Inputs(
    replace(VLM2VEC, min_pixels=128 * 28**2, max_pixels=768 * 28**2),
    layout="qwen2-chat",
    rounds=True,
    list_rate=2.0,
    picture_pixels=(4 * 28**2, 16384 * 28**2),
)
# 128 to 768 tokens of 32² pixels per frame, from qwen-vl-utils. The limit of lists is that of the model's own code.
QWEN3 = Inputs(
    Geometry(
        16,
        2,
        HALF,
        HALF,
        min_pixels=128 * 32**2,
        max_pixels=768 * 32**2,
        file_tokens=115_200,
        list_tokens=7_680,
        list_multiple=64,
    ),
    layout="transformers-4.57",
    rounds=True,
    list_rate=2.0,
    longest=8_192,
    picture_pixels=(4 * 32**2, 1800 * 32**2),
)
# Qwen3-VL and Qwen3.5 without an embedder's own code: the limits of qwen-vl-utils, and the stated ones for pictures.
QWEN3_STOCK = Inputs(
    replace(QWEN3.geometry, list_tokens=115_200, list_multiple=None),
    layout="qwen3-chat",
    rounds=True,
    list_rate=2.0,
    picture_pixels=(64 * 32**2, 16384 * 32**2),
)
FAMILIES: Names[Family] = Names(
    "allocembed.families",
    {
        "qwen2_vl": Family(
            "allocembed.backbones.qwen_vl.qwen2:Qwen2VLBackbone",
            {
                "vlm2vec-v2": Inputs(VLM2VEC),
                "vlm2vec-v1": Inputs(VLM2VEC_V1),
                "vlm2vec-demo": DEMO,
                "gme": GME,
                "ops-mm": OPS_MM,
            },
            stock=(3136, 12_845_056),
            text_half="allocembed.backbones.qwen_vl.text_half:QwenTextHalf",
        ),
        "qwen2_5_vl": Family(
            "allocembed.backbones.qwen_vl.qwen2:Qwen25VLBackbone",
            {"transformers-4.57": QWEN25, "transformers-5": replace(QWEN25, layout="qwen2-chat-5")},
            stock=(3136, 12_845_056),
            text_half="allocembed.backbones.qwen_vl.text_half:QwenTextHalf",
        ),
        "qwen3_vl": Family(
            "allocembed.backbones.qwen_vl.qwen3:Qwen3VLBackbone",
            {"transformers-4.57": QWEN3, "transformers-5.10": replace(QWEN3, layout="transformers-5.10")},
            stock=(65_536, 16_777_216),
            text_half="allocembed.backbones.qwen_vl.text_half:QwenTextHalf",
        ),
        "qwen3_vl_moe": Family(
            "allocembed.backbones.qwen_vl.qwen3:Qwen3VLMoeBackbone",
            {"transformers-5.10": QWEN3_STOCK},
            stock=(65_536, 16_777_216),
        ),
        "qwen3_5": Family(
            "allocembed.backbones.qwen_vl.qwen3:Qwen35Backbone",
            {"transformers-5.10": QWEN3_STOCK},
            stock=(65_536, 16_777_216),
        ),
        "embedding_gemma2": Family(
            "allocembed.backbones.gemma.backbone:GemmaBackbone",
            GEMMA_PIPELINES,
            text_half="allocembed.backbones.gemma.text_half:GemmaTextHalf",
            reader="allocembed.backbones.gemma.inputs:read_inputs",
            transformers="5.19",
            options={"audio_config": None},  # the audio tower is not loaded
        ),
        "siglip2": Family(
            "allocembed.backbones.siglip.backbone:SiglipBackbone",
            SIGLIP_PIPELINES,
            reader="allocembed.backbones.siglip.inputs:read_inputs",
        ),
    },
)
"""Families by transformers' model type."""


@dataclass(frozen=True)
class BackboneEntry:
    """A short name: where its weights are, and what is known of the model."""

    source: str
    family: str | None = None
    """Model type; None if only the checkpoint tells."""
    notice: str | None = None
    """Logged when a user loads the model."""
    allocator: str | None = None
    """Folder of the bundled allocator."""
    inputs: str | None = None
    """Name of the input pipeline, if it is not the family's first."""
    matryoshka: bool = True
    """Whether the first dimensions of a vector may be used alone. False only if it is known that they may not."""
    dims: tuple[int, ...] = ()
    """The lengths of vectors that the model was trained for, if only some are."""


REGISTRY: Names[BackboneEntry] = Names(
    "allocembed.backbones",
    {
        "qwen3-vl-embedding-2b": BackboneEntry("Qwen/Qwen3-VL-Embedding-2B", "qwen3_vl"),
        "qwen3-vl-embedding-8b": BackboneEntry("Qwen/Qwen3-VL-Embedding-8B", "qwen3_vl"),
        "vlm2vec-v2-2b": BackboneEntry("VLM2Vec/VLM2Vec-V2.0", "qwen2_vl", matryoshka=False),
        "vlm2vec-qwen2vl-7b": BackboneEntry(
            "TIGER-Lab/VLM2Vec-Qwen2VL-7B", "qwen2_vl", inputs="vlm2vec-v1", matryoshka=False
        ),
        "gme-qwen2-vl-2b": BackboneEntry("Alibaba-NLP/gme-Qwen2-VL-2B-Instruct", "qwen2_vl", inputs="gme"),
        "gme-qwen2-vl-7b": BackboneEntry("Alibaba-NLP/gme-Qwen2-VL-7B-Instruct", "qwen2_vl", inputs="gme"),
        # UniME-V2 is evaluated with VLM2Vec-V1's code: its prompts, and its squares of 1344 pixels.
        "unime-v2-2b": BackboneEntry("TianchengGu/UniME-V2-Qwen2VL-2B", "qwen2_vl", inputs="vlm2vec-v1"),
        "unime-v2-7b": BackboneEntry("TianchengGu/UniME-V2-Qwen2VL-7B", "qwen2_vl", inputs="vlm2vec-v1"),
        "ops-mm-embedding-v1-2b": BackboneEntry("OpenSearch-AI/Ops-MM-embedding-v1-2B", "qwen2_vl", inputs="ops-mm"),
        "ops-mm-embedding-v1-7b": BackboneEntry("OpenSearch-AI/Ops-MM-embedding-v1-7B", "qwen2_vl", inputs="ops-mm"),
        "embeddinggemma-2": BackboneEntry("google/embeddinggemma-2", "embedding_gemma2", dims=(768, 512, 256, 128)),
        "siglip2-base-naflex": BackboneEntry("google/siglip2-base-patch16-naflex", "siglip2", matryoshka=False),
    },
)
"""Checkpoints by short name."""
