"""Carries out the long-running operations on flex node pools, and deletes Nodes of deleted Machines."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_lab.arm.flex_pools.model import ArmErrorDetail, PoolOperation
from aks_flex_lab.arm.flex_pools.nodes import CLUSTER_ERRORS, ClusterNodes
from aks_flex_lab.arm.flex_pools.upgrade import PoolUpgrade

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aks_flex_lab.arm.flex_pools.model import FlexPoolStore
    from aks_flex_lab.arm.managed_clusters import ManagedClusters

logger = logging.getLogger(__name__)


class PoolController:
    """Runs each operation as a task. Operations end with the server; what they change can be asked for again."""

    def __init__(self, store: FlexPoolStore, clusters: ManagedClusters) -> None:
        self._store = store
        self._clusters = clusters
        self._nodes: dict[str, ClusterNodes] = {}  # by the ID and the kubeconfig of their cluster
        self._tasks = set[asyncio.Task[None]]()
        self.operations: dict[str, PoolOperation] = {}

    def active_operation(self, target: str) -> PoolOperation | None:
        for each in self.operations.values():
            if each.status == "InProgress" and each.target.lower() == target.lower():
                return each
        return None

    def start(self, operation: PoolOperation) -> None:
        self.operations[operation.id] = operation
        self._start(self._run(operation))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._nodes.values():
            await each.close()

    def nodes_of(self, id: str) -> ClusterNodes:  # noqa: A002 - ARM's own word
        """Returns the Nodes of the cluster of a pool or a Machine."""
        cluster = self._clusters.find(id.lower().partition("/agentpools/")[0])
        assert cluster  # noqa: S101 - a pool exists only in a registered cluster
        return self._nodes.setdefault(f"{cluster.id.lower()} {cluster.kubeconfig}", ClusterNodes(cluster))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, operation: PoolOperation) -> None:
        perform = {
            "putPool": self._wait,
            "deletePool": self._wait,
            "upgradePool": self._upgrade,
            "putMachine": self._put_machine,
            "deleteMachines": self._delete_machines,
        }[operation.kind]
        try:
            operation.error = await perform(operation)
        except CLUSTER_ERRORS as failure:
            operation.error = ArmErrorDetail("KubernetesAPICallFailed", str(failure))
        except Exception:
            logger.exception("Operation %s of %s failed.", operation.kind, operation.target)
            operation.error = ArmErrorDetail("InternalOperationError", "Internal server error.")
        self._end(operation)

    def _end(self, operation: PoolOperation) -> None:
        """Ends an operation, and sets the provisioning state of its pool or Machine."""
        key = operation.target.lower()
        status: Literal["Failed", "Succeeded"] = "Failed" if operation.error else "Succeeded"
        with self._store.changing() as state:
            pool = state.pools.get(key)
            if operation.kind == "deletePool" and not operation.error:
                del state.pools[key]
            elif resource := pool or state.machines.get(key):
                resource.state, resource.error = status, operation.error
            if pool and operation.kind == "upgradePool" and not operation.error:
                pool.current_version = pool.settings.orchestrator_version
        operation.status, operation.ended = status, time.time()

    async def _wait(self, _: PoolOperation) -> None:
        await asyncio.sleep(self._store.timings.operation_seconds)

    async def _upgrade(self, operation: PoolOperation) -> ArmErrorDetail | None:
        return await PoolUpgrade(self._store, self.nodes_of(operation.target), operation.target).run()

    async def _put_machine(self, operation: PoolOperation) -> None:
        await asyncio.sleep(self._store.timings.operation_seconds)
        key = operation.target.lower()
        machine = self._store.read().machines.get(key)
        if machine is None or not self._store.timings.reconcile_nodes:
            return
        await self.nodes_of(machine.id).reconcile(machine)
        with self._store.changing() as state:
            if known := state.machines.get(key):
                known.applied_labels = tuple(machine.settings.node_labels)
                known.applied_taints = machine.settings.node_taints

    async def _delete_machines(self, operation: PoolOperation) -> None:
        nodes, timings = self.nodes_of(operation.target), self._store.timings
        for name in operation.machines:
            with self._store.changing() as state:
                state.machines.pop(f"{operation.target}/machines/{name}".lower(), None)
            node = await nodes.find(name.lower())
            if node is None:
                continue
            await nodes.set_schedulable(node.name, False)
            try:
                await nodes.drain(node.name, timings.drain_seconds, timings.poll_seconds)
            except TimeoutError as left:
                logger.warning("These pods of node %s are not evicted: %s.", node.name, left)
            await nodes.mark_deleting(node.name)  # Its agent then resets the host, and may delete the Node.
            self._start(self._delete_stale(nodes, f"{operation.target}/machines/{name}", node.uid))

    async def _delete_stale(self, nodes: ClusterNodes, machine_id: str, uid: str) -> None:
        """Deletes the Node of a deleted Machine when it is not Ready, unless the Machine exists again."""
        name = machine_id.rpartition("/")[2].lower()
        while machine_id.lower() not in self._store.read().machines:
            await asyncio.sleep(self._store.timings.cleanup_seconds)
            try:
                node = await nodes.find(name)
                if node is None or node.uid != uid or (not node.is_ready and await nodes.delete(name, uid)):
                    return
            except CLUSTER_ERRORS as error:
                logger.warning("Node %s of a deleted machine was not checked: %s", name, error)
