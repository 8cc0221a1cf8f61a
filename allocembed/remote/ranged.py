"""A file in object storage, read by ranges: what nobody reads is not fetched.

Blocks are kept for a while, because a demuxer goes back to the header. Whoever reads on gets larger and larger parts;
after a jump, they are small again.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections import OrderedDict
from errno import EIO

from allocembed.remote.objects import ConditionFailed, ObjectInfo, StorageFailure, look, read_range

BLOCK_BYTES = 131_072
MOST_BLOCKS = 8  # fetched by one request
KEPT_BLOCKS = 256  # blocks of one file in memory
CHANGED = "it was changed or replaced while it was read; read it again"


class _SeekableFile(io.RawIOBase):
    """A file of known size that can be read and sought."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__()
        self.name, self.size, self._position = name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        end = self.size if size < 0 else min(self.size, self._position + size)
        content = self.between(self._position, end) if self._position < end else b""
        self._position += len(content)
        return content

    @abstractmethod
    def between(self, start: int, end: int) -> bytes:
        """The bytes start <= position < end."""


class RangedFile(_SeekableFile):
    """An object as a file that can be read and sought. It fails if the object is replaced meanwhile."""

    def __init__(self, address: str, info: ObjectInfo | None = None) -> None:
        self.info = info or look(address)
        super().__init__(address, self.info.size)
        self.fetched = 0
        """Bytes that were requested so far."""
        self._ahead, self._expected = 1, -1
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def between(self, start: int, end: int) -> bytes:
        parts, last = [], -(-end // BLOCK_BYTES)
        for number in range(start // BLOCK_BYTES, last):
            first = number * BLOCK_BYTES
            parts.append(self._block(number, last)[max(0, start - first) : end - first])
        return b"".join(parts)

    def _block(self, number: int, last: int) -> bytes:
        """One block; the blocks up to `last` are wanted next."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        self._ahead = min(2 * self._ahead, MOST_BLOCKS) if number == self._expected else 1
        count = max(self._ahead, min(last - number, MOST_BLOCKS))
        # What is here already is not fetched again.
        count = next((step for step in range(1, count) if number + step in self._blocks), count)
        content = self._fetch(number * BLOCK_BYTES, min(self.size, (number + count) * BLOCK_BYTES))
        for step in range(-(-len(content) // BLOCK_BYTES)):
            self._blocks[number + step] = content[step * BLOCK_BYTES : (step + 1) * BLOCK_BYTES]
        self._expected = number + count
        while len(self._blocks) > KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return self._blocks[number]

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            content = read_range(self.name, start, end, self.info.tag)
        except ConditionFailed as error:
            raise StorageFailure(error.errno, CHANGED) from error
        if len(content) != end - start:
            raise StorageFailure(EIO, CHANGED)
        self.fetched += len(content)
        return content


class HollowFile(_SeekableFile):
    """Another file without its content: once it is `hollow`, it gives zeros and fetches nothing.

    A demuxer that knows from the header where every frame is can then list them all.
    """

    def __init__(self, file: RangedFile) -> None:
        super().__init__(file.name, file.size)
        self.file, self.hollow = file, False

    def between(self, start: int, end: int) -> bytes:
        return bytes(end - start) if self.hollow else self.file.between(start, end)
