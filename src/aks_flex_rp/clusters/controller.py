"""Controller of one cluster: runs the informers and periodic tasks for certificates, Nodes, access, taints, facts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.clusters import prerequisites
from aks_flex_rp.clusters.access import IDENTITY_LABEL, SETTLE_SECONDS, AccessController
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
    """Intervals and time limits of the controller, in seconds."""

    refresh: float = 60.0  # reading the facts of the cluster
    clean_up: float = 10.0  # tasks that no event triggers
    grace: float = ISSUE_GRACE_SECONDS  # maximum time to issue a certificate
    settle: float = SETTLE_SECONDS  # how long the granted access may differ from the recorded access
    gone_after: float = (
        LOST_AFTER_SECONDS  # how long the Node of a deleted resource must be NotReady before it is deleted
    )


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
        shared_addresses: bool = False,
    ) -> None:
        """Creates the controller. `overrides` are facts that the administrator set for the cluster."""
        self.client = open_client(connection, arm)
        self._cluster = cluster
        self._handler = handler
        self._overrides = overrides
        self._facts: ClusterFacts | None = None  # last read
        self._pace = intervals or ControllerIntervals()
        self._shared_addresses = shared_addresses
        self._taints = TaintController(cluster, self.client, handler)
        self._access = AccessController(cluster, self.client, handler, self._pace.settle, self._pace.gone_after)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the tasks without waiting for the cluster to respond."""
        approver = CsrApprover(
            self._cluster,
            self.client,
            self._handler,
            self.facts,
            self._pace.grace,
            shared_addresses=self._shared_addresses,
        )
        lost = LostNodeCollector(self._cluster, self.client, self._handler, self._pace.gone_after)
        nodes = NodeController(self._cluster, self.client, self._handler, self._taints, lost)
        self._run("certificates", Informer(self.client, REQUESTS, approver).once)
        self._run("nodes", Informer(self.client, NODES, nodes).once)
        self._run("access", Informer(self.client, prerequisites.BINDINGS, self._access, IDENTITY_LABEL).once)
        self._run("taints", self._taints.run)
        self._run("old access", self._access.clean_up, self._pace.clean_up)
        self._run("lost nodes", lost.clean_up, self._pace.refresh)
        self._run("tokens", approver.clean_up, self._pace.clean_up)
        self._run("old tokens", approver.sweep, self._pace.refresh)
        self._run("facts", self.refresh, self._pace.refresh)

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def node_changed(self, name: str | None) -> None:
        """Marks a node for reconciliation, because its desired state may have changed. None means all nodes."""
        self._taints.mark_due(name)
        self._access.mark_due(name)

    async def facts(self) -> ClusterFacts:
        return self._facts or await self._read()

    async def refresh(self) -> None:
        """Reads and reports the facts of the cluster, and corrects the objects that flex nodes need."""
        await self._handler.on_cluster_facts(self._cluster, await self._read())
        try:
            await prerequisites.ensure_objects(self.client)
        except ApiRefused as refusal:  # missing permissions need an administrator, so an earlier retry does not help
            log.warning("%s: cannot apply the objects that flex nodes need: %s", self._cluster, refusal.message)

    async def _read(self) -> ClusterFacts:
        self._facts = await read_facts(self.client, self._overrides)
        return self._facts

    def _run(self, what: str, once: Callable[[], Awaitable[None]], rest: float = 0.0) -> None:
        name = f"{self._cluster}: {what}"
        self._tasks.append(asyncio.create_task(run_periodically(name, once, rest), name=name))
