"""Reads tar archives safely: decompresses in bounded blocks, limits size and compression ratio, and rejects members
that are outside of the target or are not a file, a directory or a link inside the tree. Writes nothing.
"""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import field
from typing import IO, TYPE_CHECKING, cast

from isal import isal_zlib

from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.artifacts.cache import VerifiedFile


READ_BYTES = 64 << 10
MAX_BLOCK_BYTES = 4 << 20  # deflate can expand data a thousandfold; real programs expand about fourfold
GZIP_WINDOW_BITS = 16 + isal_zlib.MAX_WBITS
GZIP_MAGIC = b"\x1f\x8b"
MAX_HEADER_BYTES = 1 << 20  # all headers of one member: its name, pax headers and sparse map
MAX_INFLATED_BYTES = 4 << 30
MAX_COMPRESSION_RATIO = 200  # real programs reach about 4
ALWAYS_ALLOWED_BYTES = 64 << 20  # allowed regardless of the compression ratio


class ArchiveBroken(Exception):  # noqa: N818 - the caller that knows the artifact turns it into an ArtifactError
    """The archive is damaged and cannot be read."""


class ArchiveHostile(Exception):  # noqa: N818 - the caller that knows the artifact turns it into an ArtifactError
    """The archive has content that a legitimate archive never has."""


class ArchiveStream(io.RawIOBase):
    """A file object with what `tarfile` needs to read headers, and `chunks` for the data between them."""

    def __init__(self, blob: VerifiedFile) -> None:
        self._file = blob.path.open("rb", buffering=0)
        self._file.seek(blob.offset)
        self._left = blob.size
        self._limit = min(MAX_INFLATED_BYTES, max(ALWAYS_ALLOWED_BYTES, MAX_COMPRESSION_RATIO * blob.size))
        self._ready = memoryview(b"")
        self._packed = b""  # read, but not decompressed yet
        self._position = self._made = self._header = 0
        first = self._file.read(len(GZIP_MAGIC))
        self._file.seek(blob.offset)
        self._inflater = isal_zlib.decompressobj(GZIP_WINDOW_BITS) if first == GZIP_MAGIC else None

    def tell(self) -> int:
        return self._position

    def begin_header(self) -> None:
        """Starts the size count of the next header."""
        self._header = 0

    def read(self, size: int = -1) -> bytes:
        """Reads header bytes. Rejects oversized headers before they are in memory."""
        if size < 0 or self._header + size > MAX_HEADER_BYTES:
            raise ArchiveHostile(f"has a header of more than {MAX_HEADER_BYTES} bytes")
        self._header += size
        return b"".join(bytes(piece) for piece in self._available(size))

    def chunks(self, size: int) -> Iterator[memoryview]:
        """Yields `size` bytes in pieces as they are decompressed."""
        end = self._position + size
        yield from self._available(size)
        if self._position < end:
            raise ArchiveBroken("ends in the middle of a file")

    def skip(self, size: int) -> None:
        ahead = size - len(self._ready)
        if self._inflater is None and 0 < ahead <= self._left:  # uncompressed data can be skipped without reading
            self._file.seek(ahead, os.SEEK_CUR)
            self._left -= ahead
            self._position += size
            self._ready = memoryview(b"")
            return
        for _ in self.chunks(size):
            pass

    def drain(self) -> None:
        """Reads to the end, where gzip has its checksum."""
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
        """Decompresses the next block. Returns False at the end of the archive."""
        while True:
            packed, self._packed = self._packed, b""
            if not packed:
                packed = self._file.read(min(READ_BYTES, self._left))
                self._left -= len(packed)
            if not packed:
                if self._inflater and not self._inflater.eof:
                    raise ArchiveBroken("is truncated")
                return False
            block = self._unzip(packed) if self._inflater else packed
            self._made += len(block)
            if self._made > self._limit:
                raise ArchiveHostile(f"decompresses to more than {self._limit >> 20} MiB (decompression bomb)")
            if block:
                self._ready = memoryview(block)
                return True

    def _unzip(self, packed: bytes) -> bytes:
        """Decompresses one block and saves the rest. A file can have several gzip members and trailing zeros."""
        if self._inflater is None or self._inflater.eof:
            packed = packed.lstrip(b"\0")
            if not packed:
                return b""
            self._inflater = isal_zlib.decompressobj(GZIP_WINDOW_BITS)
        try:
            block = self._inflater.decompress(packed, MAX_BLOCK_BYTES)
        except isal_zlib.error as error:  # type: ignore[misc]  # its stub is wrong
            raise ArchiveBroken(f"is not valid gzip ({error})") from error
        self._packed = self._inflater.unconsumed_tail or self._inflater.unused_data
        return block


MAX_MEMBERS = 100_000
MAX_NAME_BYTES = 1024  # for a member or a link target; Linux allows 4096 for a complete path
MAX_DEPTH = 100
TAR_BLOCK_BYTES = 512


class TarHeaderReader(tarfile.TarFile):
    """Reads headers only. `read_members` handles the data between them."""

    def next(self) -> tarfile.TarInfo | None:
        return None


@frozen
class ArchiveMember:
    name: str  # normalized: relative, without "." and ".."
    mode: int
    size: int
    kind: str  # "file", "folder", "symbolic link" or "hard link"
    target: str = ""


@dataclass
class MemberValidator:
    """Validates each member of an archive against the members before it."""

    seen: dict[str, ArchiveMember] = field(default_factory=dict)

    def admit(self, info: tarfile.TarInfo) -> ArchiveMember | None:
        """Returns the validated member, or None for the root of the archive."""
        name = clean_name(info.name)
        if not name:
            return None
        member = ArchiveMember(name, info.mode & 0o777, info.size, kind_of(info), info.linkname)
        before = self.seen.get(member.name)
        if before and (before.kind, member.kind) != ("folder", "folder"):
            raise ArchiveHostile(f"has {display_name(member.name)} twice")
        if len(self.seen) >= MAX_MEMBERS:
            raise ArchiveHostile(f"has more than {MAX_MEMBERS} members")
        parts = member.name.split("/")
        for depth in range(1, len(parts)):
            above = self.seen.get("/".join(parts[:depth]))
            if above and above.kind != "folder":
                raise ArchiveHostile(f"puts {display_name(member.name)} below a {above.kind}")
        if member.kind == "symbolic link":
            check_target(name, member.target)
        if member.kind == "hard link":
            target = clean_name(member.target)
            linked = self.seen.get(target)
            if linked is None or linked.kind not in {"file", "hard link"}:
                raise ArchiveHostile(
                    f"links {display_name(name)} to {display_name(member.target)}, which is not an earlier file"
                )
            member = ArchiveMember(member.name, member.mode, 0, member.kind, target)
        self.seen[name] = member
        return member


def read_members(stream: ArchiveStream) -> Iterator[ArchiveMember]:
    """Yields all members in order. Skips file data that the caller does not read."""
    headers = TarHeaderReader(fileobj=cast("IO[bytes]", stream))
    validator = MemberValidator()
    while info := next_header(headers):
        stream.begin_header()
        end = stream.tell() + padded(info.size if info.isreg() else 0)
        member = validator.admit(info)
        if member:
            yield member
        stream.skip(end - stream.tell())
    stream.drain()


def next_header(headers: TarHeaderReader) -> tarfile.TarInfo | None:
    try:
        info = tarfile.TarInfo.fromtarfile(headers)
    except tarfile.HeaderError as error:
        # An archive ends with zeros or at the end of the file.
        if type(error).__name__ in {"EOFHeaderError", "EmptyHeaderError"}:
            return None
        raise ArchiveBroken(f"is not a valid tar ({error})") from error
    except RecursionError:
        raise ArchiveHostile("has too many nested headers") from None
    except (tarfile.TarError, ValueError, IndexError, OverflowError) as error:
        raise ArchiveBroken(f"is not a valid tar ({error})") from error
    if info.size < 0:
        raise ArchiveBroken("has a file with a negative size")
    return info


def kind_of(info: tarfile.TarInfo) -> str:
    if info.isreg() and info.sparse is None:
        return "file"
    if info.isdir():
        return "folder"
    if info.issym():
        return "symbolic link"
    if info.islnk():
        return "hard link"
    what = "a device" if info.ischr() or info.isblk() else "a pipe" if info.isfifo() else "of an unknown type"
    raise ArchiveHostile(f"has {display_name(info.name)}, which is {what}")


def clean_name(name: str) -> str:
    """Normalizes a name. Rejects names that are outside of the tree."""
    if name.startswith("/"):
        raise ArchiveHostile(f"has the absolute name {display_name(name)}")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ArchiveHostile(f"has {display_name(name)}, which is outside of the tree")
    too_long = any(size(part) > 255 for part in parts) or size(name) > MAX_NAME_BYTES or len(parts) > MAX_DEPTH
    if not name.isprintable() or too_long:
        raise ArchiveHostile(f"has an invalid file name: {display_name(name)}")
    return "/".join(parts)


def check_target(name: str, target: str) -> None:
    """Rejects a symbolic link whose target is outside of the tree: `..` is allowed only at the beginning of the
    target, and only up to the root of the tree.

    This is sufficient for any combination of links. The leading `..` parts traverse real directories, because no
    member is below a link, and every link after them obeys the same rule.
    """
    parts = [part for part in target.split("/") if part not in {"", "."}]
    climb = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    outside = target.startswith("/") or climb > name.count("/") or ".." in parts[climb:]
    if not parts or size(target) > MAX_NAME_BYTES:
        raise ArchiveHostile(
            f"links {display_name(name)} to {display_name(target)}, which is not a valid link target"
        )
    if outside or not target.isprintable():
        raise ArchiveHostile(f"links {display_name(name)} to {display_name(target)}, which is outside of the tree")


def size(name: str) -> int:
    return len(name.encode("utf-8", "surrogateescape"))


def padded(length: int) -> int:
    return -(-length // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES


def display_name(name: str) -> str:
    return repr(name if len(name) <= 200 else f"{name[:200]}…")
