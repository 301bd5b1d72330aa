"""Controller of one cluster: runs the informers and periodic tasks for certificates, Nodes, access, taints and
facts.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.clusters import prerequisites
from aks_flex_rp.clusters.access import IDENTITY_LABEL
from aks_flex_rp.clusters.access_controller import SETTLE_SECONDS, AccessController
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.csr_approver import ISSUE_GRACE_SECONDS, CsrApprover
from aks_flex_rp.clusters.csr_policy import REQUESTS
from aks_flex_rp.clusters.facts import read_facts
from aks_flex_rp.clusters.informer import Informer, run_periodically
from aks_flex_rp.clusters.managed_cluster import open_client
from aks_flex_rp.clusters.node_controller import LOST_AFTER_SECONDS, NODES, LostNodeCollector, NodeController
from aks_flex_rp.clusters.taint_controller import TaintController

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.clusters.connections import ClusterConnection
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler
    from aks_flex_rp.clusters.facts import ClusterFacts, FactOverrides
    from aks_flex_rp.clusters.managed_cluster import ArmReader

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControllerIntervals:
    """How often things are done, in seconds."""

    refresh: float = 60.0  # what nodes must know of the cluster
    tidy: float = 10.0  # what no event tells of
    grace: float = ISSUE_GRACE_SECONDS  # how long a certificate may take
    settle: float = SETTLE_SECONDS  # how long what nodes may do there may differ from what is noted
    gone_after: float = LOST_AFTER_SECONDS  # how long the Node of a deleted resource may be not Ready


class ClusterController:
    def __init__(
        self,
        cluster: str,
        connection: ClusterConnection,
        handler: ClusterEventHandler,
        *,
        arm: ArmReader | None = None,
        overrides: FactOverrides | None = None,
        intervals: ControllerIntervals | None = None,
    ) -> None:
        """`given` is what a person said of the cluster."""
        self.client = open_client(connection, arm)
        self._cluster = cluster
        self._handler = handler
        self._overrides = overrides
        self._facts: ClusterFacts | None = None  # as they were last read
        self._pace = intervals or ControllerIntervals()
        self._tainting = TaintController(cluster, self.client, handler)
        self._access = AccessController(cluster, self.client, handler, self._pace.settle, self._pace.gone_after)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns at once, whether the cluster answers or not."""
        approver = CsrApprover(self._cluster, self.client, self._handler, self.facts, self._pace.grace)
        lost = LostNodeCollector(self._cluster, self.client, self._handler, self._pace.gone_after)
        nodes = NodeController(self._cluster, self.client, self._handler, self._tainting, lost)
        self._run("certificates", Informer(self.client, REQUESTS, approver).once)
        self._run("nodes", Informer(self.client, NODES, nodes).once)
        self._run("access", Informer(self.client, prerequisites.BINDINGS, self._access, IDENTITY_LABEL).once)
        self._run("taints", self._tainting.run)
        self._run("old access", self._access.tidy, self._pace.tidy)
        self._run("lost nodes", lost.tidy, self._pace.refresh)
        self._run("tokens", approver.tidy, self._pace.tidy)
        self._run("old tokens", approver.sweep, self._pace.refresh)
        self._run("facts", self.refresh, self._pace.refresh)

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def node_changed(self, name: str | None) -> None:
        """What is wanted of a node may be something else now; None for any node."""
        self._tainting.mark_due(name)
        self._access.mark_due(name)

    async def facts(self) -> ClusterFacts:
        return self._facts or await self._read()

    async def refresh(self) -> None:
        """Tell what nodes must know of the cluster, new or not, and put right what the cluster needs."""
        await self._handler.on_cluster_facts(self._cluster, await self._read())
        try:
            await prerequisites.ensure_objects(self.client)
        except ApiRefused as refusal:  # for a person to grant; trying sooner does not help
            log.warning("%s: what flex nodes need cannot be put right: %s", self._cluster, refusal.message)

    async def _read(self) -> ClusterFacts:
        self._facts = await read_facts(self.client, self._overrides)
        return self._facts

    def _run(self, what: str, once: Callable[[], Awaitable[None]], rest: float = 0.0) -> None:
        name = f"{self._cluster}: {what}"
        self._tasks.append(asyncio.create_task(run_periodically(name, once, rest), name=name))
