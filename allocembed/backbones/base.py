"""The interface of every backbone: prompts and pixels in, unit vectors out.

A family implements six methods: how a prompt becomes tokens (`token_ids`), how tokens and chunk sizes become rows
(`rows`), the vision tower in two steps (`prepare_tower`, `run_tower`), and the language model in two steps
(`prepare_rows`, `pool`). A family that reads texts adds their states (`text_states`). The steps are split so that
whatever depends on sizes alone is computed before the device starts, and so that training can share the tower's output
between rows. Everything else in the package uses this interface only.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from allocembed.backbones.batches import PendingVectors, group_rows
from allocembed.backbones.variants import Look, LookSize, Variants, whole_variants
from allocembed.digests import weights_digest
from allocembed.errors import BackboneError
from allocembed.inputs import Inputs
from allocembed.resize import Patches, normalise, send

Batching = Literal["pad", "pack"]
LONGEST_TEXT = 1_000_000  # characters: far more tokens than any of the models reads


@dataclass(frozen=True, eq=False)
class Prompt:
    """The texts and times of a row, without its pixels.

    `seconds` (C,) are the mean times of the chunks of a video, None for a text. `instruction` is None for the model's
    own default. `picture` says that the one chunk is a picture, for which a model may have another layout.
    """

    text: str | None = None
    instruction: str | None = None
    seconds: np.ndarray | None = None
    picture: bool = False

    def __post_init__(self) -> None:
        if self.text is None and self.seconds is None:
            raise ValueError("nothing to embed: give a text, a video, or both")


@dataclass(frozen=True, eq=False)
class Item:
    """One thing to embed: a prompt and, for a video, the pixels of its chunks."""

    prompt: Prompt
    patches: Patches | None = None

    @property
    def grids(self) -> np.ndarray:
        """(C, 2) token rows and cols of the chunks."""
        return np.empty((0, 2), np.int64) if self.patches is None else self.patches.grids


@dataclass(frozen=True, eq=False)
class TokenRow:
    """Tokens of one item: ids (S,), positions (axes, S), and which of them are visual (S,) bool."""

    ids: np.ndarray
    positions: np.ndarray
    visual: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class TowerOutput:
    """Output of the vision tower for C chunks with N visual tokens."""

    tokens: torch.Tensor
    """(N, width)"""
    deepstack: tuple[torch.Tensor, ...] = ()
    """(N, width) each: tokens that some families add after their first language layers."""
    chunks: torch.Tensor | None = None
    """(C, width) a state of each whole chunk, such as a class token, in families that have one."""

    def select(self, tokens: torch.Tensor, chunks: torch.Tensor) -> Self:
        """The tokens and the chunk states at these places."""
        states = None if self.chunks is None else self.chunks[chunks]
        return type(self)(self.tokens[tokens], tuple(layer[tokens] for layer in self.deepstack), states)

    @staticmethod
    def concat(parts: Sequence["TowerOutput"]) -> "TowerOutput":
        layers = zip(*(part.deepstack for part in parts), strict=True)
        states = [part.chunks for part in parts if part.chunks is not None]
        return TowerOutput(
            torch.cat([part.tokens for part in parts]),
            tuple(torch.cat(layer) for layer in layers),
            torch.cat(states) if states else None,
        )


@dataclass(frozen=True)
class Widths:
    """Lengths of a model's states and vectors."""

    tokens: int
    """Length of a visual token's state."""
    pooled: int
    """Length of the state that `pool` gives for a row."""
    vector: int
    """Length of the vector that `project` makes of it."""
    texts: int
    """Length of the state of a text's token: at least `pooled`. 0 for a model that reads no texts."""


class Backbone(ABC):
    """A frozen embedding model."""

    family: str
    """Model type, as in the registry."""
    query_instruction: str | None = None
    """Instruction that introduces a search sentence."""
    has_language_model: bool = True
    """Whether a language model reads the tokens of a row. Otherwise the tower does all the work."""
    looks: ClassVar[Sequence[tuple[LookSize, LookSize]]] = ((12, 24), (24, 6))
    """Sizes of all chunks, and of the one that changes, for each look of `sensitivity`: a number of tokens, or a share
    of the native ones, such as 0.25."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        inputs: Inputs,
        *,
        name: str,
        dim: int | None = None,
        notice: str | None = None,
        allocator: str | None = None,
        compile: bool = False,
    ) -> None:
        self.model: Any = model.eval().requires_grad_(False)  # its parts have other types in every family
        self.tokenizer: Any = tokenizer  # None if the family reads no texts
        self.inputs, self.geometry, self.name = inputs, inputs.geometry, name
        self.widths = self.find_widths()
        dimensions = self.widths.vector
        self.notice = notice
        self.allocator = allocator  # folder of the allocator bundled for this backbone
        self.compiled = compile
        if dim is not None and not 1 <= dim <= dimensions:
            raise BackboneError(f"{name} has {dimensions} dimensions: choose a dim from 1 to {dimensions}, not {dim}")
        self.dim = dim or dimensions
        # Whether the patch embedding is computed as a matrix product. The convolution is slow, but on a CPU it gives
        # the bits of the model's own path.
        self.patch_product = self.device.type == "cuda"
        self.load_arguments: dict[str, Any] | None = None  # set by load_backbone; a pickle then holds these only
        self.set_up()
        if self.reads_texts:
            self.tokenizer([""])  # some change their settings on the first call, which no two threads may make at once

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def reads_texts(self) -> bool:
        """Whether it embeds texts and questions. If not, videos are found by pictures and videos."""
        return self.widths.texts > 0

    @property
    def has_weights(self) -> bool:
        """Whether it can embed. Without weights it only writes prompts, as inside vLLM."""
        return self.device.type != "meta"

    @property
    def packs(self) -> bool:
        """Whether videos are prepared on the device and embedded in packed batches, as on a GPU."""
        return self.device.type == "cuda"

    @property
    def parameter_count(self) -> int:
        return sum(weights.numel() for weights in self.model.parameters())

    @cached_property
    def weights_digest(self) -> str:
        """Digest of all weights, which tells models of one name apart."""
        return weights_digest(self.model)

    def with_patch_product(self) -> Self:
        """A copy that shares the model and computes the patch embedding as a matrix product, which is faster."""
        other = object.__new__(type(self))  # copy.copy would go through `__reduce__` and load the model again
        vars(other).update(vars(self), patch_product=True)
        return other

    def __reduce__(self) -> Any:
        """Pickle the arguments of `load_backbone` instead of the weights, if that is where the model came from."""
        from allocembed.backbones.loading import reload_backbone

        if self.load_arguments is None:
            return super().__reduce__()
        return reload_backbone, (self.load_arguments, self.patch_product)

    # What a family implements

    @classmethod
    def find_query_instruction(cls, inputs: Inputs) -> str | None:
        """The instruction that introduces a search sentence with one of the family's pipelines."""
        return cls.query_instruction

    def describe_prompts(self) -> str:
        """Prompts, positions and pooling in words, to be said of a model that is not in the registry."""
        return "its prompts and pooling"

    def set_up(self) -> None:  # noqa: B027 (a family need not have any)
        """Prepare the model after construction, such as its attention functions."""

    def find_widths(self) -> Widths:
        """The widths of this model."""
        width = self.model.config.text_config.hidden_size
        return Widths(width, width, width, width)

    def project(self, pooled: torch.Tensor) -> torch.Tensor:
        """Pooled states (N, pooled) to vectors (N, vector) of full size, not yet normalised."""
        return pooled

    @abstractmethod
    def token_ids(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """Ids of each prompt, with one placeholder per chunk, whatever size the chunk will have. At least one prompt is
        given, and its texts have passed `check_text`."""

    @abstractmethod
    def rows(self, tokenised: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> list[TokenRow]:
        """Rows of tokenised prompts whose chunks have the grids (C, 2); each placeholder becomes the chunk's tokens."""

    @abstractmethod
    def prepare_tower(self, grids: np.ndarray) -> Any:
        """Everything the vision tower needs for chunks with grids (C, 2) besides their pixels, on the device."""

    @abstractmethod
    def run_tower(self, pixels: torch.Tensor, prepared: Any) -> TowerOutput:
        """The vision tower on normalised patches (N, patch_values). Never waits for the device."""

    @abstractmethod
    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> Any:
        """Rows on the device, padded or packed, with their masks: everything `pool` needs besides visual tokens."""

    def prepare_variants(self, ids: np.ndarray, looks: Sequence[Look], chunks: int) -> Variants:
        """Rows of one tokenised prompt that differ in the size of a single chunk. A family may share their work."""
        return whole_variants(self, ids, looks, chunks)

    @abstractmethod
    def pool(self, prepared: Any, features: TowerOutput | None = None) -> torch.Tensor:
        """The language model and the family's pooling: (N, pooled). Visual tokens come from `features`, in order."""

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """States (L_i, widths.texts), fp32, of the tokens of each text's row. The last one is what `pool` gives, with
        zeros after it if it is narrower. Only for a family that reads texts."""
        raise NotImplementedError(f"{type(self).__name__} reads texts and does not give their states")

    def reserved_words(self) -> Sequence[str]:
        """Strings that a text must not contain, because they stand for visual tokens."""
        return ()

    # What follows from it

    def tokenise(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """`token_ids` of any number of prompts. Raise BackboneError for a text that cannot be embedded."""
        for prompt in prompts:
            for text in (prompt.text, prompt.instruction):
                if text is not None:
                    self.check_text(text)
        return self.token_ids(prompts) if prompts else []

    def check_text(self, text: str) -> None:
        """Raise BackboneError for a text that cannot be embedded."""
        if not self.reads_texts:
            raise BackboneError(
                f"{self.name} embeds pictures and videos, not texts: leave out questions and instructions, and search "
                "by a picture or a video (--image, --like)"
            )
        for word in self.reserved_words():
            if word in text:
                raise BackboneError(f"the text contains {word}, which stands for a video: remove it from the text")
        if len(text) > LONGEST_TEXT:
            raise BackboneError(f"the text has {len(text):,} characters: shorten it to {LONGEST_TEXT:,}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BackboneError("the text is not valid Unicode: write it in UTF-8") from error

    def see(self, pixels: torch.Tensor, grids: np.ndarray) -> TowerOutput:
        """The vision tower on normalised patches (N, patch_values) of chunks with grids (C, 2)."""
        return self.run_tower(pixels, self.prepare_tower(grids))

    def vectors(self, pooled: torch.Tensor) -> torch.Tensor:
        """Pooled states (N, pooled) to unit vectors (N, dim), fp32."""
        return F.normalize(self.project(pooled)[:, : self.dim].float(), dim=-1)

    def read(
        self, rows: Sequence[TokenRow], features: TowerOutput | None = None, batching: Batching = "pad"
    ) -> torch.Tensor:
        """One forward pass of the language model: unit vectors (N, dim) on the model's device."""
        return self.vectors(self.pool(self.prepare_rows(rows, batching), features))

    def forward(self, items: Sequence[Item], rows: Sequence[TokenRow], batching: Batching = "pad") -> torch.Tensor:
        """One forward pass over items and their rows: unit vectors (N, dim) on the model's device."""
        videos = [item.patches for item in items if item.patches is not None]
        features = None
        if videos:
            pixels = torch.cat([send(patches.pixels, self.device) for patches in videos])
            pixels = normalise(pixels, self.geometry, self.dtype)
            sizes = np.concatenate([patches.grids for patches in videos])
            features = self.run_tower(pixels, self.prepare_tower(sizes))
        return self.read(rows, features, batching)

    def embed(self, items: Sequence[Item], *, batching: Batching = "pad", batch_tokens: int = 16384) -> torch.Tensor:
        """Unit vectors (N, dim), fp32 on the CPU, in the order of the items."""
        return self.begin(items, batching=batching, batch_tokens=batch_tokens).vectors()

    @torch.inference_mode()
    def begin(
        self, items: Sequence[Item], *, batching: Batching = "pad", batch_tokens: int = 16384
    ) -> "PendingVectors":
        """Begin to embed items. A GPU works by itself, so that the next items can be prepared meanwhile."""
        if batching not in ("pad", "pack"):
            raise ValueError(f"batching must be pad or pack, not {batching!r}")
        rows = self.rows(self.tokenise([item.prompt for item in items]), [item.grids for item in items])
        batches = group_rows([len(row) for row in rows], batch_tokens, padded=batching == "pad")
        made, done, on_gpu = [], None, self.device.type == "cuda"
        for batch in batches:
            vectors = self.forward([items[i] for i in batch], [rows[i] for i in batch], batching)
            made.append(vectors.to("cpu", non_blocking=on_gpu))
        if on_gpu:
            done = torch.cuda.Event()
            done.record(torch.cuda.current_stream(self.device))
        return PendingVectors(items, batches, made, self.dim, done)
