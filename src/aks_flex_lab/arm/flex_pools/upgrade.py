"""The upgrade of a flex node pool: new settings for all Machines, then one Node after the other.

A Node is cordoned, drained and deleted. Its agent registers it again with the new version. The next Node follows when
this one is Ready.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from aks_flex_lab.arm.flex_pools.model import ArmErrorDetail, new_id
from aks_flex_lab.arm.flex_pools.nodes import CLUSTER_ERRORS
from aks_flex_lab.arm.flex_pools.requests import max_unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_lab.arm.flex_pools.model import FlexPoolStore, PoolMachine
    from aks_flex_lab.arm.flex_pools.nodes import ClusterNodes

CLUSTER_SECONDS = 60.0  # how long an unreachable API server is retried

Result = TypeVar("Result")


class MachineUpgradeFailed(Exception):  # noqa: N818 - an expected result
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.detail = ArmErrorDetail(code, message)


class PoolUpgrade:
    def __init__(self, store: FlexPoolStore, nodes: ClusterNodes, pool_id: str) -> None:
        self._store = store
        self._nodes = nodes
        self._pool = store.read().pools[pool_id.lower()]
        self._target = self._pool.settings.orchestrator_version
        self._has_failed = False

    async def run(self) -> ArmErrorDetail | None:
        """Upgrades all Machines. Returns the first error; Machines that were not started then keep their Node."""
        with self._store.changing() as state:
            machines = state.machines_of(self._pool.id)
            for machine in machines:
                # The eTag of a failed Machine changes, too: its agent does not try the earlier one again.
                if machine.settings.orchestrator_version != self._target or machine.state == "Failed":
                    machine.settings = replace(machine.settings, orchestrator_version=self._target)
                    machine.etag, machine.state, machine.error = new_id(), "Upgrading", None
        slots = asyncio.Semaphore(max_unavailable(self._pool, len(machines)))
        results = await asyncio.gather(*(self._upgrade_in_turn(each, slots) for each in machines))
        return next((each for each in results if each), None)

    async def _upgrade_in_turn(self, machine: PoolMachine, slots: asyncio.Semaphore) -> ArmErrorDetail | None:
        error = None
        async with slots:
            if not self._has_failed:
                try:
                    await self._upgrade(machine.node_name)
                except MachineUpgradeFailed as failure:
                    self._has_failed, error = True, failure.detail
            with self._store.changing() as state:
                if known := state.machines.get(machine.id.lower()):
                    known.state, known.error = "Failed" if error else "Succeeded", error
            return error

    async def _upgrade(self, name: str) -> None:
        node = await self._retry_until_answered(lambda: self._nodes.find(name))
        if node is None or node.version == self._target:
            return  # not joined: it will register with the new version
        await self._drain(name)
        await self._retry_until_answered(lambda: self._nodes.delete(name, node.uid))
        await self._wait_until_back(name, node.uid)

    async def _drain(self, name: str) -> None:
        seconds, poll_seconds = self._store.timings.drain_seconds, self._store.timings.poll_seconds
        await self._retry_until_answered(lambda: self._nodes.set_schedulable(name, False))
        try:
            await self._retry_until_answered(lambda: self._nodes.drain(name, seconds, poll_seconds))
        except TimeoutError as left:
            await self._retry_until_answered(lambda: self._nodes.set_schedulable(name, True))
            message = f"Drain of node {name} failed: these pods are still on it after {seconds:.0f} s: {left}."
            raise MachineUpgradeFailed("PodDrainFailure", message) from None

    async def _wait_until_back(self, name: str, uid: str) -> None:
        timings = self._store.timings
        end = time.monotonic() + timings.ready_seconds
        seen = "it has not registered again"
        while time.monotonic() < end:
            node = await self._retry_until_answered(lambda: self._nodes.find(name))
            if node and node.uid != uid:
                if node.is_ready and node.version == self._target:
                    return
                seen = f"it runs Kubernetes {node.version} and is {'Ready' if node.is_ready else 'not Ready'}"
            await asyncio.sleep(timings.poll_seconds)
        message = (
            f"Node {name} was deleted for the upgrade to {self._target} and is not Ready on it after "
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
