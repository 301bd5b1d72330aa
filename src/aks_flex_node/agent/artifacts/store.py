"""The artifact store: worker threads fetch, verify and unpack trees in the background while other bootstrap steps
run. Each artifact is processed by one thread. TLS, hashing, decompression and writing release the GIL.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundle import OfflineBundle
from aks_flex_node.agent.artifacts.cache import ArtifactCache
from aks_flex_node.agent.artifacts.disk_space import format_megabytes
from aks_flex_node.agent.artifacts.fetcher import ArtifactFetcher
from aks_flex_node.agent.artifacts.tree_build import TreeBuild
from aks_flex_node.agent.artifacts.trust import LocalDigests
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import Retrier, RetryBackoff, stopped_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aks_flex_node.agent.artifacts.download import Transfer
    from aks_flex_node.agent.artifacts.model import Artifact, ArtifactTree, TreeManifest
    from aks_flex_node.agent.http.download_options import DownloadOptions

CLOSING_SECONDS = 2.0  # limit for threads that wait for a response; they write nothing afterwards


class ArtifactStore:
    def __init__(
        self,
        cache: Path,
        sources: DownloadOptions,
        *,
        observe: Callable[[Transfer], None] | None = None,
        backoff: RetryBackoff | None = None,
        digests: LocalDigests | None = None,
    ) -> None:
        self._sources, self._observe = sources, observe
        self._stopped = threading.Event()
        retrier = Retrier(sources.attempts, backoff or RetryBackoff(), self._stopped)
        artifact_cache = ArtifactCache(cache)
        bundle = OfflineBundle.at(sources.bundle, artifact_cache) if sources.bundle else None
        self._fetching = ArtifactFetcher(artifact_cache, sources, retrier, digests or LocalDigests(), bundle)
        self._lock = threading.Lock()
        self._jobs: dict[ArtifactTree, TreeBuild] = {}
        self._queue: deque[tuple[TreeBuild, Artifact]] = deque()
        self._threads: set[threading.Thread] = set()

    def prepare(self, trees: Sequence[ArtifactTree]) -> None:
        """Starts fetching trees in this order. Trees that are ready or in progress are not started again."""
        import urllib3  # noqa: F401 - here, because threads that import it at the same time can lock each other out

        with self._lock:
            for tree in trees:
                known = self._jobs.get(tree)
                if known is None or known.is_over:
                    job = self._jobs[tree] = TreeBuild(tree, self._fetching, self._observe, self._stopped)
                    self._queue.extend((job, artifact) for artifact in job.progress)
            for _ in range(min(self._sources.parallel - len(self._threads), len(self._queue))):
                thread = threading.Thread(target=self._work, name="artifacts", daemon=True)
                self._threads.add(thread)
                thread.start()

    def wait(self, tree: ArtifactTree, seconds: float) -> TreeManifest:
        """Waits until the tree is staged. Raises the error if it failed."""
        with self._lock:
            known = tree in self._jobs
        if not known:
            self.prepare([tree])
        job = self._jobs[tree]
        if not job.over.wait(seconds):
            state = ", ".join(
                f"{each.name}: {each.state.value}, {format_megabytes(each.done)}"
                + (f" of {format_megabytes(each.total)}" if each.total else "")
                for each in (progress.current for progress in job.progress.values())
            )
            raise ArtifactError(
                "artifact-timeout",
                f"{tree.component} {tree.version} was not ready within {seconds:g} s ({state}).",
                "The network may be slow. Run the same command again. It resumes from the data that was already "
                "downloaded.",
                retryable=True,
            )
        if job.error:
            raise job.error
        return job.result

    def transfers(self) -> list[Transfer]:
        with self._lock:
            jobs = list(self._jobs.values())
        return [progress.current for job in jobs for progress in job.progress.values()]

    def close(self) -> None:
        """Stops the threads. Downloaded data is kept for the next run."""
        self._stopped.set()
        with self._lock:
            self._queue.clear()
            threads, jobs = list(self._threads), list(self._jobs.values())
        self._fetching.close()
        end = time.monotonic() + CLOSING_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        for job in jobs:
            job.fail(stopped_error())

    def _work(self) -> None:
        while work := self._next():
            job, artifact = work
            job.process(artifact)

    def _next(self) -> tuple[TreeBuild, Artifact] | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._threads.discard(threading.current_thread())
            return None
