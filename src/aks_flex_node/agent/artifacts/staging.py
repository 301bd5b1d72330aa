"""A tree in the making: in a directory beside its place, which gets its name when everything is in it."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.archives import unpack
from aks_flex_node.agent.artifacts.manifests import Manifest, Origin, StagedFile
from aks_flex_node.agent.artifacts.space import make_folder, remove_tree, room_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aks_flex_node.agent.artifacts.caches import Blob
    from aks_flex_node.agent.artifacts.trees import Artifact, Tree, Wanted

UNLINKABLE = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
PIECE = 1 << 18

Files = dict[str, StagedFile]


def find_staged(tree: Tree) -> Manifest | None:
    """The tree as an earlier run left it, if it is complete and unchanged."""
    manifest = Manifest.read(tree.staging)
    return manifest if manifest and manifest.fits(tree) and manifest.holds(tree.staging) else None


def begin(tree: Tree) -> None:
    remove_tree(partial_of(tree))
    make_folder(partial_of(tree))


def abandon(tree: Tree) -> None:
    remove_tree(partial_of(tree))


def add(tree: Tree, artifact: Artifact, blob: Blob, check: Callable[[], None]) -> Files:
    """Put what is wanted of an artifact into the tree."""
    root = partial_of(tree)
    if not artifact.is_plain:
        return unpack(artifact, blob, root, check)
    return {wanted.path: place_file(blob, root / wanted.path, wanted) for wanted in artifact.files}


def finish(tree: Tree, parts: Mapping[Artifact, tuple[Blob, Files]]) -> Manifest:
    """Everything is there: write down what, and give the tree its name."""
    origins = tuple(Origin.of(artifact, parts[artifact][0].digest) for artifact in tree.artifacts)
    files = {path: file for _, staged in parts.values() for path, file in staged.items()}
    manifest = Manifest(tree.component, tree.version, origins, dict(sorted(files.items())))
    manifest.write(partial_of(tree))
    remove_tree(tree.staging)
    partial_of(tree).rename(tree.staging)
    return manifest


def partial_of(tree: Tree) -> Path:
    return tree.staging.with_name(f"{tree.staging.name}.partial")


def place_file(blob: Blob, path: Path, wanted: Wanted) -> StagedFile:
    """A file as it is: shared with the cache where that is possible, else copied."""
    make_folder(path.parent)
    with room_for(path, blob.size):
        if not link_file(blob, path, wanted.mode):
            copy_file(blob, path, wanted.mode)
    return StagedFile(blob.sha256, blob.size, wanted.mode)


def link_file(blob: Blob, path: Path, mode: int) -> bool:
    """Whether it could be shared. All names of a file have one mode, so who comes first decides it."""
    if not blob.linkable:
        return False
    status = blob.path.stat()
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        return False  # whoever was given the installed file was given this one as well
    if stat.S_IMODE(status.st_mode) != mode:
        if status.st_nlink > 1:
            return False
        blob.path.chmod(mode)
    try:
        os.link(blob.path, path)
    except OSError as error:
        if error.errno not in UNLINKABLE:
            raise
        return False
    return True


def copy_file(blob: Blob, path: Path, mode: int) -> None:
    with blob.path.open("rb", buffering=0) as source, path.open("xb", buffering=0) as target:
        offset, end = blob.offset, blob.offset + blob.size
        while offset < end:
            sent = os.sendfile(target.fileno(), source.fileno(), offset, min(PIECE, end - offset))
            if not sent:
                raise OSError(errno.EIO, "it became shorter while it was copied", str(blob.path))
            offset += sent
        os.fchmod(target.fileno(), mode)
