"""One tree on its way: its artifacts are worked on by several threads, and the last one finishes it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import staging
from aks_flex_node.agent.artifacts.persistence import stopped_error
from aks_flex_node.agent.artifacts.transfers import Progress, State
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.artifacts.caches import Blob
    from aks_flex_node.agent.artifacts.fetching import Fetching
    from aks_flex_node.agent.artifacts.manifests import Manifest
    from aks_flex_node.agent.artifacts.transfers import Transfer
    from aks_flex_node.agent.artifacts.trees import Artifact, Tree


class Job:
    def __init__(
        self,
        tree: Tree,
        fetching: Fetching,
        observe: Callable[[Transfer], None] | None,
        stopped: threading.Event,
    ) -> None:
        self.tree = tree
        self.progress = {artifact: Progress(artifact, observe) for artifact in tree.artifacts}
        self.over = threading.Event()
        self.error: ArtifactError | None = None
        self._fetching, self._stopped = fetching, stopped
        self._lock = threading.Lock()
        self._begun = False
        self._unpacking = 0  # threads that write into the tree at this moment
        self._parts: dict[Artifact, tuple[Blob, staging.Files]] = {}
        self._manifest: Manifest | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be expected of it: it failed, or its tree has been taken to its place."""
        return self.over.is_set() and (self.error is not None or not self.tree.staging.exists())

    @property
    def result(self) -> Manifest:
        if self._manifest is None:
            raise AssertionError("asked before it was over")
        return self._manifest

    def carry_out(self, artifact: Artifact) -> None:
        """Fetch and unpack one artifact, and finish the tree if it was the last. Nothing is raised from here."""
        progress = self.progress[artifact]
        try:
            self._carry_out(artifact, progress)
        except ArtifactError as error:
            progress.becomes(State.FAILED)
            self.fail(error)
        except OSError as error:
            progress.becomes(State.FAILED)
            self.fail(unusable(self.tree, error))
        except Exception as error:  # a thread that dies in silence would let its waiter wait for ever
            progress.becomes(State.FAILED)
            self.fail(unexpected(artifact, error))

    def fail(self, error: ArtifactError) -> None:
        """The first error counts. It is told once nothing of the tree is left."""
        with self._lock:
            if self.over.is_set():
                return
            self.error = self.error or error
            self._end_if_failed()

    def _carry_out(self, artifact: Artifact, progress: Progress) -> None:
        if self.error:
            progress.becomes(State.FAILED)
            return
        if not self._begin():
            progress.was_here(progress.now.done)
            progress.becomes(State.READY)
            return
        progress.becomes(State.FETCHING)
        blob = self._fetching.obtain(artifact, progress)
        if not self._enter():
            progress.becomes(State.FAILED)
            return
        try:
            progress.becomes(State.UNPACKING)
            self._parts[artifact] = blob, staging.add(self.tree, artifact, blob, self._check)
            progress.becomes(State.READY)
        finally:
            self._leave()

    def _begin(self) -> bool:
        """Whether there is something to do; the first thread looks at what an earlier run left."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._manifest = staging.find_staged(self.tree)
                if self._manifest:
                    self.over.set()
                else:
                    staging.begin(self.tree)
            return self._manifest is None

    def _enter(self) -> bool:
        with self._lock:
            if self.error is None:
                self._unpacking += 1
            return self.error is None

    def _leave(self) -> None:
        with self._lock:
            self._unpacking -= 1
            self._end_if_failed()
            if self.error is None and len(self._parts) == len(self.progress):
                self._manifest = staging.finish(self.tree, self._parts)
                self.over.set()

    def _end_if_failed(self) -> None:
        if self.error and not self._unpacking and not self.over.is_set():
            with suppress(OSError):  # the next run removes it before it begins
                staging.abandon(self.tree)
            self.over.set()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise stopped_error()


def unusable(tree: Tree, error: OSError) -> ArtifactError:
    return ArtifactError(
        "store-unusable",
        f"{tree.component} {tree.version} could not be kept: {error}.",
        f"Look at the disk with `df -h {tree.staging.parent}` and `dmesg`; is it mounted read-only?",
    )


def unexpected(artifact: Artifact, error: Exception) -> ArtifactError:
    return ArtifactError(
        "artifact-unexpected",
        f"{artifact.name} could not be prepared: {type(error).__name__}: {error}.",
        "This is a mistake of ours. Please report it with this message.",
    )
