"""How the pictures of a file on a card are to be shown: their colours, shape and turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from allocembed.video.decoders.base import CannotDecodeHere, HardwareError
from allocembed.video.decoders.colours import Colours, Orientation
from allocembed.video.decoders.pyav import BT601, FULL_RANGE, MATRICES, display_turn, shown_width

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

    from allocembed.video.packets import Demuxer

FORMATS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10}


@dataclass(frozen=True)
class Look:
    """What a file's first keyframe says about all of its pictures."""

    colours: Colours
    orientation: Orientation
    width: int
    """Pixels across, once they are square."""
    size: tuple[int, int]
    """Height and width as coded."""

    @property
    def bytes(self) -> int:
        """Of a picture on the card."""
        return self.size[0] * self.size[1] * 3 // 2 * (1 if self.colours.bits == 8 else 2)

    @property
    def rgb_bytes(self) -> int:
        """Of a picture as it is shown."""
        return 3 * self.size[0] * self.width

    def to_rgb(self, frame: Any) -> torch.Tensor:
        """A picture of the card's library to an upright (H, W, 3) uint8 RGB tensor with square pixels."""
        height, width = self.size
        with HardwareError.wrapped():
            surface = torch.from_dlpack(frame)
        if surface.shape != (height * 3 // 2, width):
            raise CannotDecodeHere("frames of different sizes")
        if self.colours.bits > 8:  # the library states a wrong step between 16-bit words
            surface = surface.as_strided(surface.shape, (surface.stride(0), 1))
        return self.orientation.apply(self.colours.to_rgb(surface, self.width)).contiguous()


def look_at(demuxer: Demuxer, frame: VideoFrame) -> Look:
    """How pictures like this one, which FFmpeg has decoded, are shown."""
    if frame.format.name not in FORMATS or frame.width % 2 or frame.height % 2:
        raise CannotDecodeHere(f"{frame.format.name} of {frame.width}x{frame.height}")
    if frame.interlaced_frame:
        raise CannotDecodeHere("interlaced pictures")
    width = shown_width(demuxer, frame)
    demuxer.limits.check_pixels(width, frame.height, demuxer.source)
    matrix = MATRICES.get(frame.colorspace, BT601)
    full = frame.color_range == FULL_RANGE or frame.format.name == "yuvj420p"
    colours = Colours(matrix, full, FORMATS[frame.format.name])
    return Look(colours, Orientation(*display_turn(frame)), width, (frame.height, frame.width))
