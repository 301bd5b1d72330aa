"""The files of Debian packages as entries of an image layer: packages by name, with all that they depend on.

The packages are downloaded from the host's own mirror and unpacked, not installed: an image needs no package manager,
and no script of a package runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from aks_flex_lab.apt import download_command
from aks_flex_lab.files import file_lock
from aks_flex_lab.images.builder import LayerDirectory, LayerEntry, LayerFile, LayerLink
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MERGED = ("bin", "sbin", "lib", "lib64")  # links to directories of the same name below usr, as in Debian
UNUSED = ("usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/info/")


def package_entries(packages: Sequence[str], cache: Path) -> list[LayerEntry]:
    """Returns the files of packages and of their dependencies, without documentation."""
    root = _unpacked(tuple(sorted(packages)), cache / "packages")
    return [*(LayerLink(f"/{name}", f"usr/{name}") for name in MERGED), *_entries(root)]


def _unpacked(packages: tuple[str, ...], directory: Path) -> Path:
    """Returns the directory in which the packages are unpacked; downloads them if it does not exist."""
    target = directory / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    with file_lock(directory / ".lock", "the packages of images", wait=True):
        if not target.exists():
            partial = directory / f".{target.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            archives = partial / "archives"
            (archives / "partial").mkdir(parents=True)
            _download(packages, partial / "status", archives)
            for archive in sorted(archives.glob("*.deb")):
                run("dpkg-deb", "--extract", archive, partial / "root", timeout=120)
            (partial / "root").rename(target)
            shutil.rmtree(partial)
    return target


def _download(packages: tuple[str, ...], status: Path, archives: Path) -> None:
    """Downloads packages with all that they depend on."""
    command = download_command(status, {"Dir::Cache::Archives": archives, "Debug::NoLocking": "1"})
    words = ("install", "--download-only", "--yes", "--quiet", "--no-install-recommends")
    run(*command, *words, *packages, timeout=600)


def _entries(root: Path) -> Iterator[LayerEntry]:
    for at, folders, names in os.walk(root):
        directory = type(root)(at)
        for name in sorted((*folders, *names)):
            path = directory / name
            place = _merged(str(path.relative_to(root)))
            if f"{place}/".startswith(UNUSED):
                continue
            if path.is_symlink():
                yield LayerLink(place, str(path.readlink()))
            elif path.is_file():
                yield LayerFile(place, path, path.stat().st_mode & 0o7777)
            elif path.is_dir() and place not in MERGED:
                yield LayerDirectory(place, path.stat().st_mode & 0o7777)


def _merged(place: str) -> str:
    return f"usr/{place}" if place.split("/", 1)[0] in MERGED and "/" in place else place
