"""Machines that enrol, as their agents call the service."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.enrolments import parse_facts
from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.nodes.enroller import MachineRequest
from tests.node_key_client import HeldKey
from tests.service.rp.api.keyed_nodes import Machine, observe

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api, Connection
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer


@dataclass(frozen=True)
class EnrollingMachine:
    hostname: str
    key: HeldKey = field(default_factory=HeldKey)
    system_uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    serial: str = field(default_factory=lambda: f"SN{uuid.uuid4().hex[:10]}")
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> MachineIdentity:
        return MachineIdentity(self.id, self.hostname, "10.0.0.9", "Ubuntu 22.04")

    @property
    def facts(self) -> dict[str, Any]:
        own = {"hostname": self.hostname, "serialNumber": self.serial, "systemUuid": self.system_uuid}
        return {**own, "os": "Ubuntu 22.04", "architecture": "amd64", "cpus": 2, "memoryBytes": 1 << 30, **self.more}

    def wiped(self) -> EnrollingMachine:
        """Returns the same machine with a new disk."""
        return replace(self, key=HeldKey(), id=uuid.uuid4().hex)

    @property
    def request(self) -> MachineRequest:
        """Returns the enrolment of this machine as the service reads it."""
        return MachineRequest(self.key.thumbprint, parse_facts(self.facts), self.identity, "127.0.0.1", "r")

    def as_node(self, admin: Api, name: str = "") -> Machine:
        """Returns the machine of a node, with the key that has enrolled."""
        return Machine(admin, name or self.hostname, self.identity, self.key)

    def enrol(self, to: Connection, url: str, **body: Any) -> Answer:
        proof = {} if "proof" in body else {"proof": self.key.url_proof(url)}
        sent = {**proof, "facts": self.facts, **body}
        headers = {MACHINE_HEADER: self.identity.header, "Content-Type": "application/json"}
        return to.ask("POST", to.path_of(url), headers, json.dumps(sent).encode())


@dataclass(frozen=True)
class PoolEnrolment:
    """An enrolment of a new pool."""

    admin: Api
    pool: str
    id: str
    url: str

    @classmethod
    def of(cls, admin: Api, pool: str, **body: Any) -> PoolEnrolment:
        found = admin.pool("GET", pool)
        if found.status == 404:
            template = {"continuousMonitoring": True}
            assert admin.put_pool(pool, template).status == 201
        sent = {"maxUses": 2, "expires": format_utc(time.time() + 3600), **body}
        made = admin.pool("POST", pool, "enrolments", body=sent)
        assert made.status == 200, made
        return cls(admin, pool, made.json["name"], made.properties["enrolmentUrl"])

    def machine(self, hostname: str, **more: Any) -> EnrollingMachine:
        return EnrollingMachine(f"{self.pool}-{hostname}", **more)

    def enrol(self, machine: EnrollingMachine, **body: Any) -> Answer:
        return machine.enrol(self.admin.connection, self.url, **body)

    def enrolled(self, hostname: str, **more: Any) -> EnrollingMachine:
        machine = self.machine(hostname, **more)
        assert self.node_of(machine)
        return machine

    def joined(self, service: Running, hostname: str = "a") -> EnrollingMachine:
        """Returns an enrolled machine whose Node the cluster reports Ready."""
        machine = self.enrolled(hostname)
        observe(service, machine.hostname, machine.identity)
        return machine

    def node_of(self, machine: EnrollingMachine) -> str:
        """Enrols a machine and returns the name of its node."""
        answer = self.enrol(machine)
        assert answer.status == 200, answer.text
        return str(answer.json["config"]["node"]["name"])

    def refuses(self, machine: EnrollingMachine, code: str, status: int = 409) -> Answer:
        answer = self.enrol(machine)
        assert (answer.status, answer.error["code"]) == (status, code), answer.text
        return answer

    def approve(self, machine: EnrollingMachine) -> Answer:
        """Approves a machine that waits."""
        return self.act("approve", {"fingerprint": fingerprint(machine.key.thumbprint)})

    def act(self, action: str, body: Any = None) -> Answer:
        return self.admin.pool("POST", self.pool, "enrolments", self.id, action, body=body)

    @property
    def properties(self) -> Any:
        return self.admin.pool("GET", self.pool, "enrolments", self.id).properties

    @property
    def uses(self) -> Any:
        return self.properties["uses"]

    @property
    def machines(self) -> Any:
        return self.act("listMachines").json["value"]

    def events(self, what: str) -> Any:
        resource = f"{self.admin.cluster.pool(self.pool)}/enrolments/{self.id}"
        return self.admin.ask("GET", "/audit", query={"resource": resource, "what": what}).json["value"]
