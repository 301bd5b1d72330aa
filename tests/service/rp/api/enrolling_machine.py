"""Machines that enrol, as their agents call the service."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.timestamps import format_utc
from tests.node_key_client import HeldKey

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api, Connection
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

    def enrol(self, to: Connection, url: str, **body: Any) -> Answer:
        path = url.partition("#")[0].removeprefix(to.url)
        proof = {} if "proof" in body else {"proof": self.key.url_proof(url)}
        sent = {**proof, "facts": self.facts, **body}
        headers = {MACHINE_HEADER: self.identity.to_header(), "Content-Type": "application/json"}
        return to.ask("POST", path, headers, json.dumps(sent).encode())


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
            assert admin.pool("PUT", pool, body={"properties": {"template": template}}).status == 201
        sent = {"maxUses": 2, "expires": format_utc(time.time() + 3600), **body}
        made = admin.pool("POST", pool, "enrolments", body=sent)
        assert made.status == 200, made
        return cls(admin, pool, made.json["name"], made.json["properties"]["enrolmentUrl"])

    def machine(self, hostname: str, **more: Any) -> EnrollingMachine:
        return EnrollingMachine(f"{self.pool}-{hostname}", **more)

    def enrol(self, machine: EnrollingMachine, **body: Any) -> Answer:
        return machine.enrol(self.admin.connection, self.url, **body)

    def act(self, action: str, body: Any = None) -> Answer:
        return self.admin.pool("POST", self.pool, "enrolments", self.id, action, body=body)

    @property
    def properties(self) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.pool("GET", self.pool, "enrolments", self.id).json["properties"]
        return found

    @property
    def machines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.act("listMachines").json["value"]
        return found

    def events(self, what: str) -> list[dict[str, Any]]:
        resource = f"{self.admin.cluster.pool(self.pool)}/enrolments/{self.id}"
        query = {"resource": resource, "what": what}
        found: list[dict[str, Any]] = self.admin.ask("GET", "/audit", query=query).json["value"]
        return found
