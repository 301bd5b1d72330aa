"""File trees as image layers, the same bytes every time: a changed digest then means a changed image."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zlib
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPRESSION = 6
GZIP = 31  # what makes zlib write a gzip header: one without a time, and the same from every Python


@dataclass(frozen=True)
class File:
    """A file of the image, by its bytes or by a file of this machine that has them."""

    path: str
    content: bytes | Path
    mode: int = 0o644


@dataclass(frozen=True)
class Folder:
    path: str
    mode: int = 0o755


@dataclass(frozen=True)
class Link:
    path: str
    target: str


Entry = File | Folder | Link


@dataclass(frozen=True)
class Layer:
    """A compressed layer: its own digest, and the digest of the tar inside it, which the image config names."""

    data: bytes
    digest: str
    diff_id: str


def make_layer(entries: Iterable[Entry]) -> Layer:
    tar = pack(entries)
    press = zlib.compressobj(COMPRESSION, zlib.DEFLATED, GZIP)
    data = press.compress(tar) + press.flush()
    return Layer(data, digest(data), digest(tar))


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def pack(entries: Iterable[Entry]) -> bytes:
    """An uncompressed tar: sorted, with every parent directory, owned by root, from the beginning of time."""
    named = {clean(entry.path): entry for entry in entries}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, entry in sorted(with_parents(named), key=itemgetter(0)):
            add(tar, name, entry)
    return out.getvalue()


def with_parents(named: dict[str, Entry]) -> Iterator[tuple[str, Entry]]:
    parents = {str(parent) for name in named for parent in PurePosixPath(name).parents} - {"."}
    for name in parents - named.keys():
        yield name, Folder(name)
    yield from named.items()


def add(tar: tarfile.TarFile, name: str, entry: Entry) -> None:
    info = tarfile.TarInfo(name)  # root, no owner's name and time 0, unless one says otherwise
    if isinstance(entry, Folder):
        info.type, info.mode = tarfile.DIRTYPE, entry.mode
        tar.addfile(info)
    elif isinstance(entry, Link):
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.target
        tar.addfile(info)
    else:
        content = entry.content.read_bytes() if isinstance(entry.content, Path) else entry.content
        info.size, info.mode = len(content), entry.mode
        tar.addfile(info, io.BytesIO(content))


def clean(path: str) -> str:
    return str(PurePosixPath("/", path).relative_to("/"))
