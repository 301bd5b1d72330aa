"""Tarballs that come out byte for byte the same from the same files, whoever makes them and when."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node.lab import processes

if TYPE_CHECKING:
    from collections.abc import Iterable

Compress: TypeAlias = Callable[[Path, Path], None]  # from a file to a new one
LEVEL = 6  # what the publishers' own files come near to; higher costs minutes and saves little


@dataclass(frozen=True, order=True)
class Member:
    name: str  # in the archive, as its publisher writes it: with a leading `./` or without
    source: Path


def make_archive(members: Iterable[Member], path: Path, compress: Compress) -> None:
    """Write a compressed tarball. It has its name only when it is whole."""
    plain = path.with_name(f".{path.name}.tar")
    done = path.with_name(f".{path.name}.gz")
    write_tar(sorted(members), plain)
    compress(plain, done)
    plain.unlink()
    done.rename(path)


def write_tar(members: list[Member], path: Path) -> None:
    folders: dict[str, None] = {}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            for folder in reversed(PurePosixPath(member.name).parents):
                if folder.parts and str(folder) not in folders:
                    folders[str(folder)] = None
                    archive.addfile(entry(str(folder), tarfile.DIRTYPE, 0o755))
            executable = member.source.stat().st_mode & 0o100
            info = entry(member.name, tarfile.REGTYPE, 0o755 if executable else 0o644)
            info.size = member.source.stat().st_size
            with member.source.open("rb") as content:
                archive.addfile(info, content)


def entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    """Root's, and from the beginning of time."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, 0
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def best_compress() -> Compress:
    """pigz uses all cores; Python's own gzip is always there."""
    return pigz if shutil.which("pigz") else python_gzip


def pigz(plain: Path, done: Path) -> None:
    """The number of threads is fixed, because the bytes differ between one thread and several."""
    processes.run("pigz", "--no-name", "--keep", "--force", f"-{LEVEL}", "--processes", "4", plain, timeout=600)
    plain.with_name(f"{plain.name}.gz").rename(done)


def python_gzip(plain: Path, done: Path) -> None:
    with (
        plain.open("rb") as source,
        done.open("wb") as out,
        gzip.GzipFile("", "wb", LEVEL, out, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)
