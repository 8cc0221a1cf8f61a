"""Previews by SmolVLM2, as in the paper."""

import json
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

from allocembed.backbones.devices import pick_device, pick_dtype
from allocembed.backbones.hub import find_folder
from allocembed.backbones.loading import OWN_CODE, load_model
from allocembed.digests import weights_digest
from allocembed.errors import BackboneError
from allocembed.geometry import Geometry
from allocembed.policy.preview import Previewer
from allocembed.resize import normalise

SMOLVLM2 = "HuggingFaceTB/SmolVLM2-256M-Video-Instruct"


class SmolPreview(Previewer):
    """SmolVLM2: its vision tower and connector on every frame, its language model on texts.

    Frames fill the checkpoint's own square, without its tiles: 64 tokens per frame for 512 pixels. The features of the
    frames of a chunk are averaged.
    """

    def __init__(
        self,
        source: str = SMOLVLM2,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        frames_per_chunk: int = 2,
    ) -> None:
        """`frames_per_chunk` is that of the backbone in use."""
        super().__init__(frames_per_chunk, model_frames=1)
        chosen = pick_device(device)
        self.source = source
        model, self.tokenizer, self.geometry = _load(source, pick_dtype(dtype, chosen))
        self.model = model.to(chosen).eval().requires_grad_(False)
        self.side = model.config.vision_config.image_size
        self.visual_width = self.text_width = model.config.text_config.hidden_size
        self.positions = self._find_positions()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def identity(self) -> str:
        return weights_digest(self.model)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        return self.side, self.side

    def _prepare(self, small: torch.Tensor, asked: bool) -> None:
        return None

    def _features(self, small: torch.Tensor, prepared: None) -> torch.Tensor:
        frames = small.flatten(0, 1)
        pixels = normalise(frames.flatten(1), self.geometry, self.dtype).view(frames.shape)
        # get_image_features without its search for padding, which would wait for a GPU.
        tower = self.model.vision_model
        hidden = self._embed(pixels) + tower.embeddings.position_embedding(self.positions)
        hidden = tower.post_layernorm(tower.encoder(inputs_embeds=hidden, attention_mask=None).last_hidden_state)
        return self.model.connector(hidden).float()

    def _embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """Frames (N, 3, side, side) to patches (N, patches, width): a matrix product on CUDA, else the convolution."""
        kernel, patch = self.model.vision_model.embeddings.patch_embedding, self.geometry.patch
        if not pixels.is_cuda:
            return kernel(pixels).flatten(2).transpose(1, 2)
        cut = pixels.unflatten(3, (-1, patch)).unflatten(2, (-1, patch)).permute(0, 2, 4, 1, 3, 5)
        return F.linear(cut.flatten(3).flatten(1, 2), kernel.weight.flatten(1), kernel.bias)

    @torch.no_grad()
    def _find_positions(self) -> torch.Tensor:
        """Ids (1, patches) of the learned positions of a frame, as the library's own code computes them."""
        embeddings, found = self.model.vision_model.embeddings, []
        hook = embeddings.position_embedding.register_forward_pre_hook(lambda _, ids: found.append(ids[0]))
        across = self.side // self.geometry.patch
        blank = torch.zeros((1, 3, self.side, self.side), device=self.device, dtype=self.dtype)
        embeddings(blank, torch.ones((1, across, across), device=self.device, dtype=torch.bool))
        hook.remove()
        return found[0]

    def states(self, texts: list[str]) -> list[torch.Tensor]:
        rows = [torch.tensor(ids) for ids in self.tokenizer(texts)["input_ids"]]
        # Padded on the right and causal, so no token sees the padding.
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)
        hidden = self.model.text_model(input_ids=ids, use_cache=False).last_hidden_state
        # Copies, so that no row keeps the whole batch in memory.
        return [states[: len(row)].to(torch.float32, copy=True) for states, row in zip(hidden, rows, strict=True)]


def _load(source: str, dtype: torch.dtype) -> tuple[Any, Any, Geometry]:
    """Model, tokenizer and geometry."""
    try:
        folder = find_folder(source, source)
    except BackboneError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise BackboneError(
            f"cannot load the preview model {source!r} ({cause}): download it with hf download {SMOLVLM2}, or pass its "
            "folder"
        ) from error
    try:
        model: Any = load_model(folder, dtype)
        if model.config.model_type != "smolvlm":
            raise BackboneError(f"{folder} is a {model.config.model_type} model: the preview smolvlm2 needs SmolVLM2")
        stated = folder / "preprocessor_config.json"
        settings = json.loads(stated.read_text()) if stated.is_file() else {}
        # Default: the statistics of SigLIP.
        statistics: list[Any] = [
            tuple(map(float, settings.get(key, (0.5,) * 3))) for key in ("image_mean", "image_std")
        ]
        vision = model.config.vision_config
        side, patch, merge = vision.image_size, vision.patch_size, model.config.scale_factor
        geometry = Geometry(patch, merge, statistics[0], statistics[1], side**2, side**2, frames_per_chunk=1)
        return model, AutoTokenizer.from_pretrained(folder, **OWN_CODE), geometry
    except BackboneError:
        raise
    except Exception as error:  # damaged files raise errors of every kind
        raise BackboneError(
            f"cannot load the preview model in {folder} ({type(error).__name__}: {error}): the folder is incomplete or "
            "damaged; download or save it again"
        ) from error
