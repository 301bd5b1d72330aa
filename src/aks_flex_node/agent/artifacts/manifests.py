"""What a staged tree is made of. It lies in the tree itself, as `.manifest.json`."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.digests import Digest, hash_file
from aks_flex_node.agent.artifacts.sources import identity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aks_flex_node.agent.artifacts.trees import Artifact, Tree

NAME = ".manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class StagedFile:
    sha256: str
    size: int
    mode: int
    link: str = ""  # where a symbolic link points; the rest is then empty


@dataclass(frozen=True)
class Origin:
    """An artifact that the tree was made of."""

    url: str
    digest: str
    wanted: tuple[tuple[str, str, int], ...]

    @classmethod
    def of(cls, artifact: Artifact, digest: Digest) -> Origin:
        return cls(identity(artifact.url), str(digest), wanted_of(artifact))

    def fits(self, artifact: Artifact) -> bool:
        pinned = str(Digest.read(artifact.digest)) if artifact.digest else self.digest
        return (self.url, self.digest, self.wanted) == (identity(artifact.url), pinned, wanted_of(artifact))


@dataclass(frozen=True)
class Manifest:
    component: str
    version: str
    artifacts: tuple[Origin, ...]
    files: Mapping[str, StagedFile]  # by path in the tree

    def fits(self, tree: Tree) -> bool:
        """Whether it is of this tree and these artifacts."""
        return (
            (self.component, self.version) == (tree.component, tree.version)
            and len(self.artifacts) == len(tree.artifacts)
            and all(mine.fits(asked) for mine, asked in zip(self.artifacts, tree.artifacts, strict=True))
        )

    def holds(self, root: Path) -> bool:
        """Whether every file is there as it was staged, byte for byte."""
        return all(is_as_staged(root / path, file) for path, file in self.files.items())

    def write(self, root: Path) -> None:
        wire = {"format": FORMAT, **asdict(self)}
        (root / NAME).write_text(json.dumps(wire, indent=1, sort_keys=True))
        (root / NAME).chmod(0o644)

    @classmethod
    def read(cls, root: Path) -> Manifest | None:
        """The manifest of a tree; None when there is none that makes sense."""
        try:
            wire = json.loads((root / NAME).read_text())
            return cls.parse(wire) if wire["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def parse(cls, wire: Mapping[str, Any]) -> Manifest:
        origins = tuple(
            Origin(str(each["url"]), str(each["digest"]), tuple((a, b, c) for a, b, c in each["wanted"]))
            for each in wire["artifacts"]
        )
        files = {str(path): StagedFile(**file) for path, file in wire["files"].items()}
        return cls(str(wire["component"]), str(wire["version"]), origins, files)


def wanted_of(artifact: Artifact) -> tuple[tuple[str, str, int], ...]:
    return tuple((wanted.member, wanted.path, wanted.mode) for wanted in artifact.files)


def is_as_staged(path: Path, file: StagedFile) -> bool:
    try:
        status = path.lstat()
        if file.link:
            return stat.S_ISLNK(status.st_mode) and os.readlink(path) == file.link  # noqa: PTH115 - as it is written
        right = (stat.S_IFREG | file.mode, file.size) == (status.st_mode, status.st_size)
        return right and hash_file(path).sha256 == file.sha256
    except OSError:
        return False
