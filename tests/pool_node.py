"""Nodes of flex node pools in the lab: a machine, its identity, its Machine and its Node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network, node_agent
from aks_flex_lab.pools import LabPools, pool_id
from aks_flex_lab.versions import NodeVersions
from aks_flex_node.azure.roles import FLEX_NODE_AGENT
from tests.agents import differences, exists, facts, flex, install_agent
from tests.lab_azure import azure_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult
    from aks_flex_lab.snapshots import Snapshot

OWN = "/root/own.json"
HOME = "/var/lib/aks-flex-node"
POOL_SOURCE = "/usr/lib/aks-flex-node/aks_flex_node/agent/config_sources/pool_source.py"


@dataclass(frozen=True)
class PoolNode:
    lab: Lab
    machine: EdgeMachine
    pool: str

    @classmethod
    def make(cls, lab: Lab, machine: EdgeMachine, pool: str) -> Self:
        """Installs the agent, and writes a file with a new identity; the machine has not joined."""
        principal = lab.azure.directory.service_principal(machine.name, "right")
        return cls.of(lab, machine, pool, principal, clientSecret="right")

    @classmethod
    def of(
        cls,
        lab: Lab,
        machine: EdgeMachine,
        pool: str,
        principal: EntraPrincipal,
        policy: Mapping[str, Any] = MappingProxyType({"healthTimeoutSeconds": 90}),
        **credential: str,
    ) -> Self:
        """Does the same with this identity and its credential, and with an update policy."""
        install_agent(machine)
        lab.azure.assignments.put(pool_id(pool), FLEX_NODE_AGENT.id, principal.object_id)
        identity = {"clientId": principal.client_id, **credential}
        azure = azure_settings(lab, authorityHost=network.LOGIN_URL, servicePrincipal=identity)
        npd = {"version": NodeVersions().npd}
        node_agent.write_configuration(machine, {"azure": azure, "npd": npd, "updatePolicy": dict(policy)}, OWN)
        return cls(lab, machine, pool)

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def pools(self) -> LabPools:
        return LabPools(self.lab)

    @property
    def join_command(self) -> tuple[str, ...]:
        return ("agent", "--aks-pool", pool_id(self.pool), "--config", OWN)

    def join(self, *words: str, check: bool = True) -> CommandResult:
        return flex(self.machine, *self.join_command, *words, check=check, timeout=600)

    def poll_every(self, seconds: float) -> None:
        """Shortens the time between two polls of the agent on this machine; its backoff and all else stays."""
        known = "POLL_SCHEDULE = PollSchedule(60.0)"
        changed = f"POLL_SCHEDULE = PollSchedule({seconds})"
        self.machine.run("grep", "-qF", known, POOL_SOURCE)
        self.machine.run("sed", "-i", f"s/{known}/{changed}/", POOL_SOURCE)
        self.machine.run("python3", "-m", "compileall", "-qf", "--invalidation-mode", "unchecked-hash", POOL_SOURCE)

    def get(self) -> dict[str, Any]:
        """Returns the Node; empty if it does not exist."""
        return dict(self.lab.cluster.get("node", self.name) or {})

    @property
    def uid(self) -> str:
        return str(self.get().get("metadata", {}).get("uid", ""))

    @property
    def version(self) -> str:
        return str(self.get().get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")).removeprefix("v")

    @property
    def is_ready(self) -> bool:
        found = self.get().get("status", {}).get("conditions", ())
        return any((one["type"], one["status"]) == ("Ready", "True") for one in found)

    @property
    def daemon(self) -> dict[str, Any]:
        """What `status` shows of the daemon; empty if the machine is booting or has left."""
        done = flex(self.machine, "status", "--json", check=False)
        return dict(json.loads(done.out).get("daemon") or {}) if done.ok else {}

    @property
    def pending(self) -> dict[str, Any]:
        return dict(self.daemon.get("pending") or {})

    @property
    def stored_version(self) -> str:
        """The eTag of the settings in effect; empty if there are none."""
        return self.version_in("current-config.json")

    def version_in(self, file: str) -> str:
        text = self.machine.run("cat", f"{HOME}/{file}", check=False).out
        return str(json.loads(text)["configVersion"]) if text.strip() else ""

    @property
    def etag(self) -> str:
        return str(self.pools.machine(self.pool, self.name)["properties"]["eTag"])

    def change(self, **kubernetes: Any) -> str:
        """Changes the Machine, as `az aks machine update` does; returns its new eTag."""
        before = self.etag
        self.pools.put_machine(self.pool, self.name, kubernetes)
        assert self.etag != before
        return self.etag

    def delete_node(self) -> None:
        self.lab.cluster.run("delete", "node", self.name, "--wait=false")

    def has(self, path: str) -> bool:
        return exists(self.machine, path)

    @property
    def is_clean(self) -> bool:
        """Whether the machine is exactly as its configuration requires."""
        return bool(facts(self.machine, "verify", check=False)["clean"])

    def left_over(self, before: Snapshot) -> list[str]:
        """Returns what differs from a snapshot."""
        return differences(before, self.machine)
