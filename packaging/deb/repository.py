"""Writes the index of an APT repository, and the source file for machines."""

from __future__ import annotations

import gzip
import hashlib
import time
from typing import TYPE_CHECKING

from deb.archive_formats import control_of

if TYPE_CHECKING:
    from pathlib import Path

SUITE = "stable"  # one package supports all releases of Debian and Ubuntu
COMPONENT = "main"
ARCHITECTURES = ("amd64", "arm64")
POOL = "pool/main"
HEAD = """Origin: AKS Flex Node
Label: AKS Flex Node
Suite: {suite}
Codename: {suite}
Date: {date}
Architectures: {architectures}
Components: {component}
Description: AKS Flex Node for Debian and Ubuntu
SHA256:
"""


def write_index(repository: Path, when: int) -> None:
    """Writes the `Packages` files of the pool, and `Release` with their hashes for signing."""
    dists = repository / "dists" / SUITE
    sums = []
    for arch in ARCHITECTURES:
        entries = "".join(_entry(path, repository) for path in sorted((repository / POOL).glob(f"*_{arch}.deb")))
        for name, content in (
            ("Packages", entries.encode()),
            ("Packages.gz", gzip.compress(entries.encode(), mtime=0)),
        ):
            path = f"{COMPONENT}/binary-{arch}/{name}"
            (dists / path).parent.mkdir(parents=True, exist_ok=True)
            (dists / path).write_bytes(content)
            sums.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {path}\n")
    date = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime(when))
    head = HEAD.format(suite=SUITE, component=COMPONENT, date=date, architectures=" ".join(ARCHITECTURES))
    (dists / "Release").write_text(head + "".join(sums))


def _entry(package: Path, repository: Path) -> str:
    content = package.read_bytes()
    where = f"Filename: {package.relative_to(repository)}\nSize: {len(content)}\n"
    return f"{control_of(content)}{where}SHA256: {hashlib.sha256(content).hexdigest()}\n\n"


def apt_source(url: str, key: str) -> str:
    """Returns the deb822 source file for /etc/apt/sources.list.d, with the signing key of the repository."""
    lines = "\n".join(f" {line or '.'}" for line in key.strip().splitlines())
    return f"Types: deb\nURIs: {url}\nSuites: {SUITE}\nComponents: {COMPONENT}\nSigned-By:\n{lines}\n"
