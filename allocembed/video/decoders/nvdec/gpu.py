"""The decoders of an NVIDIA GPU: who decodes the next file, and in which sessions."""

from __future__ import annotations

import importlib
import logging
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from allocembed.errors import ConfigError, MissingDependency
from allocembed.threads import SETTING_UP
from allocembed.video.clip import Pixels
from allocembed.video.decoders.base import Decoder, Decoders, FrameTable, Picture, Tally, VideoInput
from allocembed.video.decoders.nvdec import CannotDecodeHere, HardwareError
from allocembed.video.decoders.nvdec.turns import Turns
from allocembed.video.decoders.pyav import PyAVDecoder
from allocembed.video.packets import Demuxer

if TYPE_CHECKING:
    import torch

    from allocembed.video.decoders.nvdec.bitstream import Stream
    from allocembed.video.decoders.nvdec.sessions import DecoderSlot

LIBRARY = "PyNvVideoCodec"
BUSY = "all decoders were busy"
CORES_BESIDE = 4
"""Cores for each file that they decode while the GPU decodes others. It then takes about as long as a file there."""
logger = logging.getLogger("allocembed")


class Nvdec(Decoders):
    """The decoders of one GPU, for all threads. With `shared`, PyAV decodes a file if it would finish it first."""

    places = 8
    """Files to decode at the same time. An H200 has seven decoders; more files only take longer each."""

    def __init__(self, device: torch.device, *, shared: bool = True, library: Any = None) -> None:
        self.device, self.library = device, library or find_library()
        self.declined: Counter[str] = Counter()
        """Files that PyAV decoded, by reason."""
        self.files = 0
        """Files that the GPU decoded."""
        self.shared, self.turns = shared, Turns(self.places)
        self._idle: list[DecoderSlot] = []
        self._able: dict[tuple[str, int], dict[str, int]] = {}
        self._lock = Lock()

    @classmethod
    def find(cls, device: str | None, *, named: bool) -> Self | None:
        """The decoders of the model's GPU. `auto` warns if their library is installed and does not work."""
        if device is None or (not named and not device.startswith("cuda")):
            return None
        if not device.startswith("cuda"):
            raise ConfigError("cannot decode on a GPU: the model is on the CPU; use --device cuda, or --decoder pyav")
        import torch  # only now: who decodes on the cores needs no torch

        try:
            return cls(torch.device(device), shared=not named)
        except (ConfigError, MissingDependency) as error:
            if named:
                raise
            if isinstance(error, ConfigError):
                logger.warning("%s", error)
            return None

    def open(self, video: VideoInput) -> Decoder:
        pyav = PyAVDecoder(Demuxer(video))
        try:
            return self.take(pyav)
        except BaseException:
            pyav.close()
            raise

    def take(self, pyav: PyAVDecoder) -> Decoder:
        """A decoder for a file that is open, here or on the cores."""
        from allocembed.video.decoders.nvdec.decoder import NvdecDecoder
        from allocembed.video.decoders.nvdec.sessions import DecoderSlot

        work = pixels(pyav.demuxer)
        place = self.turns.take_place(work) if self.shared else self.turns.wait_for_place(work)
        if self.shared and place is None:
            self.count(BUSY)
            return CoreDecoder(self.turns, pyav)
        slot = None
        try:
            with self._lock:
                slot = self._idle.pop() if self._idle else None
            slot = slot or DecoderSlot(self.device)
            return NvdecDecoder(self, slot, pyav, place)
        except BaseException:
            self.keep(slot)
            if place is not None:
                place.give_back(None)
            raise

    def readers(self, cores: int) -> int:
        return self.places + max(1, cores // CORES_BESIDE)

    def keep(self, slot: DecoderSlot | None) -> None:
        """Keep a slot for another file."""
        if slot is not None:
            with self._lock:
                self._idle.append(slot)

    def lend(self, key: Hashable, most: int) -> list[DecoderSlot]:
        """Up to `most` idle slots with a session of this name."""
        with self._lock:
            found = [slot for slot in self._idle if key in slot.sessions][:most]
            self._idle = [slot for slot in self._idle if slot not in found]
            return found

    def check(self, stream: Stream, bits: int, size: tuple[int, int]) -> None:
        """Raise CannotDecodeHere if the GPU does not decode streams of this kind and (height, width)."""
        height, width = size
        able = self._ask(stream.codec, bits)
        fits = able["width_min"] <= width <= able["width_max"] and able["height_min"] <= height <= able["height_max"]
        if not able["supported"] or not fits or width * height > 256 * able["mb_num_max"]:
            raise CannotDecodeHere(f"{stream.codec} of {bits} bits and {width}x{height}")

    def count(self, reason: str | None) -> None:
        """Note a file, and why PyAV decoded it if it did."""
        with self._lock:
            if reason is None:
                self.files += 1
            else:
                self.declined[reason] += 1

    def tally(self) -> Tally:
        """Tally of the files decoded so far."""
        with self._lock:
            return Tally(self.files, Counter(self.declined))

    def _ask(self, codec: str, bits: int) -> dict[str, int]:
        """The GPU's capabilities for a codec, 4:2:0."""
        with self._lock:
            if (codec, bits) not in self._able:
                library = self.library
                with SETTING_UP, HardwareError.wrapped():  # the library creates a context to ask in
                    self._able[codec, bits] = library.GetDecoderCaps(
                        gpuid=self.device.index or 0,
                        codec=getattr(library.cudaVideoCodec, codec),
                        chromaformat=library.cudaVideoChromaFormat(1),
                        bitdepth=bits,
                    )
            return self._able[codec, bits]


class PyAVCompanion(Decoder):
    """Leaves to PyAV's decoder what a subclass does not do itself."""

    def __init__(self, pyav: PyAVDecoder) -> None:
        self.pyav, self.demuxer = pyav, pyav.demuxer

    def close(self) -> None:
        self.pyav.close()

    def find_frames(self) -> FrameTable:
        return self.pyav.find_frames()

    def find_frames_again(self) -> FrameTable | None:
        return self.pyav.find_frames_again()

    def find_keyframes(self) -> FrameTable | None:
        return self.pyav.find_keyframes()

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        return self.pyav.pictures(table, exact, keyframes)

    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, Pixels | None]]:
        return self.pyav.in_order(wanted)


class CoreDecoder(PyAVCompanion):
    """Decodes one file with PyAV, and says how long that took."""

    def __init__(self, turns: Turns, pyav: PyAVDecoder) -> None:
        super().__init__(pyav)
        self.demuxer.stream.codec_context.thread_count = max(self.demuxer.limits.threads, CORES_BESIDE)
        self.turns, self.began, self.decoded = turns, time.monotonic(), False

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        yield from super().pictures(table, exact, keyframes)
        self.decoded = True

    def close(self) -> None:
        if self.decoded:
            self.decoded = False
            self.turns.note_cores(time.monotonic() - self.began, pixels(self.demuxer))
        super().close()


def pixels(demuxer: Demuxer) -> int:
    """Pixels of a picture, as the file states them."""
    return max(1, demuxer.stream.width * demuxer.stream.height)


def find_library() -> Any:
    """PyNvVideoCodec, or a reason why it cannot be used."""
    logging.getLogger(LIBRARY).setLevel(logging.CRITICAL)  # it writes pages about a missing driver
    try:
        return importlib.import_module(LIBRARY)
    except ModuleNotFoundError as error:
        raise MissingDependency("decoding on the GPU", LIBRARY, "gpu") from error
    except (ImportError, RuntimeError, OSError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = "use --decoder pyav, or install NVIDIA's driver with its video libraries"
        raise ConfigError(f"cannot decode on the GPU: {cause}; {remedy}") from error
