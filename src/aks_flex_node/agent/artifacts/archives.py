"""Unpacking: what is wanted of an archive goes into the tree, hashed on its way; all the rest is only judged."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.downloads import write_all
from aks_flex_node.agent.artifacts.inflating import Broken, Hostile, Inflated
from aks_flex_node.agent.artifacts.manifests import StagedFile
from aks_flex_node.agent.artifacts.members import Member, check_target, clean_name, members, shown
from aks_flex_node.agent.artifacts.sources import without_secrets
from aks_flex_node.agent.artifacts.space import make_folder, room_for
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.agent.artifacts.caches import Blob
    from aks_flex_node.agent.artifacts.trees import Artifact, Wanted

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(artifact: Artifact, blob: Blob, root: Path, check: Callable[[], None]) -> dict[str, StagedFile]:
    """Everything that is wanted of the archive, below `root`. `check` is called between files, and may raise."""
    unpacking = Unpacking(artifact, root)
    try:
        with closing(Inflated(blob)) as stream:
            for member in members(stream):
                check()
                unpacking.take(member, stream)
    except Broken as error:
        raise broken(artifact, str(error)) from error
    except Hostile as error:
        raise hostile(artifact, str(error)) from error
    unpacking.require_all()
    return unpacking.staged


@dataclass
class Unpacking:
    artifact: Artifact
    root: Path
    staged: dict[str, StagedFile] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # where each member went
    found: set[Wanted] = field(default_factory=set)

    def take(self, member: Member, stream: Inflated) -> None:
        wanted = self._wanted(member)
        if wanted is None or member.kind == "folder":
            return
        path = place_of(wanted, member)
        target = self._room(path, member)
        if member.kind == "file":
            mode = mode_of(wanted, member)
            with room_for(target, member.size):
                self.staged[path] = write_file(target, member.size, mode, stream)
        elif member.kind == "hard link":
            self.staged[path] = self._link_file(member, target)
        else:
            self.staged[path] = self._link(wanted, member, target)
        self.places[member.name] = path
        self.found.add(wanted)

    def require_all(self) -> None:
        lacking = [wanted.member for wanted in self.artifact.files if wanted not in self.found]
        if lacking:
            raise incomplete(self.artifact, f"does not hold {', '.join(lacking)}")

    def _wanted(self, member: Member) -> Wanted | None:
        """An exact name comes before a prefix."""
        exact = [
            each for each in self.artifact.files if not each.is_prefix and clean_name(each.member) == member.name
        ]
        below = [each for each in self.artifact.files if each.is_prefix and is_below(member.name, prefix_of(each))]
        return next(iter([*exact, *below]), None)

    def _room(self, path: str, member: Member) -> Path:
        """The place of a file, with the directories above it."""
        target = self.root / path
        make_folder(target.parent)
        if path in self.staged or os.path.lexists(target):
            raise Hostile(f"puts {shown(member.name)} where something else is already")
        return target

    def _link_file(self, member: Member, target: Path) -> StagedFile:
        first = self.places.get(member.target)
        if first is None:
            raise incomplete(self.artifact, f"has {member.name} as a link to {member.target}, which is not wanted")
        os.link(self.root / first, target)
        return self.staged[first]

    def _link(self, wanted: Wanted, member: Member, target: Path) -> StagedFile:
        """It has to stay inside what is wanted, too."""
        if not wanted.is_prefix:
            raise incomplete(self.artifact, f"has {member.name} as a symbolic link, not as a file")
        check_target(member.name.removeprefix(prefix_of(wanted)), member.target)
        target.symlink_to(member.target)
        return StagedFile("", 0, 0, member.target)


def write_file(target: Path, size: int, mode: int, stream: Inflated) -> StagedFile:
    running = sha256()
    descriptor = os.open(target, NEW_FILE, 0o600)
    try:
        for piece in stream.pieces(size):
            write_all(descriptor, piece)
            running.update(piece)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return StagedFile(running.hexdigest(), size, mode)


def prefix_of(wanted: Wanted) -> str:
    """`bin/` and `./bin/` are the same; `./` and `/` are everything."""
    clean = clean_name(wanted.member.lstrip("/"))
    return f"{clean}/" if clean else ""


def is_below(name: str, prefix: str) -> bool:
    return name.startswith(prefix)


def place_of(wanted: Wanted, member: Member) -> str:
    if not wanted.is_prefix:
        return clean_name(wanted.path)
    return clean_name(f"{wanted.path}/{member.name.removeprefix(prefix_of(wanted))}")


def mode_of(wanted: Wanted, member: Member) -> int:
    """One file gets the mode it is wanted with; below a prefix, programs stay programs and the rest does not."""
    if not wanted.is_prefix:
        return wanted.mode
    return wanted.mode & (0o755 if member.mode & 0o100 else 0o644)


def broken(artifact: Artifact, why: str) -> ArtifactError:
    return ArtifactError(
        "archive-broken",
        f"The archive {without_secrets(artifact.url)} {why}.",
        "Its bytes are as its checksum says, so it was published broken, or the checksum is of another file.",
    )


def hostile(artifact: Artifact, why: str) -> ArtifactError:
    return ArtifactError(
        "archive-hostile",
        f"The archive {without_secrets(artifact.url)} {why}. Nothing of it was kept.",
        "Do not use this file. Tell its publisher, and whoever runs the mirror it came from.",
    )


def incomplete(artifact: Artifact, why: str) -> ArtifactError:
    return ArtifactError(
        "archive-incomplete",
        f"The archive {without_secrets(artifact.url)} {why}.",
        "Is the URL in the configuration that of the right archive? See `tar -tzf` of it.",
    )
