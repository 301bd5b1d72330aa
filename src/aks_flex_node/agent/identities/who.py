"""Which of the identities of a configuration is the node's own, and which is its operator's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from aks_flex_node.agent.identities.clouds import authority_host, ways_out
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.azure import credentials
from aks_flex_node.azure.credentials import Authority, FirstOf
from aks_flex_node.azure.machines import ArcIdentity
from aks_flex_node.azure.people import AzureCli, Person
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.core.credentials import TokenCredential

    from aks_flex_node.agent.config.cloud import Azure, ServicePrincipal
    from aks_flex_node.agent.config.models import NodeConfig

Kind = Literal["arc", "servicePrincipal", "managedIdentity", "workloadIdentity"]


def kind(config: NodeConfig) -> Kind | None:
    """How this node signs in to Azure; None when its configuration has no way."""
    azure = config.azure
    if azure.arc.enabled:
        return "arc"
    if azure.service_principal is not None:
        return "servicePrincipal"
    if azure.managed_identity is not None:
        return "managedIdentity"
    return "workloadIdentity" if azure.workload_identity is not None else None


def require_identity(config: NodeConfig) -> None:
    """Raise when nobody could sign in with this configuration."""
    found = kind(config)
    if found is None:
        raise ConfigError(
            "azure-identity-missing",
            "The configuration names no Azure identity, so the agent cannot sign in.",
            "Set azure.servicePrincipal, azure.managedIdentity or azure.arc.enabled; or continuousMonitoring: false.",
        )
    require_identity_of(config.azure, found)


def require_identity_of(azure: Azure, found: Kind) -> None:
    """Raise when that identity is only half given."""
    if missing := _missing(azure, found):
        raise ConfigError(
            "azure-identity-incomplete",
            f"azure.{found} has no {missing}, so the agent cannot sign in.",
            "Join again with a URL from the provider, which carries it, or set it in the configuration.",
        )


def _missing(azure: Azure, found: Kind) -> str:
    if found == "servicePrincipal" and (own := azure.service_principal):
        if not (own.client_secret or own.client_certificate):
            return "clientSecret"
        return "" if own.tenant_id or azure.tenant_id else "tenantId"
    if found == "workloadIdentity" and (workload := azure.workload_identity):
        return "" if workload.tenant_id or azure.tenant_id else "tenantId"
    return ""


def node_credential(config: NodeConfig, ca_file: str | None) -> TokenCredential:
    """Who this node is to Azure."""
    require_identity(config)
    azure, found = config.azure, kind(config)
    if found == "arc":
        return ArcIdentity()
    if found == "managedIdentity" and azure.managed_identity:
        return credentials.managed_identity(azure.managed_identity.client_id)
    authority = _authority(config, ca_file)
    if found == "servicePrincipal" and azure.service_principal:
        return _principal(azure.service_principal, azure.tenant_id or "", authority)
    workload = azure.workload_identity
    assert workload  # noqa: S101 - the last of the kinds
    return credentials.workload_identity(
        workload.tenant_id or azure.tenant_id or "", workload.client_id, workload.token_file, authority
    )


def operator_credential(
    config: NodeConfig, ca_file: str | None, environment: Mapping[str, str] = os.environ
) -> TokenCredential:
    """Who works on Azure for this node: the principal that is configured, else the person at the keyboard, else
    the machine itself.
    """
    azure = config.azure
    if azure.service_principal:
        require_identity_of(azure, "servicePrincipal")
        return _principal(azure.service_principal, azure.tenant_id or "", _authority(config, ca_file))
    given = read_certificate(azure.ca_cert_data) if azure.ca_cert_data else None
    person = AzureCli(
        Person.at(environment), _authority(config, ca_file), azure.tenant_id or "", private_ca=given or b""
    )
    has_own = kind(config) in {"managedIdentity", "arc"}
    return FirstOf([person, *([node_credential(config, ca_file)] if has_own else [])])


def _authority(config: NodeConfig, ca_file: str | None) -> Authority:
    host = authority_host(config)
    return Authority(host, ca_file, ways_out(config).proxy_for(host))


def _principal(principal: ServicePrincipal, tenant: str, authority: Authority) -> TokenCredential:
    tenant = principal.tenant_id or tenant
    if principal.client_certificate:
        pem = principal.client_certificate.reveal().encode()
        return credentials.service_principal_by_certificate(tenant, principal.client_id, pem, authority)
    secret = principal.client_secret.reveal() if principal.client_secret else ""
    return credentials.service_principal(tenant, principal.client_id, secret, authority)
