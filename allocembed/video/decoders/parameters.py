"""What a hardware decoder is set up for, as the packets say it: size, colours, number of references.

A decoder that is running does not notice that these change: it scales to the old size, or keeps too few pictures. So
files in which they change are found by comparing the bytes that state them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

KEYFRAME_BITS = 80  # of a VP9 keyframe, in which its size is stated
SYNC_CODE = 0x498342
WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)  # H.264's profiles that state its format
TEMPORAL_DELIMITER, SEQUENCE_HEADER = 2, 1  # kinds of AV1's units


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
    """What a packet states, with units behind start codes; empty if it states nothing."""
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
