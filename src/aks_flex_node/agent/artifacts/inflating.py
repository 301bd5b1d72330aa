"""The bytes of an archive, inflated in large blocks and read once, forward; bombs are defused in here."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from isal import isal_zlib  # the standard library's zlib takes more than twice the time, and a join waits for it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.artifacts.caches import Blob

READ = 64 << 10
LARGEST_BLOCK = 4 << 20  # deflate can make a thousand times as much of what was read, and real programs four times
GZIP = 16 + isal_zlib.MAX_WBITS
MAGIC = b"\x1f\x8b"
LARGEST_HEADER = 1 << 20  # bytes of all that is said of one member: its name, its pax headers, its sparse map
MOST_BYTES = 4 << 30
MOST_RATIO = 200  # real programs reach about 4
HARMLESS = 64 << 20  # bytes that may be inflated from however little


class Broken(Exception):  # noqa: N818 - told as an ArtifactError by whoever knows the artifact
    """The archive cannot be read."""


class Hostile(Exception):  # noqa: N818 - told as an ArtifactError by whoever knows the artifact
    """The archive tries something that no honest archive does."""


class Inflated(io.RawIOBase):
    """As much of a file object as `tarfile` needs for reading headers, and `pieces` for what is between them."""

    def __init__(self, blob: Blob) -> None:
        self._file = blob.path.open("rb", buffering=0)
        self._file.seek(blob.offset)
        self._left = blob.size
        self._limit = min(MOST_BYTES, max(HARMLESS, MOST_RATIO * blob.size))
        self._ready = memoryview(b"")
        self._packed = b""  # read, and not inflated yet
        self._position = self._made = self._header = 0
        first = self._file.read(len(MAGIC))
        self._file.seek(blob.offset)
        self._inflater = isal_zlib.decompressobj(GZIP) if first == MAGIC else None

    def tell(self) -> int:
        return self._position

    def begin_header(self) -> None:
        """What was read so far is done with: the next header is counted for itself."""
        self._header = 0

    def read(self, size: int = -1) -> bytes:
        """Of a header. What is longer than any honest header is refused before it is in memory."""
        if size < 0 or self._header + size > LARGEST_HEADER:
            raise Hostile(f"has a header of more than {LARGEST_HEADER} bytes")
        self._header += size
        return b"".join(bytes(piece) for piece in self._available(size))

    def pieces(self, size: int) -> Iterator[memoryview]:
        """So many bytes, in pieces as they are inflated."""
        end = self._position + size
        yield from self._available(size)
        if self._position < end:
            raise Broken("ends in the middle of a file")

    def skip(self, size: int) -> None:
        ahead = size - len(self._ready)
        if self._inflater is None and 0 < ahead <= self._left:  # what is not packed need not be read
            self._file.seek(ahead, os.SEEK_CUR)
            self._left -= ahead
            self._position += size
            self._ready = memoryview(b"")
            return
        for _ in self.pieces(size):
            pass

    def drain(self) -> None:
        """To the end, where gzip's own checksum is."""
        while self._inflater and self._fill():
            pass

    def close(self) -> None:
        self._file.close()
        super().close()

    def _available(self, size: int) -> Iterator[memoryview]:
        while size and (self._ready or self._fill()):
            piece, self._ready = self._ready[:size], self._ready[size:]
            self._position += len(piece)
            size -= len(piece)
            yield piece

    def _fill(self) -> bool:
        """Make the next block ready, and say whether there was one."""
        while True:
            packed = self._packed or self._read_on()
            self._packed = b""
            if not packed:
                if self._inflater and not self._inflater.eof:
                    raise Broken("is cut off")
                return False
            block = self._unzip(packed) if self._inflater else packed
            self._made += len(block)
            if self._made > self._limit:
                raise Hostile(f"inflates to more than {self._limit >> 20} MiB, as a bomb does")
            if block:
                self._ready = memoryview(block)
                return True

    def _read_on(self) -> bytes:
        packed = self._file.read(min(READ, self._left))
        self._left -= len(packed)
        return packed

    def _unzip(self, packed: bytes) -> bytes:
        """One block; the rest is kept for the next. A file may be several gzips in a row, with zeros at the end."""
        if self._inflater is None or self._inflater.eof:
            packed = packed.lstrip(b"\0")
            if not packed:
                return b""
            self._inflater = isal_zlib.decompressobj(GZIP)
        try:
            block = self._inflater.decompress(packed, LARGEST_BLOCK)
        except isal_zlib.error as error:  # type: ignore[misc]  # its stub is wrong
            raise Broken(f"is not sound gzip ({error})") from error
        self._packed = self._inflater.unconsumed_tail or self._inflater.unused_data
        return block
