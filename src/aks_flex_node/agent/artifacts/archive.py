"""Reads tar archives safely: inflates in bounded blocks, limits size and compression ratio, and refuses members that
could land outside of the target or be anything but a file, a directory or a link that stays inside. Writes nothing.
"""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from isal import isal_zlib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from aks_flex_node.agent.artifacts.cache import VerifiedFile


READ_BYTES = 64 << 10
MAX_BLOCK_BYTES = 4 << 20  # deflate can make a thousand times as much of what was read, and real programs four times
GZIP_WINDOW_BITS = 16 + isal_zlib.MAX_WBITS
GZIP_MAGIC = b"\x1f\x8b"
MAX_HEADER_BYTES = 1 << 20  # bytes of all that is said of one member: its name, its pax headers, its sparse map
MAX_INFLATED_BYTES = 4 << 30
MAX_COMPRESSION_RATIO = 200  # real programs reach about 4
ALWAYS_ALLOWED_BYTES = 64 << 20  # bytes that may be inflated from however little


class ArchiveBroken(Exception):  # noqa: N818 - told as an ArtifactError by whoever knows the artifact
    """The archive cannot be read."""


class ArchiveHostile(Exception):  # noqa: N818 - told as an ArtifactError by whoever knows the artifact
    """The archive tries something that no honest archive does."""


class ArchiveStream(io.RawIOBase):
    """As much of a file object as `tarfile` needs for reading headers, and `pieces` for what is between them."""

    def __init__(self, blob: VerifiedFile) -> None:
        self._file = blob.path.open("rb", buffering=0)
        self._file.seek(blob.offset)
        self._left = blob.size
        self._limit = min(MAX_INFLATED_BYTES, max(ALWAYS_ALLOWED_BYTES, MAX_COMPRESSION_RATIO * blob.size))
        self._ready = memoryview(b"")
        self._packed = b""  # read, and not inflated yet
        self._position = self._made = self._header = 0
        first = self._file.read(len(GZIP_MAGIC))
        self._file.seek(blob.offset)
        self._inflater = isal_zlib.decompressobj(GZIP_WINDOW_BITS) if first == GZIP_MAGIC else None

    def tell(self) -> int:
        return self._position

    def begin_header(self) -> None:
        """What was read so far is done with: the next header is counted for itself."""
        self._header = 0

    def read(self, size: int = -1) -> bytes:
        """Of a header. What is longer than any honest header is refused before it is in memory."""
        if size < 0 or self._header + size > MAX_HEADER_BYTES:
            raise ArchiveHostile(f"has a header of more than {MAX_HEADER_BYTES} bytes")
        self._header += size
        return b"".join(bytes(piece) for piece in self._available(size))

    def chunks(self, size: int) -> Iterator[memoryview]:
        """So many bytes, in pieces as they are inflated."""
        end = self._position + size
        yield from self._available(size)
        if self._position < end:
            raise ArchiveBroken("ends in the middle of a file")

    def skip(self, size: int) -> None:
        ahead = size - len(self._ready)
        if self._inflater is None and 0 < ahead <= self._left:  # what is not packed need not be read
            self._file.seek(ahead, os.SEEK_CUR)
            self._left -= ahead
            self._position += size
            self._ready = memoryview(b"")
            return
        for _ in self.chunks(size):
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
                    raise ArchiveBroken("is cut off")
                return False
            block = self._unzip(packed) if self._inflater else packed
            self._made += len(block)
            if self._made > self._limit:
                raise ArchiveHostile(f"inflates to more than {self._limit >> 20} MiB, as a bomb does")
            if block:
                self._ready = memoryview(block)
                return True

    def _read_on(self) -> bytes:
        packed = self._file.read(min(READ_BYTES, self._left))
        self._left -= len(packed)
        return packed

    def _unzip(self, packed: bytes) -> bytes:
        """One block; the rest is kept for the next. A file may be several gzips in a row, with zeros at the end."""
        if self._inflater is None or self._inflater.eof:
            packed = packed.lstrip(b"\0")
            if not packed:
                return b""
            self._inflater = isal_zlib.decompressobj(GZIP_WINDOW_BITS)
        try:
            block = self._inflater.decompress(packed, MAX_BLOCK_BYTES)
        except isal_zlib.error as error:  # type: ignore[misc]  # its stub is wrong
            raise ArchiveBroken(f"is not sound gzip ({error})") from error
        self._packed = self._inflater.unconsumed_tail or self._inflater.unused_data
        return block


MAX_MEMBERS = 100_000
MAX_NAME_BYTES = 1024  # bytes, of a member or of what a link leads to; systems end at 4096 with all that is above it
MAX_DEPTH = 100
TAR_BLOCK_BYTES = 512


class TarHeaderReader(tarfile.TarFile):
    """Reads no member by itself: `members` asks for one after another, and reads what is between them."""

    def next(self) -> tarfile.TarInfo | None:
        return None


@dataclass(frozen=True)
class ArchiveMember:
    name: str  # clean: relative, without "." and ".."
    mode: int
    size: int
    kind: str  # "file", "folder", "symbolic link" or "hard link"
    target: str = ""


@dataclass
class MemberValidator:
    """What was seen of an archive so far, and what may therefore not come now."""

    seen: dict[str, ArchiveMember] = field(default_factory=dict)

    def admit(self, info: tarfile.TarInfo) -> ArchiveMember | None:
        """The member, if it is honest; None for the archive's own root."""
        name = clean_name(info.name)
        if not name:
            return None
        member = ArchiveMember(name, info.mode & 0o777, info.size, kind_of(info), info.linkname)
        self._check_place(member)
        if member.kind == "symbolic link":
            check_target(name, member.target)
        if member.kind == "hard link":
            member = self._resolved(member)
        self.seen[name] = member
        return member

    def _check_place(self, member: ArchiveMember) -> None:
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

    def _resolved(self, member: ArchiveMember) -> ArchiveMember:
        """A hard link, with the clean name of the file it is another name of."""
        target = clean_name(member.target)
        known = self.seen.get(target)
        if known is None or known.kind not in {"file", "hard link"}:
            raise ArchiveHostile(
                f"links {display_name(member.name)} to {display_name(member.target)}, which is not a file before it"
            )
        return ArchiveMember(member.name, member.mode, 0, member.kind, target)


def read_members(stream: ArchiveStream) -> Iterator[ArchiveMember]:
    """All members, in order. Whatever the caller leaves of a file's bytes is skipped."""
    headers = TarHeaderReader(fileobj=cast("IO[bytes]", stream))
    judge = MemberValidator()
    while info := next_header(headers):
        stream.begin_header()
        end = stream.tell() + padded(info.size if info.isreg() else 0)
        member = judge.admit(info)
        if member:
            yield member
        stream.skip(end - stream.tell())
    stream.drain()


def next_header(headers: TarHeaderReader) -> tarfile.TarInfo | None:
    try:
        info = tarfile.TarInfo.fromtarfile(headers)
    except tarfile.HeaderError as error:
        # An archive ends with zeros, or where the file ends.
        if type(error).__name__ in {"EOFHeaderError", "EmptyHeaderError"}:
            return None
        raise ArchiveBroken(f"is not a sound tar ({error})") from error
    except RecursionError:
        raise ArchiveHostile("has header upon header, and no file after them") from None
    except (tarfile.TarError, ValueError, IndexError, OverflowError) as error:
        raise ArchiveBroken(f"is not a sound tar ({error})") from error
    if info.size < 0:
        raise ArchiveBroken("has a file of less than no bytes")
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
    what = "a device" if info.ischr() or info.isblk() else "a pipe" if info.isfifo() else "of an unknown kind"
    raise ArchiveHostile(f"has {display_name(info.name)}, which is {what}")


def clean_name(name: str) -> str:
    """A name without its needless dots; one that leads out of the tree is refused."""
    if name.startswith("/"):
        raise ArchiveHostile(f"has the absolute name {display_name(name)}")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ArchiveHostile(f"has {display_name(name)}, which leads out of it")
    too_long = any(size(part) > 255 for part in parts) or size(name) > MAX_NAME_BYTES or len(parts) > MAX_DEPTH
    if not name.isprintable() or too_long:
        raise ArchiveHostile(f"has a name that no file should have: {display_name(name)}")
    return "/".join(parts)


def check_target(name: str, target: str) -> None:
    """A symbolic link may climb only at its beginning, and no higher than the tree.

    That is enough, whatever other links there are: the climb goes through real directories, because nothing lies
    below a link, and each link on the way down stays inside by the same rule.
    """
    parts = [part for part in target.split("/") if part not in {"", "."}]
    climb = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    outside = target.startswith("/") or climb > name.count("/") or ".." in parts[climb:]
    if not parts or size(target) > MAX_NAME_BYTES:
        raise ArchiveHostile(f"links {display_name(name)} to {display_name(target)}, which no link should lead to")
    if outside or not target.isprintable():
        raise ArchiveHostile(f"links {display_name(name)} to {display_name(target)}, which leads out of it")


def size(name: str) -> int:
    return len(name.encode("utf-8", "surrogateescape"))


def padded(length: int) -> int:
    return -(-length // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES


def display_name(name: str) -> str:
    return repr(name if len(name) <= 200 else f"{name[:200]}…")
