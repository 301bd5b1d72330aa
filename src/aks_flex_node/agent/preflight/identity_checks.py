"""Checks that the configured Azure identity can sign in, before anything is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.arc.registration_state import ArcRecordStore
from aks_flex_node.agent.config.resolved import kubelet_auth
from aks_flex_node.agent.identity.azure_sign_in import identity_kind
from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID, resource_manager
from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, as_warning, error, ok
from aks_flex_node.agent.provider.provider_client import provider_scope
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.settings.models import NodeConfig

IDENTITY_NAMES = {
    "arc": "the Azure Arc identity",
    "servicePrincipal": "the service principal",
    "managedIdentity": "the managed identity",
    "workloadIdentity": "the workload identity",
}


def check_identity(context: PreflightContext) -> Iterator[CheckFinding]:
    """Signs in as the node. With Azure Arc, signs in as the operator that registers the machine."""
    config, kind = context.config, identity_kind(context.config)
    if kind is None:
        yield ok("not needed: no Azure identity is configured")
    elif kind != "arc":
        yield _check_sign_in(context, node_scope(config), IDENTITY_NAMES[kind])
    else:
        if config.azure.service_principal:
            scope = f"{resource_manager(config)}/.default"
            yield _check_sign_in(context, scope, "the service principal of the operator", operator=True)
        if ArcRecordStore(context.host, config).current.settled:
            # The registration starts the metadata service, so a failure is not final.
            yield as_warning(_check_sign_in(context, node_scope(config), IDENTITY_NAMES["arc"]))
        elif not config.azure.service_principal:
            yield ok("checked by the registration with Azure Arc")


def node_scope(config: NodeConfig) -> str:
    """Returns the scope of the first token that the node needs: for the cluster, the provider or Azure."""
    if kubelet_auth(config) != "bootstrapToken":
        return f"{AKS_SERVER_APP_ID}/.default"
    return provider_scope(config) if config.continuous_monitoring else f"{resource_manager(config)}/.default"


def _check_sign_in(context: PreflightContext, scope: str, name: str, *, operator: bool = False) -> CheckFinding:
    try:
        context.sign_in(context.config, scope, operator)
    except FlexError as failure:
        return error(f"Sign-in as {name} failed: {failure.message}", failure.hint)
    return ok(f"{name} can sign in")
