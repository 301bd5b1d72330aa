"""Extracts the required files of an archive into a staged tree and hashes them while writing. Other members are
validated but not written.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import field
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
from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile, StagedFile
from aks_flex_node.agent.http.download_options import redact_url
from aks_flex_node.atomic_file import CREATE_FLAGS
from aks_flex_node.errors import ArtifactError
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.agent.artifacts.cache import VerifiedFile


def unpack(artifact: Artifact, blob: VerifiedFile, root: Path, check: Callable[[], None]) -> dict[str, StagedFile]:
    """Extracts the required files of the archive below `root`. Calls `check`, which can raise, between files."""
    extraction = Extraction(artifact, root)
    try:
        with closing(ArchiveStream(blob)) as stream:
            for member in read_members(stream):
                check()
                extraction.extract(member, stream)
    except ArchiveBroken as error:
        raise ArtifactError(
            "archive-corrupt",
            f"The archive {redact_url(artifact.url)} {error!s}.",
            "The file matches its checksum, so it was published damaged, or the checksum belongs to another file. "
            "Report it to the publisher, or use another version.",
        ) from error
    except ArchiveHostile as error:
        raise ArtifactError(
            "archive-unsafe",
            f"The archive {redact_url(artifact.url)} {error!s}. Nothing was extracted.",
            "Do not use this file. Report it to its publisher and to the administrator of the mirror.",
        ) from error
    missing = [selected.member for selected in artifact.files if selected not in extraction.found]
    if missing:
        raise archive_incomplete_error(artifact, f"does not contain {', '.join(missing)}")
    return extraction.staged


@dataclass
class Extraction:
    artifact: Artifact
    root: Path
    staged: dict[str, StagedFile] = field(default_factory=dict)
    paths_by_member: dict[str, str] = field(default_factory=dict)  # target path of each member
    found: set[ArtifactFile] = field(default_factory=set)

    def extract(self, member: ArchiveMember, stream: ArchiveStream) -> None:
        # An exact name takes precedence over a prefix.
        exact = [
            each for each in self.artifact.files if not each.is_prefix and clean_name(each.member) == member.name
        ]
        below = [
            each for each in self.artifact.files if each.is_prefix and member.name.startswith(member_prefix(each))
        ]
        selected = next(iter([*exact, *below]), None)
        if selected is None or member.kind == "folder":
            return
        path = target_path(selected, member)
        target = self.root / path
        make_directory(target.parent)
        if path in self.staged or os.path.lexists(target):
            raise ArchiveHostile(f"extracts {display_name(member.name)} to a path that already exists")
        if member.kind == "file":
            mode = file_mode(selected, member)
            with explain_disk_full(target, member.size):
                self.staged[path] = write_file(target, member.size, mode, stream)
        elif member.kind == "hard link":
            first = self.paths_by_member.get(member.target)
            if first is None:
                raise archive_incomplete_error(
                    self.artifact, f"has {member.name} as a link to {member.target}, which is not extracted"
                )
            os.link(self.root / first, target)
            self.staged[path] = self.staged[first]
        else:
            # A symbolic link, whose target must be inside the extracted prefix.
            if not selected.is_prefix:
                raise archive_incomplete_error(
                    self.artifact, f"has {member.name} as a symbolic link instead of a file"
                )
            check_target(member.name.removeprefix(member_prefix(selected)), member.target)
            target.symlink_to(member.target)
            self.staged[path] = StagedFile("", 0, 0, member.target)
        self.paths_by_member[member.name] = path
        self.found.add(selected)


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
    """Returns the normalized prefix: `./bin/` is `bin/`, and `./` and `/` are the whole archive."""
    clean = clean_name(artifact_file.member.lstrip("/"))
    return f"{clean}/" if clean else ""


def target_path(artifact_file: ArtifactFile, member: ArchiveMember) -> str:
    if not artifact_file.is_prefix:
        return clean_name(artifact_file.path)
    return clean_name(f"{artifact_file.path}/{member.name.removeprefix(member_prefix(artifact_file))}")


def file_mode(artifact_file: ArtifactFile, member: ArchiveMember) -> int:
    """Returns the configured mode. Below a prefix, only executables keep the executable bits."""
    if not artifact_file.is_prefix:
        return artifact_file.mode
    return artifact_file.mode & (0o755 if member.mode & 0o100 else 0o644)


def archive_incomplete_error(artifact: Artifact, cause: str) -> ArtifactError:
    return ArtifactError(
        "archive-incomplete",
        f"The archive {redact_url(artifact.url)} {cause}.",
        "Check that the URL in the configuration is the right archive, and list its files with `tar -tzf`.",
    )
