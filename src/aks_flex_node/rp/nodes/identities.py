"""Whose token speaks for a node, by what its resource says. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_node.rp.arm.ids import ClusterId
    from aks_flex_node.rp.resource.models import Arc, Properties

ENTRA_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def identity(properties: Properties, cluster: ClusterId, tenant: str, node: str) -> str:
    """Whose token speaks for the node, as `Caller.is_node` reads it; nobody's when it has no identity in Azure."""
    auth = properties.azure_auth
    principal, managed, arc = auth.service_principal, auth.managed_identity, auth.arc
    found = {
        "servicePrincipal": principal.client_id if principal else None,
        "managedIdentity": (managed.client_id or managed.principal_id) if managed else None,
        "arc": (arc.principal_id if arc else None) or _arc_machine(arc, cluster, node),
    }.get(auth.method)
    if not found:
        return ""
    named = principal.client_tenant if auth.method == "servicePrincipal" and principal else None
    home = (named or tenant).lower()
    # A tenant can be called by a domain, too. Tokens know it by its id alone.
    return f"{found}@{home}".lower() if ENTRA_ID.fullmatch(home) else found.lower()


def _arc_machine(arc: Arc | None, cluster: ClusterId, node: str) -> str:
    """Its resource id, which Azure puts into every token of its identity."""
    group, name = (arc.resource_group, arc.machine_name) if arc else (None, None)
    return (
        f"/subscriptions/{cluster.subscription}/resourceGroups/{group or cluster.group}"
        f"/providers/Microsoft.HybridCompute/machines/{name or node}"
    )
