"""Packets as a hardware decoder takes them: NAL units behind start codes, and the headers that a seek must repeat.

Packets also say what a decoder is set up for: size, colours, number of references. A decoder that is running does not
notice that these change: it scales to the old size, or keeps too few pictures. So files in which they change are found
by comparing the bytes that state them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from allocembed.video.decoders.nvdec import CannotDecodeHere

if TYPE_CHECKING:
    from av.packet import Packet

    from allocembed.video.packets import Demuxer

CODECS = {"h264": "H264", "hevc": "HEVC", "vp9": "VP9", "av1": "AV1"}
START = b"\0\0\0\1"
CHANGING = "pictures that change their size, colours or references"
IDR = 5  # the kind of H.264's pictures that refer to nothing before them and end what came before
HEVC_IDR = (19, 20)
HEVC_KEYFRAMES = range(16, 22)  # with those that may be followed by pictures which refer to what came before

KEYFRAME_BITS = 80  # of a VP9 keyframe, in which its size is stated
SYNC_CODE = 0x498342
WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)  # H.264's profiles that state its format
TEMPORAL_DELIMITER, SEQUENCE_HEADER = 2, 1  # kinds of AV1's units


class StartPoint(Enum):
    """The condition for decoding to start with a picture."""

    ANYWHERE = "anywhere"
    AFTER_END = "after the end of a sequence"
    NOWHERE = "nowhere"


class Stream:
    """The format of one stream's packets, and their needs of a decoder."""

    def __init__(self, name: str, extradata: bytes, convert: Callable[[Packet], Iterable[Any]] | None) -> None:
        self.codec = CODECS[name]
        self.kind: Hashable = extradata if extradata or self.codec in ("VP9", "AV1") else self
        """The key of a decoder's setup: the parameter sets, which other files may share; or this stream alone."""
        self._convert = convert
        self._length_bytes = 0
        self.headers = b""
        """The parameter sets behind start codes, if they stand outside of the packets, as in an MP4."""
        self._parameters = b""
        """The parameter sets of the decoder; empty before they are known."""
        if convert is not None:
            self._length_bytes = (extradata[4 if name == "h264" else 21] & 3) + 1
            units = (_avc_units if name == "h264" else _hevc_units)(extradata)
            self.headers = b"".join(START + unit for unit in units)
            self._set_up(in_units(self.codec, units))
        elif self.codec in ("H264", "HEVC"):
            self._set_up(in_packet(self.codec, extradata))

    @property
    def in_place(self) -> bool:
        """Whether start codes can take the places of lengths."""
        return self._length_bytes == len(START)

    @property
    def is_set_up(self) -> bool:
        """Whether it is known what the decoder is set up for. In VP9 and AV1, only packets say it."""
        return bool(self._parameters)

    def set_up(self, packet: Packet) -> None:
        """Note what the first keyframe of the file states, by which all later ones are judged."""
        self._compare(in_packet(self.codec, memoryview(packet)))

    def parts(self, packet: Packet) -> Iterator[Any]:
        """The packets to decode instead of one, with `buffer_ptr` and `buffer_size`. Raise CannotDecodeHere if they
        need a decoder that is set up otherwise."""
        if packet.has_sidedata("new_extradata"):
            raise CannotDecodeHere(CHANGING)
        for part in (packet,) if self._convert is None else self._convert(packet):
            self._compare(in_packet(self.codec, memoryview(part)))
            yield part

    def is_disposable(self, packet: Packet) -> bool:
        """Whether no other frame refers to this one, from the header of its first picture unit."""
        if not self._length_bytes:
            return False
        data = memoryview(packet)
        for at, end in self._units(data):
            if end > at + self._length_bytes and (found := self._judge(data[at + self._length_bytes])):
                return found[1]
        return False

    def mark_units(self, data: memoryview) -> tuple[StartPoint, bool]:
        """Write start codes over the lengths of a picture's units.

        Return where decoding can start with this picture, if what is shown before it is left out, and whether no other
        picture refers to it.
        """
        found, first = None, []
        for at, end in self._units(data):
            if found is None and end > at + len(START):
                first.append(data[at + len(START) : end])
                found = self._judge(first[-1][0])
            data[at : at + len(START)] = START
            if end > len(data):
                raise CannotDecodeHere("damaged packets")
        self._compare(in_units(self.codec, first))
        return found or (StartPoint.NOWHERE, False)

    def _compare(self, stated: bytes) -> None:
        """Raise CannotDecodeHere if a picture states other parameters than those before it."""
        if stated and not self._parameters:
            self._set_up(stated)
        if stated and stated != self._parameters:
            raise CannotDecodeHere(CHANGING)

    def _set_up(self, stated: bytes) -> None:
        """Note the parameters. Raise CannotDecodeHere if they allow fields, of which the GPU makes other pictures."""
        if self.codec == "H264" and stated and may_be_interlaced(stated):
            raise CannotDecodeHere("interlaced pictures")
        self._parameters = stated

    def _units(self, data: memoryview) -> Iterator[tuple[int, int]]:
        """First byte of each unit's length, and the byte after the unit. The last one may be cut off."""
        at, step = 0, self._length_bytes
        while at + step < len(data):
            end = at + step + int.from_bytes(data[at : at + step])
            yield at, end
            at = end

    def _judge(self, first: int) -> tuple[StartPoint, bool] | None:
        """From the first byte of a unit, what `mark_units` returns; None if it is not a picture's."""
        if self.codec == "H264":
            entry = StartPoint.ANYWHERE if first & 31 == IDR else StartPoint.NOWHERE
            return (entry, not first >> 5 & 3) if 1 <= first & 31 <= IDR else None
        kind = first >> 1 & 63
        entry = StartPoint.AFTER_END if kind in HEVC_KEYFRAMES else StartPoint.NOWHERE
        entry = StartPoint.ANYWHERE if kind in HEVC_IDR else entry
        return (entry, kind < 16 and not kind % 2) if kind < 32 else None


def describe(demuxer: Demuxer) -> Stream | None:
    """The stream of a file; None if hardware cannot take its packets."""
    context = demuxer.stream.codec_context
    extradata = bytes(context.extradata or b"")
    name = context.codec.canonical_name  # of the codec, not of the decoder
    if name not in CODECS:
        return None
    convert = None
    if name in ("h264", "hevc") and extradata[:1] == b"\1":  # units with their length, as in MP4 and Matroska
        filters = demuxer.av.bitstream.BitStreamFilterContext
        convert = filters(f"{name}_mp4toannexb", demuxer.stream).filter
    return Stream(name, extradata, convert)


def _avc_units(record: bytes) -> list[bytes]:
    """The parameter sets in an H.264 configuration record (ISO/IEC 14496-15, 5.3.3.1)."""
    units, at = [], 5
    for mask in (31, 255):
        count, at = record[at] & mask, at + 1
        for _ in range(count):
            size = int.from_bytes(record[at : at + 2])
            units.append(record[at + 2 : at + 2 + size])
            at += 2 + size
    return units


def _hevc_units(record: bytes) -> list[bytes]:
    """The parameter sets in an HEVC configuration record (ISO/IEC 14496-15, 8.3.3.1)."""
    units, at = [], 23
    for _ in range(record[22]):
        count, at = int.from_bytes(record[at + 1 : at + 3]), at + 3
        for _ in range(count):
            size = int.from_bytes(record[at : at + 2])
            units.append(record[at + 2 : at + 2 + size])
            at += 2 + size
    return units


def in_units(codec: str, units: Iterable[bytes | memoryview]) -> bytes:
    """The sequence parameter sets among the first units of a picture in H.264 or HEVC, each once; empty if there are
    none."""
    found: dict[bytes, None] = {}
    for unit in filter(len, units):
        kind = unit[0] & 31 if codec == "H264" else unit[0] >> 1 & 63
        if (1 <= kind <= 5) if codec == "H264" else kind < 32:
            break  # a picture
        if kind == (7 if codec == "H264" else 33):
            found[bytes(unit).rstrip(b"\0")] = None
    return b"".join(found)


def in_packet(codec: str, data: bytes | memoryview) -> bytes:
    """Parameter sets in a packet, with units behind start codes; empty if it has none."""
    if codec == "VP9":
        return _vp9(data)
    if codec == "AV1":
        return _av1(data)
    return in_units(codec, _behind_start_codes(data))


def _behind_start_codes(data: bytes | memoryview) -> Iterable[memoryview]:
    data, begin = memoryview(data), None
    for code in re.finditer(b"\0\0\1", data):
        if begin is not None:
            yield data[begin : code.start()]
        begin = code.end()
    if begin is not None and begin < len(data):
        yield data[begin:]


def _vp9(data: bytes | memoryview) -> bytes:
    """Format and size in the header of a keyframe (VP9 bitstream specification, 6.2)."""
    header = bytes(data[: KEYFRAME_BITS // 8])
    bits = f"{int.from_bytes(header):0{8 * len(header)}b}"
    at = 4 + (bits[2:4] == "11")  # marker and profile, and a reserved bit in profile 3
    shown_again, is_inter = bits[at : at + 1] != "0", bits[at + 1 : at + 2] != "0"
    if len(header) < KEYFRAME_BITS // 8 or shown_again or is_inter or int(bits[at + 4 : at + 28], 2) != SYNC_CODE:
        return b""
    colours = 4 + (bits[3] == "1")  # colour space and range, and in profiles 2 and 3 the depth
    return bits[: at + 2].encode() + bits[at + 28 : at + 28 + colours + 32].encode()


def _av1(data: bytes | memoryview) -> bytes:
    """The sequence header (AV1 bitstream specification, 5.3)."""
    at = 0
    while at < len(data):
        first = data[at]
        kind, at = first >> 3 & 15, at + 1 + (first >> 2 & 1)
        size, shift = 0, 0
        while first & 2 and at < len(data):  # a number of seven bits a byte
            size |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if not data[at - 1] & 128:
                break
        end = at + size if first & 2 else len(data)
        if kind == SEQUENCE_HEADER:
            return bytes(data[at:end])
        if kind != TEMPORAL_DELIMITER:
            break
        at = end
    return b""


def may_be_interlaced(stated: bytes) -> bool:
    """Whether an H.264 sequence parameter set allows fields (ITU-T H.264, 7.3.2.1.1)."""
    bits = _Bits(re.sub(b"\0\0\3", b"\0\0", stated[1:]))
    profile = bits.take(8)
    bits.take(16)  # constraints and level
    bits.skip_counts(1)  # its id
    if profile in WITH_CHROMA:
        chroma = bits.count()
        bits.take(1 if chroma == 3 else 0)  # planes apart
        bits.skip_counts(2)  # depths
        bits.take(1)  # without loss
        if bits.take(1):
            for number in range(12 if chroma == 3 else 8):
                bits.skip_scaling_list(16 if number < 6 else 64)
    bits.skip_counts(1)  # numbers of frames
    order = bits.count()
    if order == 0:
        bits.skip_counts(1)
    elif order == 1:
        bits.take(1)
        bits.skip_counts(2)
        bits.skip_counts(min(bits.count(), 255))  # more are not allowed
    bits.skip_counts(1)  # reference frames
    bits.take(1)  # gaps
    bits.skip_counts(2)  # width and height
    return not bits.take(1)


class _Bits:
    """Reads the numbers of a parameter set one after the other. Behind the end, all bits are 1."""

    def __init__(self, data: bytes) -> None:
        self.bits, self.at = f"{int.from_bytes(data):0{8 * len(data)}b}", 0

    def take(self, count: int) -> int:
        """A number of this many bits."""
        taken = self.bits[self.at : self.at + count].ljust(count, "1")
        self.at += count
        return int(taken or "0", 2)

    def count(self) -> int:
        """A number in Exp-Golomb code."""
        zeros = 0
        while zeros < 32 and not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)

    def skip_counts(self, number: int) -> None:
        """Pass over this many numbers in Exp-Golomb code."""
        for _ in range(number):
            self.count()

    def skip_scaling_list(self, size: int) -> None:
        """Pass over a list, if it is there."""
        if not self.take(1):
            return
        last = following = 8
        for _ in range(size):
            if following:
                code = self.count()
                following = (last + (code + 1) // 2 * (1 if code % 2 else -1)) % 256
            last = following or last
