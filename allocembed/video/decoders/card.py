"""The decoders of an NVIDIA card: who decodes the next file, and in which sessions.

They are used through PyNvVideoCodec. A file that the card gets is decoded by `nvdec`.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from allocembed.errors import ConfigError, MissingDependency
from allocembed.threads import CORES_BESIDE, SETTING_UP
from allocembed.video.decoders.base import CannotDecodeHere, Decoder, FrameTable, HardwareError, Picture
from allocembed.video.decoders.bitstream import Stream
from allocembed.video.decoders.nvdec import NvdecDecoder
from allocembed.video.decoders.pyav import PyAVDecoder
from allocembed.video.decoders.sessions import Session, Slot
from allocembed.video.decoders.turns import Turns

if TYPE_CHECKING:
    from allocembed.video.packets import Demuxer

LIBRARY = "PyNvVideoCodec"
BUSY = "all decoders were busy"
_finding = Lock()
logger = logging.getLogger("allocembed")


class Tally(NamedTuple):
    """How many files the card has decoded, and how many PyAV, by reason.

    >>> print(Tally(3, Counter(VP8=2, gif=1)).since(Tally(2, Counter(VP8=2))))
    the GPU decoded 1 file, PyAV 1 (gif)
    """

    files: int
    declined: Counter[str]

    def since(self, before: Tally) -> Tally:
        """What was added to an earlier one."""
        return Tally(self.files - before.files, self.declined - before.declined)

    def __str__(self) -> str:
        others = sum(self.declined.values())
        reasons = f" ({', '.join(self.declined)})" if others else ""
        return f"the GPU decoded {self.files} file{'s' * (self.files != 1)}, PyAV {others}{reasons}"


class Nvdec:
    """The decoders of one card, for all threads. With `shared`, PyAV decodes a file if it would finish it first."""

    places = 8
    """Files to decode at the same time. An H200 has seven decoders; more files only take longer each."""

    def __init__(self, device: torch.device, *, shared: bool = True, library: Any = None) -> None:
        self.device, self.library = device, library or find_library()
        self.declined: Counter[str] = Counter()
        """Files that PyAV decoded, by reason."""
        self.files = 0
        """Files that the card decoded."""
        self.shared, self.turns = shared, Turns(self.places)
        self._idle: list[Slot] = []
        self._able: dict[tuple[str, int], dict[str, int]] = {}
        self._lock = Lock()

    def open(self, demuxer: Demuxer) -> Decoder:
        """A decoder for a file."""
        work = pixels(demuxer)
        place = self.turns.take_place(work) if self.shared else self.turns.wait_for_place(work)
        if self.shared and place is None:
            self.count(BUSY)
            return OnCores(self.turns, demuxer)
        slot = None
        try:
            with self._lock:
                slot = self._idle.pop() if self._idle else None
            slot = slot or Slot(self.device)
            return NvdecDecoder(self, slot, demuxer, place)
        except BaseException:
            self.keep(slot)
            if place is not None:
                place.give_back(None)
            raise

    def keep(self, slot: Slot | None) -> None:
        """Keep a slot for another file."""
        if slot is not None:
            with self._lock:
                self._idle.append(slot)

    def lend(self, key: Hashable, most: int) -> list[Slot]:
        """Up to `most` idle slots with a session of this name."""
        with self._lock:
            found = [slot for slot in self._idle if key in slot.sessions][:most]
            self._idle = [slot for slot in self._idle if slot not in found]
            return found

    def check(self, stream: Stream, bits: int, size: tuple[int, int]) -> None:
        """Raise CannotDecodeHere if the card does not decode streams of this kind and (height, width)."""
        height, width = size
        able = self._ask(stream.codec, bits)
        fits = able["width_min"] <= width <= able["width_max"] and able["height_min"] <= height <= able["height_max"]
        if not able["supported"] or not fits or width * height > 256 * able["mb_num_max"]:
            raise CannotDecodeHere(f"{stream.codec} of {bits} bits and {width}x{height}")

    def session(self, slot: Slot, stream: Stream, bits: int, size: tuple[int, int]) -> tuple[Hashable, Session]:
        """A session for a stream that was checked, and its name."""
        key = stream.codec, bits, size, stream.kind
        session = slot.sessions.get(key)
        if session is None:
            with SETTING_UP:
                session = Session(self.library, slot, stream.codec, size)
        if not isinstance(stream.kind, Stream):
            slot.keep(key, session)
        return key, session

    def count(self, reason: str | None) -> None:
        """Note a file, and why PyAV decoded it if it did."""
        with self._lock:
            if reason is None:
                self.files += 1
            else:
                self.declined[reason] += 1

    def tally(self) -> Tally:
        """What was decoded so far."""
        with self._lock:
            return Tally(self.files, Counter(self.declined))

    def _ask(self, codec: str, bits: int) -> dict[str, int]:
        """What the card says about a codec, 4:2:0."""
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


class OnCores(PyAVDecoder):
    """Decodes one file with PyAV, and says how long that took."""

    def __init__(self, turns: Turns, demuxer: Demuxer) -> None:
        super().__init__(demuxer)
        demuxer.stream.codec_context.thread_count = max(demuxer.limits.threads, CORES_BESIDE)
        self.turns, self.began, self.decoded = turns, time.monotonic(), False

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        yield from super().pictures(table, exact, keyframes)
        self.decoded = True

    def close(self) -> None:
        if self.decoded:
            self.decoded = False
            self.turns.note_cores(time.monotonic() - self.began, pixels(self.demuxer))


def pixels(demuxer: Demuxer) -> int:
    """Of a picture, as the file says."""
    return max(1, demuxer.stream.width * demuxer.stream.height)


def find_card(decoder: str, device: torch.device) -> Nvdec | None:
    """The decoders to use beside a model on `device`: for all who ask, one object for each card and setting.

    With "auto", None if there are none, and a warning if the library is installed and does not work. With "nvdec" both
    are errors.
    """
    if decoder == "pyav" or (decoder == "auto" and device.type != "cuda"):
        return None
    if device.type != "cuda":
        raise ConfigError("cannot decode on a GPU: the model is on the CPU; use --device cuda, or --decoder pyav")
    with _finding:
        return _find_card(decoder, device)


def forget_cards() -> None:
    """Let the next one who asks start anew: counts, and what was learned from earlier files."""
    _find_card.cache_clear()


@cache
def _find_card(decoder: str, device: torch.device) -> Nvdec | None:
    try:
        return Nvdec(device, shared=decoder == "auto")
    except (ConfigError, MissingDependency) as error:
        if decoder == "nvdec":
            raise
        if isinstance(error, ConfigError):
            logger.warning("%s", error)
        return None


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
