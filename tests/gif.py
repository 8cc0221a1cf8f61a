"""A decoder of another kind, complete: it opens GIF files by itself, and takes them apart with Pillow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from allocembed.errors import VideoError
from allocembed.video import Decoders
from allocembed.video.clip import FETCH_AGAIN
from allocembed.video.decoders.base import Decoder, FrameTable, Picture, VideoInput

TRAILER = b"\x3b"


class PillowGif(Decoders):
    def open(self, video: VideoInput) -> GifDecoder:
        return GifDecoder(video)


class GifDecoder(Decoder):
    def __init__(self, video: VideoInput) -> None:
        self.video = video
        try:
            self.image = Image.open(video.file)
        except OSError as error:
            raise VideoError(video.name, "not a picture; pass a GIF") from error
        video.limits.check_pixels(*self.image.size, video.name)

    def close(self) -> None:
        self.image.close()

    def find_frames(self) -> FrameTable:
        if Path(self.video.file).read_bytes()[-1:] != TRAILER:
            raise VideoError(self.video.name, f"the file is truncated; {FETCH_AGAIN}")
        starts = [0]
        for number in range(self.image.n_frames):
            self.video.stopwatch.check()
            self.image.seek(number)
            starts.append(starts[-1] + int(self.image.info["duration"]))
        return FrameTable(np.array(starts[:-1]), np.zeros(1, int), starts[-1], 1000.0)

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        for index in (*keyframes, *exact):
            yield index, int(table.stamps[index]), self.read(index)

    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, np.ndarray | None]]:
        for index in range(self.image.n_frames):
            yield None, self.read(index) if index in wanted else None

    def read(self, index: int) -> np.ndarray:
        self.video.stopwatch.check()
        try:
            self.image.seek(index)
        except ValueError as error:
            raise VideoError(self.video.name, "it was closed; open it again") from error
        return np.asarray(self.image.convert("RGB"))
