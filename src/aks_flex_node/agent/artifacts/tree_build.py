"""Builds one directory tree: several threads fetch and unpack its artifacts into a partial directory, and the last
one writes the manifest and renames the directory to its staging path.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.disk_space import explain_disk_full, make_directory, remove_tree
from aks_flex_node.agent.artifacts.download import Transfer, TransferProgress, TransferState
from aks_flex_node.agent.artifacts.model import (
    Artifact,
    ArtifactFile,
    ArtifactOrigin,
    ArtifactTree,
    StagedFile,
    TreeManifest,
)
from aks_flex_node.agent.artifacts.unpack import unpack
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import stopped_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aks_flex_node.agent.artifacts.cache import VerifiedFile
    from aks_flex_node.agent.artifacts.digest import TrustedDigest
    from aks_flex_node.agent.artifacts.fetcher import ArtifactFetcher


LINK_REFUSED_ERRNOS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
COPY_CHUNK_BYTES = 1 << 18
REJECTED_ARCHIVES = frozenset(("archive-corrupt", "archive-incomplete", "archive-unsafe"))

StagedFiles = dict[str, StagedFile]


def find_staged(tree: ArtifactTree) -> TreeManifest | None:
    """Returns the manifest of a tree that an earlier run staged, if it is complete and unchanged."""
    manifest = TreeManifest.read(tree.staging)
    return manifest if manifest and manifest.matches(tree) and manifest.is_intact(tree.staging) else None


def adopt_ahead(tree: ArtifactTree, local_digest: Callable[[Artifact], TrustedDigest | None]) -> TreeManifest | None:
    """Moves a tree that was built ahead to its staging path. Returns None if there is none that is intact, or if this
    machine knows another digest meanwhile: its administrator may have set one since.
    """
    if tree.ahead is None:
        return None
    known = [(artifact, local_digest(artifact)) for artifact in tree.artifacts]
    pinned = tuple(replace(artifact, digest=str(each.digest)) if each else artifact for artifact, each in known)
    manifest = find_staged(replace(tree, artifacts=pinned, staging=tree.ahead))
    if manifest is None:
        return None
    make_directory(tree.staging.parent)
    remove_tree(tree.staging)
    try:
        tree.ahead.rename(tree.staging)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # From another file system: it is complete at its staging path or not there at all.
        remove_tree(partial_dir(tree))
        with explain_disk_full(tree.staging, sum(file.stat().st_size for file in tree.ahead.rglob("*"))):
            shutil.copytree(tree.ahead, partial_dir(tree), symlinks=True)
        partial_dir(tree).rename(tree.staging)
        remove_tree(tree.ahead)
    return manifest


def begin_staging(tree: ArtifactTree) -> None:
    remove_tree(partial_dir(tree))
    make_directory(partial_dir(tree))


def stage_artifact(
    tree: ArtifactTree, artifact: Artifact, blob: VerifiedFile, check: Callable[[], None]
) -> StagedFiles:
    """Adds the files of an artifact to the tree."""
    root = partial_dir(tree)
    if not artifact.is_plain:
        return unpack(artifact, blob, root, check)
    return {file.path: place_file(blob, root / file.path, file) for file in artifact.files}


def commit_staging(tree: ArtifactTree, parts: Mapping[Artifact, tuple[VerifiedFile, StagedFiles]]) -> TreeManifest:
    """Writes the manifest and renames the partial directory to its staging path."""
    origins = tuple(ArtifactOrigin.of(artifact, parts[artifact][0].trusted_digest) for artifact in tree.artifacts)
    files = {path: file for _, staged in parts.values() for path, file in staged.items()}
    manifest = TreeManifest(tree.component, tree.version, origins, dict(sorted(files.items())))
    manifest.write(partial_dir(tree))
    remove_tree(tree.staging)
    partial_dir(tree).rename(tree.staging)
    return manifest


def partial_dir(tree: ArtifactTree) -> Path:
    return tree.staging.with_name(f"{tree.staging.name}.partial")


def place_file(blob: VerifiedFile, path: Path, artifact_file: ArtifactFile) -> StagedFile:
    """Adds a plain file: as a hard link to the cache if possible, else as a copy."""
    make_directory(path.parent)
    with explain_disk_full(path, blob.size):
        if not link_file(blob, path, artifact_file.mode):
            copy_file(blob, path, artifact_file.mode)
    return StagedFile(blob.sha256, blob.size, artifact_file.mode)


def link_file(blob: VerifiedFile, path: Path, mode: int) -> bool:
    """Hard-links a file. Returns False if that is not possible. All links of a file have the same mode."""
    if not blob.linkable:
        return False
    status = blob.path.stat()
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        return False  # a changed owner applies to all links of the file
    if stat.S_IMODE(status.st_mode) != mode:
        if status.st_nlink > 1:
            return False
        blob.path.chmod(mode)
    try:
        os.link(blob.path, path)
    except OSError as error:
        if error.errno not in LINK_REFUSED_ERRNOS:
            raise
        return False
    return True


def copy_file(blob: VerifiedFile, path: Path, mode: int) -> None:
    with blob.path.open("rb", buffering=0) as source, path.open("xb", buffering=0) as target:
        offset, end = blob.offset, blob.offset + blob.size
        while offset < end:
            sent = os.sendfile(target.fileno(), source.fileno(), offset, min(COPY_CHUNK_BYTES, end - offset))
            if not sent:
                raise OSError(errno.EIO, "the file became shorter while it was copied", str(blob.path))
            offset += sent
        os.fchmod(target.fileno(), mode)


class TreeBuild:
    def __init__(
        self,
        tree: ArtifactTree,
        fetching: ArtifactFetcher,
        observe: Callable[[Transfer], None] | None,
        stopped: threading.Event,
    ) -> None:
        self.tree = tree
        self.progress = {artifact: TransferProgress(artifact, observe) for artifact in tree.artifacts}
        self.over = threading.Event()
        self.error: ArtifactError | None = None
        self._fetching, self._stopped = fetching, stopped
        self._lock = threading.Lock()
        self._begun = False
        self._unpacking = 0  # threads that currently write into the tree
        self._parts: dict[Artifact, tuple[VerifiedFile, StagedFiles]] = {}
        self._manifest: TreeManifest | None = None

    @property
    def is_over(self) -> bool:
        """Returns whether the build failed or its tree has already been installed."""
        return self.over.is_set() and (self.error is not None or not self.tree.staging.exists())

    @property
    def result(self) -> TreeManifest:
        if self._manifest is None:
            raise AssertionError("result read before the build finished")
        return self._manifest

    def process(self, artifact: Artifact) -> None:
        """Fetches and unpacks one artifact, and completes the tree after the last one. Raises nothing."""
        progress = self.progress[artifact]
        try:
            return self._fetch_and_stage(artifact, progress)
        except ArtifactError as error:
            failure = error
        except OSError as error:
            failure = ArtifactError(
                "artifact-store-not-writable",
                f"{self.tree.component} {self.tree.version} could not be stored: {error}.",
                f"Run `findmnt -T {self.tree.staging.parent}` and `dmesg | tail`. If the file system is mounted "
                "read-only, mount it read-write, then run the same command again.",
            )
        except Exception as error:  # otherwise wait() would never return
            failure = unexpected_error(artifact, error)
        progress.set_state(TransferState.FAILED)
        return self.fail(failure)

    def fail(self, error: ArtifactError) -> None:
        """Records the first error. Waiters see it after the partial tree has been removed."""
        with self._lock:
            if self.over.is_set():
                return
            self.error = self.error or error
            self._end_if_failed()

    def _fetch_and_stage(self, artifact: Artifact, progress: TransferProgress) -> None:
        if self.error:
            progress.set_state(TransferState.FAILED)
            return
        if not self._begin():
            progress.set_cached(progress.current.done)
            progress.set_state(TransferState.READY)
            return
        progress.set_state(TransferState.FETCHING)
        blob = self._fetching.fetch(artifact, progress)
        if not self._enter():
            progress.set_state(TransferState.FAILED)
            return
        try:
            progress.set_state(TransferState.UNPACKING)
            self._parts[artifact] = blob, stage_artifact(self.tree, artifact, blob, self._check)
            progress.set_state(TransferState.READY)
        except ArtifactError as error:
            if error.name in REJECTED_ARCHIVES:
                self._fetching.reject(blob)
            raise
        finally:
            with self._lock:
                self._unpacking -= 1
                self._end_if_failed()
                if self.error is None and len(self._parts) == len(self.progress):
                    self._manifest = commit_staging(self.tree, self._parts)
                    self.over.set()

    def _begin(self) -> bool:
        """Returns whether the tree must be built. The first thread checks for a tree of an earlier run."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._manifest = find_staged(self.tree) or adopt_ahead(self.tree, self._fetching.local_digest)
                if self._manifest:
                    self.over.set()
                else:
                    begin_staging(self.tree)
            return self._manifest is None

    def _enter(self) -> bool:
        with self._lock:
            if self.error is None:
                self._unpacking += 1
            return self.error is None

    def _end_if_failed(self) -> None:
        if self.error and not self._unpacking and not self.over.is_set():
            with suppress(OSError):  # the next run removes it before it starts
                remove_tree(partial_dir(self.tree))
            self.over.set()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise stopped_error()


def unexpected_error(artifact: Artifact, error: Exception) -> ArtifactError:
    return ArtifactError(
        "artifact-response-invalid",
        f"{artifact.name} could not be prepared: {type(error).__name__}: {error}.",
        "Run `aks-flex-node artifacts clean`, then run the same command again. Report the error with this message.",
    )
