"""Artifacts as their publishers have them, the directory trees that are built of them, and the manifest that records
what a staged tree holds. Imported by every command, so it imports nothing slow.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aks_flex_node.agent.artifacts.digest import Digest, hash_file
from aks_flex_node.agent.http.download_options import url_identity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class ArtifactFile:
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
    files: tuple[ArtifactFile, ...]
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
class ArtifactTree:
    """One component at one version."""

    component: str
    version: str
    artifacts: tuple[Artifact, ...]
    staging: Path  # is there when it is complete, and not before


MANIFEST_NAME = ".manifest.json"
MANIFEST_FORMAT = 1


@dataclass(frozen=True)
class StagedFile:
    sha256: str
    size: int
    mode: int
    link: str = ""  # where a symbolic link points; the rest is then empty


@dataclass(frozen=True)
class ArtifactOrigin:
    """An artifact that the tree was made of."""

    url: str
    digest: str
    wanted: tuple[tuple[str, str, int], ...]

    @classmethod
    def of(cls, artifact: Artifact, digest: Digest) -> ArtifactOrigin:
        return cls(url_identity(artifact.url), str(digest), file_entries(artifact))

    def matches(self, artifact: Artifact) -> bool:
        pinned = str(Digest.parse(artifact.digest)) if artifact.digest else self.digest
        return (self.url, self.digest, self.wanted) == (url_identity(artifact.url), pinned, file_entries(artifact))


@dataclass(frozen=True)
class TreeManifest:
    component: str
    version: str
    artifacts: tuple[ArtifactOrigin, ...]
    files: Mapping[str, StagedFile]  # by path in the tree

    def matches(self, tree: ArtifactTree) -> bool:
        """Whether it is of this tree and these artifacts."""
        return (
            (self.component, self.version) == (tree.component, tree.version)
            and len(self.artifacts) == len(tree.artifacts)
            and all(mine.matches(asked) for mine, asked in zip(self.artifacts, tree.artifacts, strict=True))
        )

    def is_intact(self, root: Path) -> bool:
        """Whether every file is there as it was staged, byte for byte."""
        return all(is_unchanged(root / path, file) for path, file in self.files.items())

    def write(self, root: Path) -> None:
        wire = {"format": MANIFEST_FORMAT, **asdict(self)}
        (root / MANIFEST_NAME).write_text(json.dumps(wire, indent=1, sort_keys=True))
        (root / MANIFEST_NAME).chmod(0o644)

    @classmethod
    def read(cls, root: Path) -> TreeManifest | None:
        """The manifest of a tree; None when there is none that makes sense."""
        try:
            wire = json.loads((root / MANIFEST_NAME).read_text())
            return cls.parse(wire) if wire["format"] == MANIFEST_FORMAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def parse(cls, wire: Mapping[str, Any]) -> TreeManifest:
        origins = tuple(
            ArtifactOrigin(str(each["url"]), str(each["digest"]), tuple((a, b, c) for a, b, c in each["wanted"]))
            for each in wire["artifacts"]
        )
        files = {str(path): StagedFile(**file) for path, file in wire["files"].items()}
        return cls(str(wire["component"]), str(wire["version"]), origins, files)


def file_entries(artifact: Artifact) -> tuple[tuple[str, str, int], ...]:
    return tuple((wanted.member, wanted.path, wanted.mode) for wanted in artifact.files)


def is_unchanged(path: Path, file: StagedFile) -> bool:
    try:
        status = path.lstat()
        if file.link:
            return stat.S_ISLNK(status.st_mode) and os.readlink(path) == file.link  # noqa: PTH115 - as it is written
        right = (stat.S_IFREG | file.mode, file.size) == (status.st_mode, status.st_size)
        return right and hash_file(path).sha256 == file.sha256
    except OSError:
        return False
