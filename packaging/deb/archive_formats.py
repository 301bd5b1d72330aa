"""Writes and reads ar and tar.gz archives reproducibly."""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAGIC = b"!<arch>\n"
FASTEST = 1


@dataclass(frozen=True)
class PackageEntry:
    """A file of the package, or a symbolic link if it has a target."""

    content: bytes = b""
    mode: int = 0o644
    target: str = ""


def tar_gz(entries: Mapping[str, PackageEntry], when: int) -> bytes:
    """Packs files and their parent directories, owned by root, with one timestamp."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted({*_folders(entries), *entries}):
            entry = entries.get(path)
            archive.addfile(_member(path, entry, when), io.BytesIO(entry.content if entry else b""))
    # Most of the content are wheels, which are already compressed, so a higher level does not help.
    return gzip.compress(buffer.getvalue(), FASTEST, mtime=0)


def _folders(paths: Iterable[str]) -> set[str]:
    found = {""}
    for path in paths:
        while path := path.rpartition("/")[0]:
            found.add(path)
    return found


def _member(path: str, entry: PackageEntry | None, when: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"./{path}")
    member.mtime, member.uname, member.gname = when, "root", "root"
    if entry is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    elif entry.target:
        member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, entry.target
    else:
        member.mode, member.size = entry.mode, len(entry.content)
    return member


def ar(members: Mapping[str, bytes], when: int) -> bytes:
    """Packs members into an ar archive."""
    parts = [MAGIC]
    for name, content in members.items():
        parts.append(f"{name:<16}{when:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode())
        parts.append(content + b"\n" * (len(content) % 2))
    return b"".join(parts)


def ar_members(archive: bytes) -> dict[str, bytes]:
    """Returns the members of an ar archive by name."""
    if not archive.startswith(MAGIC):
        raise ValueError("not a Debian package")
    members, offset = {}, len(MAGIC)
    while offset < len(archive):
        head = archive[offset : offset + 60]
        size = int(head[48:58])
        members[head[:16].decode().strip()] = archive[offset + 60 : offset + 60 + size]
        offset += 60 + size + size % 2
    return members


def control_of(package: bytes) -> str:
    """Returns the control file of a package."""
    return read_tar_gz(ar_members(package)["control.tar.gz"])["control"].decode()


def read_tar_gz(archive: bytes) -> dict[str, bytes]:
    """Returns the files of a tar.gz by path."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as opened:
        files = ((member.name.removeprefix("./"), opened.extractfile(member)) for member in opened if member.isfile())
        return {name: content.read() for name, content in files if content}
