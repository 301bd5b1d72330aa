"""Clients of the lab's resource provider: its administrator, or a user in the lab's Azure."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import urllib3

from aks_flex_lab import network
from aks_flex_lab.components import gateway
from aks_flex_lab.components.resource_provider import CLUSTER_ID, resolv_conf
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.processes import run
from aks_flex_lab.supervisor import RESOLV_CONF_WRAPPER
from aks_flex_node.api.node_keys import KEY_HEADER
from tests.node_key_client import HeldKey

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab

VERSION = "api-version=2026-05-01-preview"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    document: Any


@dataclass(frozen=True)
class Provider:
    """Calls the provider through the gateway with the local admin key."""

    lab: Lab
    cluster: str = CLUSTER_ID

    @property
    def origin(self) -> str:
        return f"https://127.0.0.1:{gateway.read_port(self.lab.layout, 'provider-gateway')}"

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        key = (self.lab.provider.state / "admin.key").read_text().strip()
        told = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **(headers or {})}
        with urllib3.PoolManager(ca_certs=str(self.lab.provider.authority), retries=False) as pool:
            answer = pool.request(
                method, self.origin + path, body=None if body is None else json.dumps(body), headers=told
            )
        document = json.loads(answer.data) if answer.data else None
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, document)

    def node(self, name: str, action: str = "") -> str:
        return f"{self.cluster}/flexNodeConfig/{name}{action}"

    def put(self, name: str, properties: dict[str, Any] | None = None) -> str:
        """Creates or changes a node; returns its config URL."""
        answer = self.ask("PUT", f"{self.node(name)}?{VERSION}&configUrl=true", {"properties": properties or {}})
        assert answer.status in {200, 201}, answer
        return str(answer.document["properties"]["configUrl"])

    def get(self, name: str) -> dict[str, Any]:
        answer = self.ask("GET", f"{self.node(name)}?{VERSION}")
        assert answer.status == 200, answer
        properties: dict[str, Any] = answer.document["properties"]
        return properties

    def join_state(self, name: str) -> str:
        return str(self.get(name)["status"]["joinState"])

    def delete(self, name: str) -> Answer:
        return self.ask("DELETE", f"{self.node(name)}?{VERSION}")

    def fetch(self, url: str) -> Answer:
        """Requests a config URL as a machine with a new key does."""
        path = url.partition("#")[0].removeprefix(f"https://{network.PROVIDER_NAME}")
        return self.ask("GET", path, headers={"Authorization": "", KEY_HEADER: HeldKey().url_proof(url)})

    def audit(self, name: str = "") -> list[dict[str, Any]]:
        """Returns the audit events of a node or of the cluster, oldest first."""
        answer = self.ask("GET", f"/audit?resource={self.node(name) if name else self.cluster}&limit=1000")
        return list(reversed(answer.document["value"]))


@dataclass(frozen=True)
class InAzure:
    """A principal that signs in to the lab's Entra ID and calls its ARM with Azure's libraries."""

    lab: Lab
    principal: EntraPrincipal

    def ask(self, *calls: tuple[str, str, Any]) -> list[dict[str, Any]]:
        """Returns ARM's response to each call: `{"answer": …}` or `{"status": …, "code": …}`."""
        told = {
            "tenant": TENANT_ID,
            "client": self.principal.client_id,
            "secret": self.principal.secret,
            "authority": network.LOGIN_URL,
            "management": network.MANAGEMENT_URL,
            "ca": str(self.lab.authority.certificate),
            "calls": calls,
        }
        program: tuple[str | Path, ...] = (
            *RESOLV_CONF_WRAPPER,
            resolv_conf(self.lab.layout),
            *(sys.executable, "-m", "tests.azure_call_process"),
        )
        done = run(*self.lab.network.cloud.command(*program), input=json.dumps(told))
        answers: list[dict[str, Any]] = json.loads(done.out)
        return answers
