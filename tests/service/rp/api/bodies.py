"""Request bodies with only the properties that matter to each test."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from tests.service.rp.api.callers import NODE

SECRET = "canary-Zx81-never-to-be-seen"


def principal(client_id: str = NODE, secret: str | None = SECRET, **more: Any) -> dict[str, Any]:
    """Returns a monitored node with a service principal; None omits the secret."""
    who = {"clientId": client_id} | ({} if secret is None else {"clientSecret": secret})
    auth = {"method": "servicePrincipal", "servicePrincipal": who}
    return {"properties": {"continuousMonitoring": True, "azureAuth": auth, **more}}


def client_of(name: str) -> str:
    """Returns the client ID of a node's own service principal."""
    return str(uuid5(NAMESPACE_DNS, name))


def token(**node_config: Any) -> dict[str, Any]:
    """Returns a node that joins with a token and is not monitored."""
    return {"properties": {"kubernetesAuth": {"method": "bootstrapToken"}, "nodeConfig": node_config}}
