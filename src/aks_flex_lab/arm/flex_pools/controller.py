"""Carries out the long-running operations on flex node pools, and deletes Nodes of deleted Machines."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aks_flex_lab.arm.flex_pools.model import ArmErrorDetail, RemovedNode
from aks_flex_lab.arm.flex_pools.nodes import CLUSTER_ERRORS
from aks_flex_lab.arm.flex_pools.upgrade import DEFAULT_DRAIN_MINUTES, PoolUpgrade

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aks_flex_lab.arm.flex_pools.model import FlexPoolStore, PoolMachine, PoolOperation, PoolState
    from aks_flex_lab.arm.flex_pools.nodes import ClusterNodes, NodeConnections
    from aks_flex_lab.arm.managed_clusters import ManagedClusters

logger = logging.getLogger(__name__)


class PoolController:
    """Runs each operation as a task. An operation that the server did not finish is resumed at its next start."""

    def __init__(self, store: FlexPoolStore, clusters: ManagedClusters, connections: NodeConnections) -> None:
        self._store = store
        self._clusters = clusters
        self._connections = connections
        self._tasks = set[asyncio.Task[None]]()
        self._cleanup: asyncio.Task[None] | None = None

    def resume(self) -> None:
        state = self._store.read()
        for operation in state.operations.values():
            if operation.status == "InProgress":
                self.submit(operation)
        if state.removed_nodes:
            self._start_cleanup()

    def submit(self, operation: PoolOperation) -> None:
        self._start(self._run(operation))

    async def stop(self) -> None:
        """Cancels all tasks. Their operations stay in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connections.close()

    def nodes_of(self, id: str) -> ClusterNodes:  # noqa: A002 - ARM's own word
        """Returns the Nodes of the cluster of a pool or a Machine."""
        cluster = self._clusters.find(id.lower().partition("/agentpools/")[0])
        if cluster is None:
            raise AssertionError("A pool exists only in a registered cluster.")
        return self._connections.of(cluster)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, operation: PoolOperation) -> None:
        perform = {
            "putPool": self._wait,
            "deletePool": self._wait,
            "upgradePool": self._upgrade,
            "putMachine": self._put_machine,
            "deleteMachines": self._delete_machines,
        }[operation.kind]
        try:
            error = await perform(operation)
        except CLUSTER_ERRORS as failure:
            error = ArmErrorDetail("KubernetesAPICallFailed", str(failure))
        except Exception:
            logger.exception("Operation %s of %s failed.", operation.kind, operation.target)
            error = ArmErrorDetail("InternalOperationError", "Internal server error.")
        self._store.update(lambda state: ended(state, operation.id, error, time.time()))

    async def _wait(self, _: PoolOperation) -> None:
        await asyncio.sleep(self._store.timings.operation_seconds)

    async def _upgrade(self, operation: PoolOperation) -> ArmErrorDetail | None:
        return await PoolUpgrade(self._store, self.nodes_of(operation.target), operation).run()

    async def _put_machine(self, operation: PoolOperation) -> None:
        await asyncio.sleep(self._store.timings.operation_seconds)
        machine = self._store.read().machines.get(operation.target.lower())
        if machine is None or not self._store.timings.reconcile_nodes:
            return
        await self.nodes_of(machine.id).reconcile(machine)
        self._store.update(lambda state: _with_applied(state, machine))

    async def _delete_machines(self, operation: PoolOperation) -> None:
        nodes = self.nodes_of(operation.target)
        for name in operation.machines:
            id_ = f"{operation.target}/machines/{name}"
            self._store.update(lambda state, gone=id_: state.without_machine(gone))  # type: ignore[misc]
            await self._remove_node(nodes, operation.target.partition("/agentPools/")[0], name.lower())

    async def _remove_node(self, nodes: ClusterNodes, cluster_id: str, name: str) -> None:
        """Drains the Node and taints it. Its agent then resets the host and deletes the Node."""
        node = await nodes.find(name)
        if node is None:
            return
        timings = self._store.timings
        await nodes.set_schedulable(name, False)
        try:
            await nodes.drain(name, timings.drain_seconds or DEFAULT_DRAIN_MINUTES * 60, timings.poll_seconds)
        except TimeoutError as left:
            logger.warning("These pods of node %s are not evicted: %s.", name, left)
        await nodes.mark_deleting(name)
        removed = RemovedNode(cluster_id, name, node.uid)
        self._store.update(
            lambda state: replace(state, removed_nodes=(*(set(state.removed_nodes) - {removed}), removed))
        )
        self._start_cleanup()

    def _start_cleanup(self) -> None:
        if self._cleanup is None or self._cleanup.done():
            self._cleanup = self._start(self._clean_up())

    async def _clean_up(self) -> None:
        while removed := self._store.read().removed_nodes:
            await asyncio.sleep(self._store.timings.cleanup_seconds)
            for each in removed:
                try:
                    is_gone = await self._delete_if_stale(each)
                except CLUSTER_ERRORS as error:
                    logger.warning("Node %s of a deleted machine was not checked: %s", each.name, error)
                else:
                    if is_gone:
                        self._store.update(lambda state, gone=each: without_removed_node(state, gone))  # type: ignore[misc]

    async def _delete_if_stale(self, removed: RemovedNode) -> bool:
        nodes = self.nodes_of(removed.cluster_id)
        node = await nodes.find(removed.name)
        if node is None or node.uid != removed.uid:
            return True
        return not node.is_ready and await nodes.delete(node.name, node.uid)


def ended(state: PoolState, operation_id: str, error: ArmErrorDetail | None, now: float) -> PoolState:
    """Ends an operation, and sets the provisioning state of its pool or Machine."""
    operation = state.operations[operation_id]
    result = replace(operation, status="Failed" if error else "Succeeded", error=error, ended=now)
    state = state.with_operation(result)
    outcome: dict[str, Any] = {"state": result.status, "error": error}
    if machine := state.machines.get(operation.target.lower()):
        return state.with_machine(replace(machine, **outcome))
    pool = state.pools.get(operation.target.lower())
    if pool is None:
        return state
    if operation.kind == "deletePool" and not error:
        return state.without_pool(pool.id)
    if operation.kind == "upgradePool" and not error:
        outcome["current_version"] = pool.settings.orchestrator_version
    return state.with_pool(replace(pool, **outcome))


def without_removed_node(state: PoolState, removed: RemovedNode) -> PoolState:
    return replace(state, removed_nodes=tuple(each for each in state.removed_nodes if each != removed))


def _with_applied(state: PoolState, machine: PoolMachine) -> PoolState:
    known = state.machines.get(machine.id.lower())
    if known is None:
        return state
    labels, taints = tuple(machine.settings.node_labels), machine.settings.node_taints
    return state.with_machine(replace(known, applied_labels=labels, applied_taints=taints))
