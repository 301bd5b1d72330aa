"""Artifacts of publishers, the directory trees that are built from them, and the manifest of a staged tree. All
commands import this module, so it imports nothing slow.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from aks_flex_node.agent.artifacts.digest import TRUSTED_SOURCES, Digest, TrustedDigest, hash_file
from aks_flex_node.agent.http.download_options import url_identity
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from pathlib import Path


@frozen
class ArtifactFile:
    """A file or directory of an artifact, and its path in the staged tree."""

    member: str  # a path in the archive, a prefix ending in "/" for everything below it, or "" for a plain file
    path: str  # relative; for a prefix, a directory ending in "/"
    mode: int = 0o755  # for a prefix: the maximum mode

    @property
    def is_prefix(self) -> bool:
        return self.member.endswith("/")


@frozen
class Artifact:
    """A file of a publisher."""

    component: str
    version: str
    url: str
    files: tuple[ArtifactFile, ...]
    digest: str = ""  # "sha256:…" or "sha512:…", set by the administrator of this machine
    publisher_url: str = ""  # of the same file at its publisher; empty if no publisher has it
    checksums: tuple[str, ...] = ()  # the publisher's checksum files, in order of preference
    signed_list: str = ""  # of the agent's own releases: a signed checksum list, instead of checksum files

    @property
    def name(self) -> str:
        """Returns the file name of the URL, sanitized."""
        last = unquote(self.url.partition("?")[0].partition("#")[0]).rpartition("/")[2]
        return "".join(char if char.isalnum() or char in "._+-" else "_" for char in last).lstrip(".") or "artifact"

    @property
    def publisher_name(self) -> str:
        """Returns the file name in the publisher's checksum files."""
        return self.publisher_url.rpartition("/")[2]

    @property
    def is_plain(self) -> bool:
        """Returns whether the artifact is used as it is, without unpacking."""
        return not any(file.member for file in self.files)

    @property
    def pin_hint(self) -> str:
        """Returns how to set the hash of a file without a checksum of its publisher."""
        return (
            "The checksums of a mirror are not used. Run `aks-flex-node artifacts pins` with this configuration on "
            "a machine that reaches the publishers, and copy its output to /etc/aks-flex-node/checksums.txt on this "
            "machine. Or set the hash in the configuration file of this machine: "
            f"`{self.component}: {{sha256: {{{self.name}: HASH}}}}`."
        )


@frozen
class ArtifactTree:
    """The artifacts of one component at one version."""

    component: str
    version: str
    artifacts: tuple[Artifact, ...]
    staging: Path  # exists only when the tree is complete
    ahead: Path | None = None  # where an earlier job may have built the same tree for this configuration


MANIFEST_NAME = ".manifest.json"
MANIFEST_FORMAT = 1


@frozen
class StagedFile:
    sha256: str
    size: int
    mode: int
    link: str = ""  # target of a symbolic link; then the other fields are empty


@frozen
class ArtifactOrigin:
    """An artifact that a staged tree was built from."""

    url: str
    digest: str
    wanted: tuple[tuple[str, str, int], ...]
    digest_source: str  # a DigestSource

    @classmethod
    def of(cls, artifact: Artifact, trusted: TrustedDigest) -> ArtifactOrigin:
        return cls(url_identity(artifact.url), str(trusted.digest), file_entries(artifact), trusted.source.value)

    def matches(self, artifact: Artifact) -> bool:
        pinned = str(Digest.parse(artifact.digest)) if artifact.digest else self.digest
        expected = (url_identity(artifact.url), pinned, file_entries(artifact))
        return self.digest_source in TRUSTED_SOURCES and (self.url, self.digest, self.wanted) == expected


@frozen
class TreeManifest:
    component: str
    version: str
    artifacts: tuple[ArtifactOrigin, ...]
    files: dict[str, StagedFile]  # by path in the tree

    def matches(self, tree: ArtifactTree) -> bool:
        """Returns whether the manifest belongs to this tree and its artifacts."""
        return (
            (self.component, self.version) == (tree.component, tree.version)
            and len(self.artifacts) == len(tree.artifacts)
            and all(origin.matches(artifact) for origin, artifact in zip(self.artifacts, tree.artifacts, strict=True))
        )

    def is_intact(self, root: Path) -> bool:
        """Returns whether every file still has its staged content, mode and size."""
        return all(is_unchanged(root / path, file) for path, file in self.files.items())

    def content(self) -> bytes:
        return json.dumps({"format": MANIFEST_FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode()

    def write(self, root: Path) -> None:
        (root / MANIFEST_NAME).write_bytes(self.content())
        (root / MANIFEST_NAME).chmod(0o644)

    @classmethod
    def parse(cls, content: bytes | None) -> TreeManifest | None:
        """Parses the manifest of a tree. Returns None if it is missing or invalid."""
        try:
            wire = json.loads(content or b"")
            return msgspec.convert(wire, cls) if wire["format"] == MANIFEST_FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    @classmethod
    def read(cls, root: Path) -> TreeManifest | None:
        """Reads the manifest of a tree. Returns None if it is missing or invalid."""
        try:
            return cls.parse((root / MANIFEST_NAME).read_bytes())
        except OSError:
            return None


def file_entries(artifact: Artifact) -> tuple[tuple[str, str, int], ...]:
    return tuple((file.member, file.path, file.mode) for file in artifact.files)


def is_unchanged(path: Path, file: StagedFile) -> bool:
    try:
        status = path.lstat()
        if file.link:
            return stat.S_ISLNK(status.st_mode) and os.readlink(path) == file.link  # noqa: PTH115 - as it is written
        right = (stat.S_IFREG | file.mode, file.size) == (status.st_mode, status.st_size)
        return right and hash_file(path).sha256 == file.sha256
    except OSError:
        return False
