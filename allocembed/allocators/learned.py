"""AllocEmbed's own method: a trained policy sees small previews and the question, and gives each chunk its scale."""

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.backbones.base import Backbone
from allocembed.digests import weights_digest
from allocembed.errors import BackboneError, PolicyError
from allocembed.paths import is_folder
from allocembed.policy.preview import Previewer, asks, load_previewer
from allocembed.policy.replay import Replay
from allocembed.policy.scale_policy import ScalePolicy
from allocembed.resize import as_chunks, send
from allocembed.video.clip import Clip

WORDS = 32  # for CUDA graphs, texts are padded to a multiple of this many tokens, so that few graphs serve all


class Learned(Allocator):
    """Keeps all candidates; a chunk's scale is the mean of its Beta distribution (equation 7), mapped to the range.

    Planning is safe in another thread than the backbone's, even if both share one model, because neither changes it. On
    CUDA it runs in a stream of its own, so that a plan does not wait for the backbone's queue, and as one CUDA graph
    per shape. Weights must not change after construction.
    """

    name = "learned"
    takes_tensors = True
    needs_backbone = True

    def __init__(self, policy: ScalePolicy, previewer: Previewer) -> None:
        config, widths = policy.config.module, (previewer.visual_width, previewer.text_width)
        if (config.visual_width, config.text_width) != widths:
            raise PolicyError(
                f"the allocator was trained on features of width {config.visual_width} and {config.text_width}, but "
                f"{previewer.source} gives {widths[0]} and {widths[1]}: its preview model must be "
                f"{policy.config.preview_source}, as in training"
            )
        self.previewer = previewer
        self.policy = policy.float().to(previewer.device).eval()
        self.scale_range = policy.config.scale_range
        self._start()

    def _start(self) -> None:
        """Create the stream and the graphs, which a pickle cannot hold."""
        self._stream: torch.cuda.Stream | None = None
        device = self.previewer.device
        if device.type == "cuda":
            half = self.previewer.dtype != torch.float32
            self._replay = Replay(self._means, self._prepare, works=half)
            self._stream = torch.cuda.Stream(device, priority=-1)  # its kernels are short, so they go first
            self._stream.wait_stream(torch.cuda.current_stream(device))  # the weights may still be on their way

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_stream", "_replay")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    @classmethod
    def from_options(cls, options: str, backbone: Backbone | None) -> Self:
        """The allocator that is bundled for a backbone."""
        folder = None if backbone is None else backbone.allocator
        if options or folder is None:
            target = "without a backbone" if backbone is None else f"for {backbone.name}"
            raise PolicyError(
                f"no learned allocator is bundled {target}: pass --allocator FOLDER_OR_HUB_ID, train one with "
                f"allocembed train --backbone {'NAME' if backbone is None else backbone.name}, or use uniform"
            )
        if not is_folder(folder):
            raise PolicyError(
                f"the bundled allocator is missing from this installation ({folder}): install its package again, or "
                "pass the folder of a copy with --allocator"
            )
        return cls.from_pretrained(folder, backbone)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        backbone: Backbone | None = None,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
    ) -> Self:
        """Load a policy from a folder or hub id, and the preview model it names, which may be `backbone` itself.

        Device and dtype are those of the backbone, if there is one; the policy always computes in fp32.
        """
        policy = ScalePolicy.from_pretrained(source)
        config = policy.config
        if backbone is not None and not backbone.has_weights:
            # As inside vLLM: the policy brings its own preview model.
            stated = backbone.load_arguments or {}
            backbone, device, dtype = None, stated.get("device", device), stated.get("dtype", dtype)
        if backbone is not None:
            device, dtype = backbone.device, backbone.dtype
        try:
            named = (config.preview, config.preview_source, config.preview_tokens)
            return cls(policy, load_previewer(*named, backbone, device, dtype, summary=config.module.summary))
        except BackboneError as error:
            raise PolicyError(
                f"cannot load {config.preview_source}, the preview model of the allocator {source}: {error}"
            ) from error

    def identity(self) -> str:
        fits = "" if self.policy.config.grow else " never enlarged"
        return f"{self.name} {weights_digest(self.policy)}{fits} sees {self.previewer.identity()}"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        per_chunk = request.geometry.frames_per_chunk
        if per_chunk != self.previewer.frames_per_chunk:
            raise PolicyError(
                f"the allocator was loaded for chunks of {self.previewer.frames_per_chunk} frames, the backbone has "
                f"chunks of {per_chunk}: load it with Learned.from_pretrained(source, backbone)"
            )
        low, high = request.scale_range
        scales = low + self.actions(clip.frames, request.question) * (high - low)
        read, made = self.previewer.tokens_of(clip.height, clip.width, asked=asks(request.question))
        return Plan(
            np.arange(len(clip)),
            scales,
            grow=self.policy.config.grow,
            look_tokens=len(scales) * read,
            look_tower_tokens=len(scales) * made,
        )

    @torch.inference_mode()
    def actions(self, frames: np.ndarray | torch.Tensor, question: str | None = None) -> np.ndarray:
        """The value of each chunk of (T, H, W, 3) frames, (C,) in [0, 1]: the mean of its distribution.

        Frames may be a tensor on the GPU; planning then waits for the caller's current stream, which makes them.
        """
        asked, chunks = asks(question), as_chunks(frames, self.previewer.frames_per_chunk)
        if self._stream is None:
            return self._mean(self.previewer.look(chunks, asked=asked), self._words(question), None).double().numpy()
        if chunks.is_cuda:
            self._stream.wait_stream(torch.cuda.current_stream(chunks.device))
        with torch.cuda.stream(self._stream):
            # All frames are moved, because a GPU resizes them faster than a CPU does.
            chunks = send(chunks, self.previewer.device)
            if len(chunks) > self.previewer.at_once(chunks):
                visual = self.previewer.look(chunks, asked=asked)
                return self._mean(visual, self._words(question), None).double().cpu().numpy()
            return self._weigh(self.previewer.shrink(chunks), question)

    @torch.inference_mode()
    def weigh(self, small: torch.Tensor, question: str | None = None) -> np.ndarray:
        """`actions` of previews (C, frames_per_chunk, 3, h, w), uint8 on the host, as `previewer.shrink` makes them."""
        if self._stream is None:
            visual = self.previewer.features(small, self.previewer.prepare(small, asked=asks(question)))
            return self._mean(visual, self._words(question), None).double().numpy()
        with torch.cuda.stream(self._stream):
            return self._weigh(send(small, self.previewer.device), question)

    def _weigh(self, small: torch.Tensor, question: str | None) -> np.ndarray:
        words = self._words(question)
        mask = torch.arange(-(-len(words) // WORDS) * WORDS, device=words.device) < len(words)
        words = F.pad(words, (0, 0, 0, len(mask) - len(words)))
        return self._replay(asks(question), small, words, mask).double().numpy()

    def _words(self, question: str | None) -> torch.Tensor:
        return self.previewer.read([question or ""])[0]

    def _prepare(self, asked: bool, small: torch.Tensor, *_: torch.Tensor) -> object:
        return self.previewer.prepare(small, asked=asked)

    def _means(self, prepared: object, small: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self._mean(self.previewer.features(small, prepared), words, mask)

    def _mean(self, visual: torch.Tensor, words: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Means (C,) from features (C, P, width) of the chunks and (L, width) of the text.

        In half precision if the features are, on CUDA; the head is always in float32.
        """
        half = visual.is_cuda and self.previewer.dtype != torch.float32
        # Without the cache of converted weights, which must not outlive the capture of a graph.
        with torch.autocast(visual.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            alpha, beta = self.policy(visual[None], words[None], None, None if mask is None else mask[None])
        return (alpha / (alpha + beta))[0]
