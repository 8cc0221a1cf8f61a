"""AllocEmbed's own: a trained policy looks at small previews and at the task text, and gives every chunk its scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.allocators.base import Allocator, Plan
from allocembed.backbones.base import Backbone, BackboneError
from allocembed.budget import FRAMES_PER_CHUNK, Budget
from allocembed.frames import Clip
from allocembed.policy.preview import Previewer, asks, load_previewer
from allocembed.policy.replay import Replay
from allocembed.policy.scale_policy import PolicyError, ScalePolicy
from allocembed.resize import send

WORDS = 32  # a CUDA graph is given texts padded to a multiple of so many tokens, so that few graphs serve all


class Learned(Allocator):
    """All candidates kept; each chunk wishes for the mean of its Beta distribution (equation 7), mapped to the range.

    Planning is safe in another thread than the backbone's, even where both are one model: neither changes anything in
    it. On CUDA it runs in a stream of its own, because a plan that has to be known on the host would otherwise wait
    for all that the backbone has been given to do, and as one CUDA graph for every shape. Weights must not change after
    construction.
    """

    name = "learned"
    takes_tensors = True

    def __init__(self, policy: ScalePolicy, previewer: Previewer) -> None:
        config, widths = policy.config.module, (previewer.visual_width, previewer.text_width)
        if (config.visual_width, config.text_width) != widths:
            raise PolicyError(
                f"the allocator was trained on features of width {config.visual_width} and {config.text_width}, but "
                f"{previewer.source} gives {widths[0]} and {widths[1]}: its preview model must be "
                f"{policy.config.preview_source}, as it was in training"
            )
        self.previewer = previewer
        self.policy = policy.float().to(previewer.device).eval()
        self.scale_range = policy.config.scale_range
        self._stream: torch.cuda.Stream | None = None
        if previewer.device.type == "cuda":
            half = previewer.dtype != torch.float32
            self._replay = Replay(self._means, self._prepare, works=half)
            self._stream = torch.cuda.Stream(previewer.device, priority=-1)  # short kernels, so they go first
            self._stream.wait_stream(torch.cuda.current_stream(previewer.device))  # the weights may be on their way

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        backbone: Backbone | None = None,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
    ) -> Learned:
        """Loads a policy from a folder or hub id, and the preview model it names: `backbone` itself where it is that.

        Device and dtype are the backbone's where there is one; the policy itself always computes in fp32.
        """
        policy = ScalePolicy.from_pretrained(source)
        config = policy.config
        if backbone is not None:
            device, dtype = backbone.device, backbone.dtype
        try:
            named = (config.preview, config.preview_source, config.preview_tokens)
            return cls(policy, load_previewer(*named, backbone, device, dtype, summary=config.module.summary))
        except BackboneError as error:
            raise PolicyError(
                f"the allocator {source} sees through {config.preview_source}, which can't be loaded: {error}"
            ) from error

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        low, high = scale_range
        return Plan(np.arange(len(clip)), low + self.actions(clip.frames, text) * (high - low))

    @torch.inference_mode()
    def actions(self, frames: np.ndarray | torch.Tensor, text: str | None = None) -> np.ndarray:
        """What each chunk of (T, H, W, 3) frames is worth, (C,) in [0, 1]: the means of the policy's distributions.

        Frames may be a tensor on the GPU; then planning waits for the caller's current stream, where they come from.
        """
        if self._stream is None:
            visual = self.previewer.look(as_chunks(frames), asked=asks(text))
            return self._mean(visual, self._words(text), None).double().numpy()
        if isinstance(frames, torch.Tensor) and frames.is_cuda:
            self._stream.wait_stream(torch.cuda.current_stream(frames.device))
        with torch.cuda.stream(self._stream):
            # All frames are moved, because a GPU makes them small sooner than a CPU does.
            chunks = send(as_chunks(frames), self.previewer.device)
            if len(chunks) > self.previewer.at_once(chunks):
                visual = self.previewer.look(chunks, asked=asks(text))
                return self._mean(visual, self._words(text), None).double().cpu().numpy()
            return self._weigh(self.previewer.shrink(chunks), text)

    @torch.inference_mode()
    def weigh(self, small: torch.Tensor, text: str | None = None) -> np.ndarray:
        """`actions` for previews (C, 2, 3, h, w), uint8 on the host, of the size that `previewer.shrink` gives."""
        if self._stream is None:
            visual = self.previewer.features(small, self.previewer.prepare(small, asked=asks(text)))
            return self._mean(visual, self._words(text), None).double().numpy()
        with torch.cuda.stream(self._stream):
            return self._weigh(send(small, self.previewer.device), text)

    def _weigh(self, small: torch.Tensor, text: str | None) -> np.ndarray:
        words = self._words(text)
        mask = torch.arange(-(-len(words) // WORDS) * WORDS, device=words.device) < len(words)
        words = F.pad(words, (0, 0, 0, len(mask) - len(words)))
        return self._replay(asks(text), small, words, mask).double().numpy()

    def _words(self, text: str | None) -> torch.Tensor:
        return self.previewer.read([text or ""])[0]

    def _prepare(self, asked: bool, small: torch.Tensor, *_: torch.Tensor) -> object:
        return self.previewer.prepare(small, asked=asked)

    def _means(self, prepared: object, small: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self._mean(self.previewer.features(small, prepared), words, mask)

    def _mean(self, visual: torch.Tensor, words: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(C,) means from features (C, P, width) of the chunks and (L, width) of the text.

        In half precision where the features are, on CUDA; the head is in float32 always.
        """
        half = visual.is_cuda and self.previewer.dtype != torch.float32
        # Without the cache of weights, which must not outlive the capture of a graph.
        with torch.autocast(visual.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            alpha, beta = self.policy(visual[None], words[None], None, None if mask is None else mask[None])
        return (alpha / (alpha + beta))[0]


def as_chunks(frames: np.ndarray | torch.Tensor) -> torch.Tensor:
    """(T, H, W, 3) frames as (C, 2, 3, H, W) chunks, where they are; an odd last frame is paired with itself.

    >>> as_chunks(np.zeros((5, 4, 6, 3), np.uint8)).shape
    torch.Size([3, 2, 3, 4, 6])
    """
    if isinstance(frames, np.ndarray):
        frames = torch.from_numpy(np.ascontiguousarray(frames))
    if len(frames) % FRAMES_PER_CHUNK:
        frames = torch.cat([frames, frames[-1:]])
    return frames.permute(0, 3, 1, 2).unflatten(0, (-1, FRAMES_PER_CHUNK))
