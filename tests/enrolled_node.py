"""Enrolments in the lab: a pool at the lab's provider, its enrolments, and the nodes that join with their URLs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc, parse_timestamp
from tests.agents import facts, flex
from tests.providers import VERSION, Provider
from tests.wait import until

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@dataclass(frozen=True)
class Enrolments:
    """A pool and its enrolments."""

    provider: Provider
    pool: str = "enrolled"

    def ask(self, method: str, *below: str, body: Any = None) -> Any:
        path = "/".join((f"{self.provider.cluster}/flexNodePools/{self.pool}", *below))
        answer = self.provider.ask(method, f"{path}?{VERSION}", body)
        assert answer.status in {200, 201, 204}, answer
        return answer.document

    def put_pool(self, **template: Any) -> None:
        """Creates the pool, or a new revision of its template."""
        self.ask("PUT", body={"properties": {"template": {"continuousMonitoring": True, **template}}})

    def create(self, **body: Any) -> tuple[str, str]:
        """Returns the ID and the URL of a new enrolment."""
        made = self.ask("POST", "enrolments", body={"expires": format_utc(time.time() + 3600), **body})
        return made["name"], made["properties"]["enrolmentUrl"]

    def machines(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("POST", "enrolments", name, "listMachines")["value"]
        return found

    def has_key(self, node: str) -> bool:
        return "nodeKey" in self.provider.get(node)["status"]

    def delete(self) -> None:
        """Deletes the nodes of the pool's enrolments and the pool."""
        for each in self.ask("GET", "enrolments")["value"]:
            for machine in self.machines(each["name"]):
                if node := machine.get("nodeName"):
                    self.provider.delete(node)
        self.ask("DELETE")


@dataclass(frozen=True)
class KeyNode:
    """A machine whose node authenticates to the provider by the key of the machine."""

    lab: Lab
    machine: EdgeMachine

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def provider(self) -> Provider:
        return Provider(self.lab)

    def wait_until_applied(self, version: str) -> None:
        until(lambda: self.status.get("appliedConfigVersion") == version, f"{self.name} applies {version}")

    @property
    def status(self) -> dict[str, Any]:
        """What the provider knows of the node."""
        return dict(self.provider.get(self.name).get("status", {}))

    def condition(self, kind: str) -> dict[str, str]:
        return next((each for each in self.status.get("conditions", ()) if each["type"] == kind), {})

    @property
    def key(self) -> dict[str, Any]:
        return dict(facts(self.machine, "node-key", "show"))


@dataclass(frozen=True)
class EnrolledNode(KeyNode):
    """A machine that joins with an enrolment URL, and its node."""

    enrolments: Enrolments

    def join(self) -> None:
        _, url = self.enrolments.create(maxUses=1)
        flex(self.machine, "agent", "--config-url", url)

    def apply(self, **template: Any) -> str:
        """Writes a revision of the pool's template and applies it with `pool apply`; returns the node's version."""
        self.enrolments.put_pool(**template)
        self.lab.provider.run_cli("pool", "apply", "--name", self.enrolments.pool, "--node", self.name)
        return str(self.provider.get(self.name)["configVersion"])

    @property
    def node(self) -> Any:
        return self.lab.cluster.get("node", self.name)

    @property
    def daemon(self) -> dict[str, Any]:
        """What `status` shows of the daemon on the machine."""
        found: dict[str, Any] = facts(self.machine, "status")["daemon"]
        return found

    def is_whole(self) -> bool:
        """Whether the node is Ready, its machine as its configuration requires, and the provider hears of it."""
        return (
            self.lab.cluster.node_ready(self.name)
            and self.condition("Ready").get("status") == "True"
            and flex(self.machine, "verify", check=False).ok
        )

    def lease_renewed(self) -> float:
        """Returns when the kubelet last renewed its lease."""
        lease = self.lab.cluster.get("lease", self.name, "--namespace=kube-node-lease") or {}
        renewed = lease.get("spec", {}).get("renewTime")
        return parse_timestamp(renewed).timestamp() if renewed else 0.0
