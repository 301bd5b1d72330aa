"""Bodies of requests, with as little said as matters to each test."""

from __future__ import annotations

from typing import Any

from tests.service.rp.api.callers import NODE

SECRET = "canary-Zx81-never-to-be-seen"


def principal(client_id: str = NODE, secret: str | None = SECRET, **more: Any) -> dict[str, Any]:
    """A monitored node with a service principal; None leaves the secret out."""
    who = {"clientId": client_id} | ({} if secret is None else {"clientSecret": secret})
    auth = {"method": "servicePrincipal", "servicePrincipal": who}
    return {"properties": {"continuousMonitoring": True, "azureAuth": auth, **more}}


def token(**node_config: Any) -> dict[str, Any]:
    """A node that joins by a token and is not monitored."""
    return {"properties": {"kubernetesAuth": {"method": "bootstrapToken"}, "nodeConfig": node_config}}
