"""EmbeddingGemma 2's ordinary path: all frames padded to one number of patches, through the model's own forward."""

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import Backbone, Item, TokenRow


@torch.no_grad()
def plain_vector(backbone: Backbone, item: Item, row: TokenRow) -> torch.Tensor:
    """The vector (1, dim) of an item with frames, with the mean over all tokens."""
    assert item.patches is not None
    merge, grids = backbone.geometry.merge, item.patches.grids
    counts = grids.prod(-1) * merge**2
    pixels, places = [], []
    for (rows, cols), own in zip(grids.tolist(), item.patches.pixels.split(counts.tolist()), strict=True):
        # Ours has the patches of a token together, the model's own order is row by row.
        lines = own.view(rows, cols, merge, merge, -1).transpose(1, 2).flatten(0, 3)
        at = torch.from_numpy(np.indices((rows * merge, cols * merge)).reshape(2, -1).T[:, ::-1].copy())
        missing = int(counts.max()) - len(own)
        pixels.append(F.pad(lines.float() / 255, (0, 0, 0, missing)))
        places.append(F.pad(at, (0, 0, 0, missing), value=-1))
    ids = torch.from_numpy(row.ids)[None]
    given = {"pixel_values_videos": torch.stack(pixels), "video_position_ids": torch.stack(places)}
    given["num_frames_per_video"] = torch.tensor([len(grids)])
    if item.prompt.picture:
        given = {"pixel_values": torch.stack(pixels), "image_position_ids": torch.stack(places)}
    states = backbone.model(input_ids=ids, attention_mask=torch.ones_like(ids), **given).last_hidden_state
    return F.normalize(states.mean(1), dim=-1)
