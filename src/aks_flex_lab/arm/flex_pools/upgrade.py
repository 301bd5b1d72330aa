"""The upgrade of a flex node pool: new settings for all Machines, then one Node after the other.

A Node is cordoned, drained and deleted. Its agent registers it again with the new version. The next Node follows when
this one is Ready. Progress is stored, so that a restarted server continues.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from aks_flex_lab.arm.flex_pools.model import ArmErrorDetail, MachineProgress, new_etag
from aks_flex_lab.arm.flex_pools.nodes import CLUSTER_ERRORS
from aks_flex_lab.arm.flex_pools.requests import max_unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_lab.arm.flex_pools.model import FlexPool, FlexPoolStore, PoolMachine, PoolOperation, PoolState
    from aks_flex_lab.arm.flex_pools.nodes import ClusterNodes

DEFAULT_DRAIN_MINUTES = 30
CLUSTER_SECONDS = 60.0  # how long an unreachable API server is retried

Result = TypeVar("Result")


class MachineUpgradeFailed(Exception):  # noqa: N818 - an expected result
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.detail = ArmErrorDetail(code, message)


class PoolUpgrade:
    def __init__(self, store: FlexPoolStore, nodes: ClusterNodes, operation: PoolOperation) -> None:
        self._store = store
        self._nodes = nodes
        self._operation_id = operation.id
        self._pool_id = operation.target
        self._has_failed = False

    async def run(self) -> ArmErrorDetail | None:
        """Upgrades all Machines. Returns the first error; Machines that were not started then keep their Node."""
        state = self._store.update(self._with_settings)
        machines = state.machines_of(self._pool_id)
        slots = asyncio.Semaphore(max_unavailable(self._pool(state), len(machines)))
        results = await asyncio.gather(*(self._upgrade_in_turn(each, slots) for each in machines))
        return next((each for each in results if each), None)

    def _with_settings(self, state: PoolState) -> PoolState:
        """Writes the pool's version to all Machines, which changes their eTags.

        A resumed upgrade changes nothing. A new attempt changes the eTag of failed Machines, because their agents
        do not try the earlier one again.
        """
        target = self._pool(state).settings.orchestrator_version
        for machine in state.machines_of(self._pool_id):
            if machine.settings.orchestrator_version != target or machine.state == "Failed":
                settings = replace(machine.settings, orchestrator_version=target)
                changed = replace(machine, settings=settings, etag=new_etag(), state="Upgrading", error=None)
                state = state.with_machine(changed)
        return state

    async def _upgrade_in_turn(self, machine: PoolMachine, slots: asyncio.Semaphore) -> ArmErrorDetail | None:
        async with slots:
            if self._has_failed:
                self._end_machine(machine, None)
                return None
            try:
                await self._upgrade(machine)
            except MachineUpgradeFailed as failure:
                self._has_failed = True
                self._record(machine.name, MachineProgress("Failed"))
                self._end_machine(machine, failure.detail)
                return failure.detail
            self._record(machine.name, MachineProgress("Done"))
            self._end_machine(machine, None)
            return None

    async def _upgrade(self, machine: PoolMachine) -> None:
        known = self._store.read().operations[self._operation_id].progress.get(machine.name, MachineProgress())
        target = self._pool(self._store.read()).settings.orchestrator_version
        if known.phase == "Done":
            return
        if known.phase != "Deleted":
            node = await self._retry_until_answered(lambda: self._nodes.find(machine.node_name))
            if node is None or node.version == target:
                return  # not joined: it will register with the new version
            known = MachineProgress("Deleted", node.uid)
            self._record(machine.name, MachineProgress("Draining", node.uid))
            await self._drain(machine)
            await self._retry_until_answered(lambda: self._nodes.delete(machine.node_name, known.uid))
            self._record(machine.name, known)
        await self._wait_until_back(machine, known.uid, target)

    async def _drain(self, machine: PoolMachine) -> None:
        name, pool, timings = machine.node_name, self._pool(self._store.read()), self._store.timings
        minutes = pool.upgrade_settings.get("drainTimeoutInMinutes", DEFAULT_DRAIN_MINUTES)
        seconds = timings.drain_seconds or float(str(minutes)) * 60
        await self._retry_until_answered(lambda: self._nodes.set_schedulable(name, False))
        try:
            await self._retry_until_answered(lambda: self._nodes.drain(name, seconds, timings.poll_seconds))
        except TimeoutError as left:
            if pool.upgrade_settings.get("undrainableNodeBehavior") == "Cordon":
                await self._retry_until_answered(lambda: self._nodes.quarantine(name))
            else:
                await self._retry_until_answered(lambda: self._nodes.set_schedulable(name, True))
            message = f"Drain of node {name} failed: these pods are still on it after {seconds:.0f} s: {left}."
            raise MachineUpgradeFailed("PodDrainFailure", message) from None

    async def _wait_until_back(self, machine: PoolMachine, uid: str, target: str) -> None:
        timings, pool = self._store.timings, self._pool(self._store.read())
        end = time.monotonic() + timings.ready_seconds
        seen = "it has not registered again"
        while time.monotonic() < end:
            node = await self._retry_until_answered(lambda: self._nodes.find(machine.node_name))
            if node and node.uid != uid:
                if node.is_ready and node.version == target:
                    soak = pool.upgrade_settings.get("nodeSoakDurationInMinutes", 0)
                    await asyncio.sleep(float(str(soak)) * 60)
                    return
                seen = f"it runs Kubernetes {node.version} and is {'Ready' if node.is_ready else 'not Ready'}"
            await asyncio.sleep(timings.poll_seconds)
        message = (
            f"Node {machine.node_name} was deleted for the upgrade to {target} and is not Ready on it after "
            f"{timings.ready_seconds:.0f} s: {seen}."
        )
        raise MachineUpgradeFailed("NodesNotReady", message)

    async def _retry_until_answered(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """Repeats an action while the API server is unreachable or refuses it, for a minute."""
        end = time.monotonic() + CLUSTER_SECONDS
        while True:
            try:
                return await action()
            except CLUSTER_ERRORS as error:
                if time.monotonic() > end:
                    raise MachineUpgradeFailed("KubernetesAPICallFailed", str(error)) from error
            await asyncio.sleep(self._store.timings.poll_seconds)

    def _record(self, name: str, progress: MachineProgress) -> None:
        def change(state: PoolState) -> PoolState:
            operation = state.operations[self._operation_id]
            return state.with_operation(replace(operation, progress={**operation.progress, name: progress}))

        self._store.update(change)

    def _end_machine(self, machine: PoolMachine, error: ArmErrorDetail | None) -> None:
        def change(state: PoolState) -> PoolState:
            known = state.machines.get(machine.id.lower())
            if known is None:
                return state
            return state.with_machine(replace(known, state="Failed" if error else "Succeeded", error=error))

        self._store.update(change)

    def _pool(self, state: PoolState) -> FlexPool:
        return state.pools[self._pool_id.lower()]
