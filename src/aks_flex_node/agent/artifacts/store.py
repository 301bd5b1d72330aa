"""The store: fetches and stages trees in the background while other steps work.

Each artifact is one piece of work for one thread: fetched, verified and unpacked while others still download. All
that costs time (TLS, hashing, inflating, writing) happens outside of Python's lock, so threads use all cores.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.bundles import Bundle
from aks_flex_node.agent.artifacts.caches import Cache
from aks_flex_node.agent.artifacts.connections import Network
from aks_flex_node.agent.artifacts.fetching import Fetching
from aks_flex_node.agent.artifacts.jobs import Job
from aks_flex_node.agent.artifacts.persistence import Pace, Persistence, stopped_error
from aks_flex_node.agent.artifacts.space import in_megabytes
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aks_flex_node.agent.artifacts.manifests import Manifest
    from aks_flex_node.agent.artifacts.sources import Sources
    from aks_flex_node.agent.artifacts.transfers import Transfer
    from aks_flex_node.agent.artifacts.trees import Artifact, Tree

CLOSING_SECONDS = 2.0  # for a thread that waits for an answer; it writes nothing after that


class Store:
    def __init__(
        self,
        cache: Path,
        sources: Sources,
        *,
        observe: Callable[[Transfer], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._sources, self._observe = sources, observe
        self._stopped = threading.Event()
        self._network = Network(sources)
        persistence = Persistence(sources.attempts, pace or Pace(), self._stopped)
        kept = Cache(cache)
        bundle = Bundle.at(sources.bundle, kept) if sources.bundle else None
        self._fetching = Fetching(kept, sources, self._network, persistence, bundle)
        self._lock = threading.Lock()
        self._jobs: dict[Tree, Job] = {}
        self._queue: deque[tuple[Job, Artifact]] = deque()
        self._threads: set[threading.Thread] = set()

    def prepare(self, trees: Sequence[Tree]) -> None:
        """Start now, the first first. What is ready or under way already goes on as it is."""
        import urllib3  # noqa: F401 - here, because threads that import it at the same time can lock each other out

        with self._lock:
            for tree in trees:
                known = self._jobs.get(tree)
                if known is None or known.is_over:
                    job = self._jobs[tree] = Job(tree, self._fetching, self._observe, self._stopped)
                    self._queue.extend((job, artifact) for artifact in job.progress)
            for _ in range(min(self._sources.parallel - len(self._threads), len(self._queue))):
                thread = threading.Thread(target=self._work, name="artifacts", daemon=True)
                self._threads.add(thread)
                thread.start()

    def wait(self, tree: Tree, seconds: float) -> Manifest:
        """Until the tree is staged; raises the error of what failed."""
        with self._lock:
            known = tree in self._jobs
        if not known:
            self.prepare([tree])
        job = self._jobs[tree]
        if not job.over.wait(seconds):
            raise late(job, seconds)
        if job.error:
            raise job.error
        return job.result

    def transfers(self) -> list[Transfer]:
        with self._lock:
            jobs = list(self._jobs.values())
        return [progress.now for job in jobs for progress in job.progress.values()]

    def close(self) -> None:
        """End the threads. What was downloaded so far stays for the next time."""
        self._stopped.set()
        with self._lock:
            self._queue.clear()
            threads, jobs = list(self._threads), list(self._jobs.values())
        self._network.close()
        end = time.monotonic() + CLOSING_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        for job in jobs:
            job.fail(stopped_error())

    def _work(self) -> None:
        while work := self._next():
            job, artifact = work
            job.carry_out(artifact)

    def _next(self) -> tuple[Job, Artifact] | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._threads.discard(threading.current_thread())
            return None


def late(job: Job, seconds: float) -> ArtifactError:
    tree = job.tree
    transfers = [progress.now for progress in job.progress.values()]
    state = ", ".join(
        f"{each.name}: {each.state.value}, {in_megabytes(each.done)}"
        + (f" of {in_megabytes(each.total)}" if each.total else "")
        for each in transfers
    )
    return ArtifactError(
        "artifact-late",
        f"{tree.component} {tree.version} was not ready within {seconds:g} s ({state}).",
        "The network may be slow. Start again: what was fetched so far is kept.",
        again=True,
    )
