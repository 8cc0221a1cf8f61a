"""Colours, shape and turn of a file's pictures on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from allocembed.video.decoders.nvdec import CannotDecodeHere, HardwareError
from allocembed.video.decoders.nvdec.colours import MIDDLE, Colours, Orientation, Scaling
from allocembed.video.decoders.pyav import BT601, FULL_RANGE, MATRICES, PyAVDecoder, display_turn, shown_width

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

FORMATS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10}
PLACES = [(across, down) for down in (MIDDLE, 64, 192) for across in (64, MIDDLE)]
"""Places of chroma: on every second column or between two, and between two rows or on one of them."""
ROWS = 14  # of the noise that is compared: enough for all taps down, which are the same for every height above
_equal: dict[tuple[str, int, Colours, torch.device], bool] = {}
"""Whether pictures that are not scaled come out as FFmpeg's, by format, width, colours and GPU."""


@dataclass(frozen=True)
class Display:
    """Colours, orientation and size of a file's pictures, as its first keyframe states them."""

    colours: Colours
    orientation: Orientation
    scaling: Scaling | None
    """None if luma stays as it is and chroma need not be interpolated."""
    width: int
    """Pixels across, once they are square."""
    size: tuple[int, int]
    """Height and width as coded."""

    @property
    def bytes(self) -> int:
        """Bytes of a picture on the GPU."""
        return self.size[0] * self.size[1] * 3 // 2 * (1 if self.colours.bits == 8 else 2)

    @property
    def rgb_bytes(self) -> int:
        """Bytes of a picture as it is shown."""
        return 3 * self.size[0] * self.width

    def to_rgb(self, frame: Any) -> torch.Tensor:
        """A picture of the GPU's library to an upright (H, W, 3) uint8 RGB tensor with square pixels."""
        height, width = self.size
        with HardwareError.wrapped():
            surface = torch.from_dlpack(frame)
        if surface.shape != (height * 3 // 2, width):
            raise CannotDecodeHere("frames of different sizes")
        if self.colours.bits > 8:  # the library states a wrong step between 16-bit words
            surface = surface.as_strided(surface.shape, (surface.stride(0), 1))
        return self.orientation.apply(self.colours.to_rgb(surface, self.scaling)).contiguous()


def check_format(frame: VideoFrame) -> int:
    """Bits of a picture that FFmpeg has decoded. Raise CannotDecodeHere if `Display` does not show pictures like it."""
    if frame.format.name not in FORMATS or frame.width % 2 or frame.height % 2:
        raise CannotDecodeHere(f"{frame.format.name} of {frame.width}x{frame.height}")
    if frame.interlaced_frame:
        raise CannotDecodeHere("interlaced pictures")
    return FORMATS[frame.format.name]


def find_display(decoder: PyAVDecoder, frame: VideoFrame, device: torch.device) -> Display:
    """The display on a device of pictures like this one, which FFmpeg has decoded."""
    demuxer, bits, width = decoder.demuxer, check_format(frame), shown_width(decoder.demuxer, frame)
    demuxer.limits.check_pixels(width, frame.height, demuxer.source)
    matrix = MATRICES.get(frame.colorspace, BT601)
    colours = Colours(matrix, frame.color_range == FULL_RANGE or frame.format.name == "yuvj420p", bits)
    scaling = _find_scaling(decoder, frame, colours, width, device)
    return Display(colours, Orientation(*display_turn(frame)), scaling, width, (frame.height, frame.width))


def _find_scaling(
    decoder: PyAVDecoder, frame: VideoFrame, colours: Colours, width: int, device: torch.device
) -> Scaling | None:
    """FFmpeg's scaling of pictures like this one to `width`. None if it does not scale them.

    FFmpeg converts differently on some processors, PyAV does not tell where chroma lies, and a compiler may err
    on a new GPU. So a picture of noise is converted both ways, ours on the device. If none gives FFmpeg's picture,
    CannotDecodeHere is raised.
    """
    if colours.bits == 8 and width == frame.width:
        kind = frame.format.name, width, colours, device
        if kind not in _equal:
            expected = _noise_by_ffmpeg(decoder, frame, colours.bits)
            _equal[kind] = np.array_equal(expected, _noise_in_rgb(width, colours, device))
        if _equal[kind]:
            return None
    else:
        expected = _noise_by_ffmpeg(decoder, frame, colours.bits)
        for place in PLACES:
            if np.array_equal(expected, _noise_in_rgb(frame.width, colours, device, width, place)):
                return Scaling.of((frame.height, frame.width), width, place=place, device=device)
    raise CannotDecodeHere(f"{frame.format.name} that the GPU converts unlike FFmpeg")


def _noise_by_ffmpeg(decoder: PyAVDecoder, frame: VideoFrame, bits: int) -> np.ndarray:
    """Noise with the width and the colours of `frame`, as FFmpeg converts it."""
    with decoder.demuxer.failures("cannot convert its pixels to RGB", "convert the video to H.264"):
        low = frame.reformat(height=ROWS, interpolation="POINT", threads=1)
        low.make_writable()  # if `frame` is as low, both are one picture
        for plane, values in zip(low.planes, _noise(frame.width, bits), strict=True):
            rows = np.zeros((plane.height, plane.line_size // values.itemsize), values.dtype)
            rows[:, : plane.width] = values
            plane.update(rows.tobytes())
    return decoder.convert(low, threads=1)


@lru_cache(maxsize=64)
def _noise_in_rgb(
    coded: int, colours: Colours, device: torch.device, width: int | None = None, place: tuple[int, int] = PLACES[0]
) -> np.ndarray:
    """Noise as the device converts decoded pictures to RGB, scaled to `width` if that is given."""
    luma, *both = _noise(coded, colours.bits)
    surface = np.concatenate([luma, np.stack(both, -1).reshape(ROWS // 2, -1)])
    if colours.bits > 8:
        surface <<= 16 - colours.bits
    with HardwareError.wrapped():
        scaling = None if width is None else Scaling.of((ROWS, coded), width, place=place, device=device)
        return colours.to_rgb(torch.from_numpy(surface).to(device), scaling).cpu().numpy()


def _noise(width: int, bits: int) -> list[np.ndarray]:
    """Luma and both parts of chroma."""
    random, kind = np.random.default_rng(0), np.uint8 if bits == 8 else np.uint16
    sizes = [(ROWS, width), *[(ROWS // 2, width // 2)] * 2]
    return [random.integers(2**bits, size=size, dtype=kind) for size in sizes]
