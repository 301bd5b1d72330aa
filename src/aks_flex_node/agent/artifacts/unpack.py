"""Extracts the needed files of an archive into a staged tree, and hashes them on the way. Other members are validated
but not written.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.archive import (
    ArchiveBroken,
    ArchiveHostile,
    ArchiveMember,
    ArchiveStream,
    check_target,
    clean_name,
    display_name,
    read_members,
)
from aks_flex_node.agent.artifacts.disk_space import explain_disk_full, make_directory
from aks_flex_node.agent.artifacts.download import write_all
from aks_flex_node.agent.artifacts.model import StagedFile
from aks_flex_node.agent.http.download_options import redact_url
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.agent.artifacts.cache import VerifiedFile
    from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(artifact: Artifact, blob: VerifiedFile, root: Path, check: Callable[[], None]) -> dict[str, StagedFile]:
    """Everything that is wanted of the archive, below `root`. `check` is called between files, and may raise."""
    unpacking = Extraction(artifact, root)
    try:
        with closing(ArchiveStream(blob)) as stream:
            for member in read_members(stream):
                check()
                unpacking.extract(member, stream)
    except ArchiveBroken as error:
        raise archive_broken_error(artifact, str(error)) from error
    except ArchiveHostile as error:
        raise archive_hostile_error(artifact, str(error)) from error
    unpacking.require_all()
    return unpacking.staged


@dataclass
class Extraction:
    artifact: Artifact
    root: Path
    staged: dict[str, StagedFile] = field(default_factory=dict)
    paths_by_member: dict[str, str] = field(default_factory=dict)  # where each member went
    found: set[ArtifactFile] = field(default_factory=set)

    def extract(self, member: ArchiveMember, stream: ArchiveStream) -> None:
        wanted = self._wanted(member)
        if wanted is None or member.kind == "folder":
            return
        path = target_path(wanted, member)
        target = self._room(path, member)
        if member.kind == "file":
            mode = file_mode(wanted, member)
            with explain_disk_full(target, member.size):
                self.staged[path] = write_file(target, member.size, mode, stream)
        elif member.kind == "hard link":
            self.staged[path] = self._link_file(member, target)
        else:
            self.staged[path] = self._link(wanted, member, target)
        self.paths_by_member[member.name] = path
        self.found.add(wanted)

    def require_all(self) -> None:
        lacking = [wanted.member for wanted in self.artifact.files if wanted not in self.found]
        if lacking:
            raise archive_incomplete_error(self.artifact, f"does not hold {', '.join(lacking)}")

    def _wanted(self, member: ArchiveMember) -> ArtifactFile | None:
        """An exact name comes before a prefix."""
        exact = [
            each for each in self.artifact.files if not each.is_prefix and clean_name(each.member) == member.name
        ]
        below = [
            each for each in self.artifact.files if each.is_prefix and is_below(member.name, member_prefix(each))
        ]
        return next(iter([*exact, *below]), None)

    def _room(self, path: str, member: ArchiveMember) -> Path:
        """The place of a file, with the directories above it."""
        target = self.root / path
        make_directory(target.parent)
        if path in self.staged or os.path.lexists(target):
            raise ArchiveHostile(f"puts {display_name(member.name)} where something else is already")
        return target

    def _link_file(self, member: ArchiveMember, target: Path) -> StagedFile:
        first = self.paths_by_member.get(member.target)
        if first is None:
            raise archive_incomplete_error(
                self.artifact, f"has {member.name} as a link to {member.target}, which is not wanted"
            )
        os.link(self.root / first, target)
        return self.staged[first]

    def _link(self, artifact_file: ArtifactFile, member: ArchiveMember, target: Path) -> StagedFile:
        """It has to stay inside what is wanted, too."""
        if not artifact_file.is_prefix:
            raise archive_incomplete_error(self.artifact, f"has {member.name} as a symbolic link, not as a file")
        check_target(member.name.removeprefix(member_prefix(artifact_file)), member.target)
        target.symlink_to(member.target)
        return StagedFile("", 0, 0, member.target)


def write_file(target: Path, size: int, mode: int, stream: ArchiveStream) -> StagedFile:
    running = sha256()
    descriptor = os.open(target, CREATE_FLAGS, 0o600)
    try:
        for piece in stream.chunks(size):
            write_all(descriptor, piece)
            running.update(piece)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return StagedFile(running.hexdigest(), size, mode)


def member_prefix(artifact_file: ArtifactFile) -> str:
    """`bin/` and `./bin/` are the same; `./` and `/` are everything."""
    clean = clean_name(artifact_file.member.lstrip("/"))
    return f"{clean}/" if clean else ""


def is_below(name: str, prefix: str) -> bool:
    return name.startswith(prefix)


def target_path(artifact_file: ArtifactFile, member: ArchiveMember) -> str:
    if not artifact_file.is_prefix:
        return clean_name(artifact_file.path)
    return clean_name(f"{artifact_file.path}/{member.name.removeprefix(member_prefix(artifact_file))}")


def file_mode(artifact_file: ArtifactFile, member: ArchiveMember) -> int:
    """One file gets the mode it is wanted with; below a prefix, programs stay programs and the rest does not."""
    if not artifact_file.is_prefix:
        return artifact_file.mode
    return artifact_file.mode & (0o755 if member.mode & 0o100 else 0o644)


def archive_broken_error(artifact: Artifact, why: str) -> ArtifactError:
    return ArtifactError(
        "archive-corrupt",
        f"The archive {redact_url(artifact.url)} {why}.",
        "Its bytes are as its checksum says, so it was published broken, or the checksum is of another file.",
    )


def archive_hostile_error(artifact: Artifact, why: str) -> ArtifactError:
    return ArtifactError(
        "archive-unsafe",
        f"The archive {redact_url(artifact.url)} {why}. Nothing of it was kept.",
        "Do not use this file. Tell its publisher, and whoever runs the mirror it came from.",
    )


def archive_incomplete_error(artifact: Artifact, why: str) -> ArtifactError:
    return ArtifactError(
        "archive-incomplete",
        f"The archive {redact_url(artifact.url)} {why}.",
        "Is the URL in the configuration that of the right archive? See `tar -tzf` of it.",
    )
