"""The flex node pools of the lab's cluster, through the lab's ARM, as an owner of the resource group."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_lab import network
from aks_flex_lab.components.resource_provider import CLUSTER_ID, OWNER_ROLE_ID, RESOURCE_GROUP_ID
from aks_flex_lab.entra.tokens import SigningKey, TokenIssuer
from aks_flex_lab.errors import ComponentError, LabError
from aks_flex_lab.supervisor import NamespaceConnection, client_tls_context

if TYPE_CHECKING:
    import http.client
    from collections.abc import Mapping, Sequence

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab

API_VERSION = "2026-08-02-preview"
PRINCIPAL = "lab-pools"
POLL_SECONDS = 0.5
PoolDocument = dict[str, Any]


def pool_id(name: str) -> str:
    return f"{CLUSTER_ID}/agentPools/{name}"


@dataclass(frozen=True)
class LabPools:
    """Creates, changes and deletes pools and their Machines with the requests that az sends to AKS."""

    lab: Lab

    def show(self, name: str) -> PoolDocument:
        return self._send("GET", pool_id(name))

    def put(self, name: str, properties: Mapping[str, Any], *, wait: bool = True) -> PoolDocument:
        """Creates or updates a pool. A new `orchestratorVersion` upgrades its Machines."""
        return self._send("PUT", pool_id(name), {"properties": {"type": "FlexNodes", **properties}}, wait=wait)

    def delete(self, name: str) -> None:
        self._send("DELETE", pool_id(name))

    def bootstrap_data(self, name: str) -> PoolDocument:
        """Returns new bootstrap data, as `az aks nodepool get-bootstrap-data` prints it. It has a token."""
        return self._send("POST", f"{pool_id(name)}/listBootstrapData", {})

    def machines(self, pool: str) -> Sequence[PoolDocument]:
        found: Sequence[PoolDocument] = self._send("GET", f"{pool_id(pool)}/machines")["value"]
        return found

    def machine(self, pool: str, name: str) -> PoolDocument:
        return self._send("GET", f"{pool_id(pool)}/machines/{name}")

    def put_machine(self, pool: str, name: str, kubernetes: Mapping[str, Any]) -> PoolDocument:
        """Creates or updates a Machine with a part of its Kubernetes profile, as `az aks machine update` does."""
        body = {"properties": {"kubernetes": dict(kubernetes)}}
        return self._send("PUT", f"{pool_id(pool)}/machines/{name}", body)

    def delete_machines(self, pool: str, names: Sequence[str]) -> None:
        self._send("POST", f"{pool_id(pool)}/deleteMachines", {"machineNames": [*names]})

    def _send(self, method: str, path: str, body: PoolDocument | None = None, *, wait: bool = True) -> PoolDocument:
        """Sends a request, waits until its operation ends, and returns the resource."""
        headers, document = self._request(method, path, body)
        operation = headers.get("Azure-AsyncOperation")
        if not operation or not wait:
            return document
        state: PoolDocument = {"status": "InProgress"}
        while state["status"] == "InProgress":
            time.sleep(POLL_SECONDS)
            _, state = self._request("GET", urlsplit(operation).path)
        if state["status"] != "Succeeded":
            error = state.get("error") or {"code": state["status"], "message": "no reason is given"}
            raise _rejected(method, path, error)
        return self._request("GET", path)[1] if method == "PUT" else document

    def _request(
        self, method: str, path: str, body: PoolDocument | None = None
    ) -> tuple[http.client.HTTPMessage, PoolDocument]:
        trust = client_tls_context(self.lab.authority.certificate)
        where = (self.lab.network.cloud, network.AZURE, 443, network.MANAGEMENT_NAME, trust)
        azure = self.lab.azure
        issuer = TokenIssuer(azure.directory, SigningKey(azure.state), network.LOGIN_URL)
        headers = {
            "Authorization": f"Bearer {issuer.access_token(self._owner(), network.MANAGEMENT_URL)}",
            "Content-Type": "application/json",
        }
        content = None if body is None else json.dumps(body)
        try:
            with closing(NamespaceConnection(*where)) as connection:
                connection.request(method, f"{path}?api-version={API_VERSION}", content, headers)
                answer = connection.getresponse()
                text = answer.read()
        except OSError as error:
            raise ComponentError(
                "lab-not-running", f"The lab's Azure does not respond: {error}.", f"Run `{self.lab.command} up`."
            ) from error
        document = _parsed(text)
        if answer.status >= 400:
            raise _rejected(method, path, document.get("error") or {"code": str(answer.status), "message": "no JSON"})
        return answer.headers, document

    def _owner(self) -> EntraPrincipal:
        azure = self.lab.azure
        for each in azure.directory.all():
            if each.name == PRINCIPAL and each.kind == "servicePrincipal":
                return each
        made = azure.directory.service_principal(PRINCIPAL, "")
        azure.assignments.put(RESOURCE_GROUP_ID, OWNER_ROLE_ID, made.object_id)
        return made


def _parsed(text: bytes) -> PoolDocument:
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _rejected(method: str, path: str, error: PoolDocument) -> LabError:
    what = path.removeprefix(f"{CLUSTER_ID}/")
    return LabError(
        "lab-pool-request-rejected",
        f"The lab's Azure rejected {method} {what}: {error['code']}: {error['message']}",
        "Run `aks-flex-lab az aks nodepool list -g lab --cluster-name lab` to see the pools and their state.",
    )
