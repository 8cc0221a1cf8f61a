"""AllocEmbed's own: a trained policy looks at small previews and at the task text, and gives every chunk its scale."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from allocembed.allocators.base import Allocator, Plan
from allocembed.backbones.base import Backbone, BackboneError
from allocembed.budget import FRAMES_PER_CHUNK, Budget
from allocembed.frames import Clip
from allocembed.policy.preview import DEFAULT_TASK, Previewer, load_previewer
from allocembed.policy.scale_policy import PolicyError, ScalePolicy


class Learned(Allocator):
    """All candidates kept; each chunk wishes for the mean of its Beta distribution (equation 7), mapped to the range.

    Planning is safe in another thread than the backbone's, even where both are one model: neither changes anything in
    it. On CUDA it runs in a stream of its own, because a plan that has to be known on the host would otherwise wait
    for all that the backbone has been given to do. Weights must not change after construction.
    """

    name = "learned"

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
            self._stream = torch.cuda.Stream(previewer.device)
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
            return cls(policy, load_previewer(*named, backbone, device, dtype))
        except BackboneError as error:
            raise PolicyError(
                f"the allocator {source} sees through {config.preview_source}, which can't be loaded: {error}"
            ) from error

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        low, high = scale_range
        return Plan(np.arange(len(clip)), low + self.actions(clip.frames, text) * (high - low))

    @torch.inference_mode()
    def actions(self, frames: np.ndarray, text: str | None = None) -> np.ndarray:
        """What each chunk of (T, H, W, 3) frames is worth, (C,) in [0, 1]: the means of the policy's distributions."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            visual = self.previewer.look(as_chunks(frames))
            words = self.previewer.read([DEFAULT_TASK if text is None else text])[0]
            alpha, beta = self.policy(visual[None], words[None])
            return (alpha / (alpha + beta))[0].double().cpu().numpy()


def as_chunks(frames: np.ndarray) -> torch.Tensor:
    """(T, H, W, 3) frames as (C, 2, 3, H, W) chunks; an odd last frame is paired with itself.

    >>> as_chunks(np.zeros((5, 4, 6, 3), np.uint8)).shape
    torch.Size([3, 2, 3, 4, 6])
    """
    frames = np.ascontiguousarray(frames)
    if len(frames) % FRAMES_PER_CHUNK:
        frames = np.concatenate([frames, frames[-1:]])
    return torch.from_numpy(frames).permute(0, 3, 1, 2).unflatten(0, (-1, FRAMES_PER_CHUNK))
