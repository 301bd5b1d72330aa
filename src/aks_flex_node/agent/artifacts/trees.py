"""What is wanted: artifacts as their publishers have them, and the trees that are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Wanted:
    """Something of an artifact, and its place in the staged tree."""

    member: (
        str  # a path in the archive, a prefix ending in "/" for all below it, "" when the artifact is a plain file
    )
    path: str  # relative; a directory ending in "/" for a prefix
    mode: int = 0o755  # for a prefix: what the archive's own modes are cut down to

    @property
    def is_prefix(self) -> bool:
        return self.member.endswith("/")

    @property
    def is_whole_file(self) -> bool:
        return not self.member


@dataclass(frozen=True)
class Artifact:
    """One file of a publisher."""

    component: str
    version: str
    url: str
    files: tuple[Wanted, ...]
    digest: str = ""  # "sha256:…" or "sha512:…"; then no checksum file is asked
    checksums: tuple[str, ...] = ()  # the publisher's checksum files, tried in order

    @property
    def name(self) -> str:
        """The file's own name, safe to be used as one."""
        last = unquote(self.url.partition("?")[0].partition("#")[0]).rpartition("/")[2]
        return "".join(char if char.isalnum() or char in "._+-" else "_" for char in last).lstrip(".") or "artifact"

    @property
    def is_plain(self) -> bool:
        """Whether it is wanted as it is, rather than unpacked."""
        return all(wanted.is_whole_file for wanted in self.files)


@dataclass(frozen=True)
class Tree:
    """One component at one version."""

    component: str
    version: str
    artifacts: tuple[Artifact, ...]
    staging: Path  # is there when it is complete, and not before
