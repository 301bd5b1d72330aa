"""The files of Debian packages as entries of an image layer: packages by name, with all that they depend on.

The packages are downloaded from the host's own mirror and unpacked, not installed: an image needs no package manager,
and no script of a package runs.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from aks_flex_lab.apt import download_command, unpacked_packages
from aks_flex_lab.images.builder import LayerDirectory, LayerEntry, LayerFile, LayerLink
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MERGED = ("bin", "sbin", "lib", "lib64")  # links to directories of the same name below usr, as in Debian
UNUSED = ("usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/info/")


def package_entries(packages: Sequence[str], cache: Path) -> list[LayerEntry]:
    """Returns the files of packages and of their dependencies, without documentation."""
    names = sorted(packages)
    target = cache / "packages" / hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    root = unpacked_packages(target, lambda archives, state: _download(names, archives, state))
    return [*(LayerLink(f"/{name}", f"usr/{name}") for name in MERGED), *_entries(root)]


def _download(packages: Sequence[str], archives: Path, state: Path) -> None:
    """Downloads packages with all that they depend on."""
    (archives / "partial").mkdir()
    command = download_command(state / "status", {"Dir::Cache::Archives": archives, "Debug::NoLocking": "1"})
    words = ("install", "--download-only", "--yes", "--quiet", "--no-install-recommends")
    run(*command, *words, *packages, timeout=600)


def _entries(root: Path) -> Iterator[LayerEntry]:
    for at, folders, names in os.walk(root):
        directory = type(root)(at)
        for name in sorted((*folders, *names)):
            path = directory / name
            place = str(path.relative_to(root))
            place = f"usr/{place}" if place.split("/", 1)[0] in MERGED and "/" in place else place
            if f"{place}/".startswith(UNUSED):
                continue
            if path.is_symlink():
                yield LayerLink(place, str(path.readlink()))
            elif path.is_file():
                yield LayerFile(place, path, path.stat().st_mode & 0o7777)
            elif path.is_dir() and place not in MERGED:
                yield LayerDirectory(place, path.stat().st_mode & 0o7777)
