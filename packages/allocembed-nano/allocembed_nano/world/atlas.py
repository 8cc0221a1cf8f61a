"""The pictures that the renderer needs: object sprites, word sprites and a bank of backgrounds.

They are bundled; `recipes/nano_atlas.py` draws them.
"""

from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

BUNDLED = Path(__file__).parent.parent / "assets" / "nano-world" / "atlas.npz"

OBJECT_SIDE, OBJECT_GLYPH = 64, 56
"""Side of an object sprite, and of the glyph centred in it. The margin holds the outline."""
WORD_HEIGHT, WORD_WIDTH, WORD_LETTERS = 32, 192, 28
"""Size of a word sprite, and the height of its letters."""
BANK_HEIGHT, BANK_WIDTH = 144, 192
LEVELS = 4


@dataclass(frozen=True, eq=False)
class Atlas:
    """Pictures as uint8 tensors. Fillers are the last objects and words. Atlases compare by identity."""

    objects: torch.Tensor
    """(objects, 64, 64) coverage."""
    words: torch.Tensor
    """(words, 32, 192) coverage."""
    pictures: torch.Tensor
    """(pictures, 3, 144, 192) backgrounds: places, busy textures, filler cards."""

    def save(self, path: str | Path) -> Path:
        """Write a compressed .npz file of about 2.5 MB."""
        path = Path(path)
        with path.open("wb") as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name).cpu().numpy() for f in fields(self)})
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Atlas":
        with np.load(path) as arrays:
            return cls(**{f.name: torch.from_numpy(arrays[f.name]) for f in fields(cls)})

    def to(self, device: str | torch.device) -> "Atlas":
        return Atlas(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


@lru_cache(maxsize=4)
def load_atlas(device: str = "cpu") -> Atlas:
    """Load the bundled atlas. Cached per device."""
    return Atlas.load(BUNDLED).to(device)


def pyramid(sprites: torch.Tensor) -> torch.Tensor:
    """Filter (N, C, H, W) sprites in 0..1 to (N, LEVELS, C, H, W): level k has no detail finer than 2**k texels.

    All levels keep the full size, so a reduced sprite is one lookup in a mix of two levels.

    >>> pyramid(torch.rand(2, 1, 64, 64)).shape
    torch.Size([2, 4, 1, 64, 64])
    """
    levels = [sprites]
    for level in range(1, LEVELS):
        small = F.avg_pool2d(sprites, 2**level)
        levels.append(F.interpolate(small, size=sprites.shape[-2:], mode="bilinear", align_corners=False))
    return torch.stack(levels, dim=1)
