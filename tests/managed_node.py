"""Managed nodes in the lab: each is created at the lab's provider with its own identity."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.agents import exists, facts, flex, install_agent
from tests.lab_machines import temporary_machine
from tests.providers import VERSION, Provider
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@dataclass
class ManagedLabNode:
    """A managed node of the lab: machine, resource and identity."""

    lab: Lab
    machine: EdgeMachine
    principal: EntraPrincipal
    properties: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(cls, lab: Lab, machine: EdgeMachine, **properties: Any) -> ManagedLabNode:
        """Creates the resource and installs the agent; the machine has not joined."""
        install_agent(machine)
        principal = lab.azure.directory.service_principal(machine.name, f"secret-of-{machine.name}")
        return cls(lab, machine, principal, properties)

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def provider(self) -> Provider:
        return Provider(self.lab)

    def body(self, secret: str = "") -> dict[str, Any]:
        principal = {"clientId": self.principal.client_id, "clientSecret": secret or self.principal.secret}
        auth = {"method": "servicePrincipal", "servicePrincipal": principal}
        return {"continuousMonitoring": True, "azureAuth": auth, **self.properties}

    def join(self, *words: str) -> None:
        """Joins the machine with its config URL and waits until it is Ready."""
        flex(self.machine, "agent", "--config-url", self.provider.put(self.name, self.body()), *words)

    def update(self, secret: str = "", query: str = "", **properties: Any) -> str:
        """Changes the resource; returns the new version."""
        self.properties = {**self.properties, **properties}
        path = f"{self.provider.node(self.name)}?{VERSION}{query}"
        answer = self.provider.ask("PUT", path, {"properties": self.body(secret)})
        assert answer.status in {200, 201}, answer
        return str(answer.document["properties"]["configVersion"])

    def applied(self) -> str:
        return str(self.provider.get(self.name).get("status", {}).get("appliedConfigVersion", ""))

    def wait_until_applied(self, version: str) -> None:
        seconds = 600 * self.machine.timeout_factor
        until(lambda: self.applied() == version, f"{self.name} applies {version}", seconds)

    def condition(self, kind: str) -> dict[str, str]:
        conditions = self.provider.get(self.name).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    def wait_until_ready(self) -> None:
        until(lambda: self.condition("Ready").get("status") == "True", f"{self.name} is reported Ready")

    def wait_until_daemon_is(self, state: str) -> None:
        """Waits until the daemon reports this state of its connection to the provider."""
        until(lambda: self.status()["daemon"]["providerState"] == state, f"the daemon of {self.name} is {state}")

    def wait_until_left(self) -> None:
        """Waits until the daemon's job has unbootstrapped the machine."""
        until(lambda: not exists(self.machine, "/var/lib/aks-flex-node"), f"{self.name} leaves")
        active = ("systemctl", "is-active", "aks-flex-node-job")
        until(lambda: not self.machine.run(*active, check=False).ok, "and is done")

    def node(self) -> Any:
        return self.lab.cluster.get("node", self.name)

    def kubelet_version(self) -> str:
        return str(self.node()["status"]["nodeInfo"]["kubeletVersion"])

    def max_pods(self) -> int:
        """Returns how many pods the Node has capacity for."""
        return int(self.node()["status"]["capacity"]["pods"])

    def status(self) -> Any:
        return facts(self.machine, "status")

    def is_clean(self) -> bool:
        """Returns whether the machine has its desired state."""
        return bool(facts(self.machine, "verify", check=False)["clean"])

    def delete(self) -> None:
        self.provider.delete(self.name)


@contextmanager
def temporary_node(lab: Lab, name: str, **properties: Any) -> Iterator[ManagedLabNode]:
    """Adds a machine and yields it as a Ready managed node. Removes both afterwards."""
    with temporary_machine(lab, name) as machine:
        node = ManagedLabNode.make(lab, machine, **properties)
        try:
            node.join()
            node.wait_until_ready()
            yield node
        finally:
            node.delete()
