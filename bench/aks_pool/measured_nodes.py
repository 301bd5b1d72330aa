"""The two kinds of nodes: one of a flex node pool of the lab's AKS, and one of the lab's resource provider.

Both have the same versions, the same kind of identity (a service principal) and the same update policy. Neither
drains: for a node of a pool, AKS drains before it deletes the Node.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aks_flex_lab.pools import LabPools
from aks_flex_lab.versions import NodeVersions
from bench.aks_pool.node_events import NodeRecorder, deleted_at, ready_at
from tests.agents import flex
from tests.managed_node import ManagedLabNode
from tests.pool_node import PoolNode
from tests.wait import until

if TYPE_CHECKING:
    from typing_extensions import Self

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

OLD, NEW = "1.35.4", NodeVersions().kubernetes
STORED = "/var/lib/aks-flex-node/current-config.json"
POLICY = {"drain": False}


class MeasuredNode(Protocol):
    @property
    def machine(self) -> EdgeMachine: ...

    @property
    def join_command(self) -> tuple[str, ...]:
        """The command that joins the machine."""
        ...

    def start_upgrade(self, recorder: NodeRecorder) -> tuple[float, str]:
        """Starts an upgrade; returns when the agent may begin, and the version of the new configuration."""
        ...

    def remove(self) -> None:
        """Removes the resources of the node; its machine is removed by the caller."""
        ...


class MeasuredPoolNode(PoolNode):
    @classmethod
    def make(cls, lab: Lab, machine: EdgeMachine, pool: str) -> Self:
        """Creates a pool for the machine, and installs the agent with an identity that has the role of a node."""
        LabPools(lab).put(pool, {"orchestratorVersion": OLD})
        principal = lab.azure.directory.service_principal(machine.name, f"secret-of-{machine.name}")
        return cls.of(lab, machine, pool, principal, POLICY, clientSecret=principal.secret)

    def start_upgrade(self, recorder: NodeRecorder) -> tuple[float, str]:
        """Upgrades the pool. AKS cordons and drains the Node, and deletes it."""
        before = self.etag
        self.pools.put(self.pool, {"orchestratorVersion": NEW}, wait=False)
        began = recorder.wait(deleted_at, "AKS deletes the Node")
        until(lambda: self.etag != before, "AKS changes the Machine")
        return began, self.etag

    def remove(self) -> None:
        until(lambda: self._state() not in {"Upgrading", "Updating"}, "AKS has upgraded the pool")
        for each in self.pools.machines(self.pool):
            self.pools.delete_machines(self.pool, [each["name"]])
        self.pools.delete(self.pool)

    def _state(self) -> str:
        return str(self.pools.show(self.pool)["properties"]["provisioningState"])


@dataclass(frozen=True)
class ProviderNode:
    managed: ManagedLabNode
    url: str

    @classmethod
    def make(cls, lab: Lab, machine: EdgeMachine) -> ProviderNode:
        """Creates the node's resource, and installs the agent."""
        managed = ManagedLabNode.make(lab, machine, versions=_versions(OLD), nodeConfig={"updatePolicy": POLICY})
        return cls(managed, managed.provider.put(machine.name, managed.body()))

    @property
    def machine(self) -> EdgeMachine:
        return self.managed.machine

    @property
    def join_command(self) -> tuple[str, ...]:
        return ("agent", "--config-url", self.url)

    def start_upgrade(self, recorder: NodeRecorder) -> tuple[float, str]:  # noqa: ARG002 - the PUT starts it
        began = time.time()
        return began, self.managed.update(versions=_versions(NEW))

    def remove(self) -> None:
        self.managed.delete()


def _versions(kubernetes: str) -> dict[str, str]:
    return {"kubernetes": kubernetes, "containerd": NodeVersions().containerd, "runc": NodeVersions().runc}


def join(lab: Lab, node: MeasuredNode) -> dict[str, float]:
    """Joins the machine; returns the seconds until the Node is Ready, and until the command returns."""
    recorder, began = NodeRecorder(lab, node.machine.name), time.time()
    flex(node.machine, *node.join_command)
    returned = time.time() - began
    ready = recorder.wait(lambda events: ready_at(events, OLD), f"{node.machine.name} is Ready")
    return {"join": ready - began, "join_returns": returned}


def upgrade(lab: Lab, node: MeasuredNode) -> dict[str, float]:
    """Upgrades the node; returns the seconds until it is Ready on the new version, and until that is verified."""
    recorder = NodeRecorder(lab, node.machine.name)
    recorder.wait(lambda events: events[0].at if events else None, "the watch shows the Node")
    began, version = node.start_upgrade(recorder)
    ready = recorder.wait(lambda events: ready_at(events, NEW), f"{node.machine.name} is Ready on {NEW}")
    verified = max(ready, _committed_at(node.machine, version))
    return {"upgrade_ready": ready - began, "upgrade": verified - began}


def _committed_at(machine: EdgeMachine, version: str) -> float:
    """Waits until a configuration is in effect, which is after its health check; returns when it was stored."""

    def stored() -> str:
        return str(json.loads(machine.run("cat", STORED).out)["configVersion"])

    until(lambda: stored() == version, f"{machine.name} applies {version}")
    return float(machine.run("stat", "-c", "%.Y", STORED).out)
