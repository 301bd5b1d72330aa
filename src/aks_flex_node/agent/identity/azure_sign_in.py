"""Selects the Azure credential of the node or of its operator from the configuration, and signs in to get a token or
an Azure Resource Manager client. The functions import the Azure libraries, so long-running processes must not call
them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.resolved import azure_identities
from aks_flex_node.agent.identity.cloud_endpoints import authority_host, proxy_options, resource_manager
from aks_flex_node.agent.identity.device_sign_in import DeviceCodeFallback, DeviceCodePrompt, DeviceSignIn
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.azure import credentials
from aks_flex_node.azure.arm import ArmClient, is_connection_failure, sign_in_failed_error
from aks_flex_node.azure.cli_user import CliCredential, CliUser
from aks_flex_node.azure.credentials import FirstWorkingCredential, TokenAuthority
from aks_flex_node.azure.managed_identity import ArcCredential
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from azure.core.credentials import TokenCredential

    from aks_flex_node.agent.config.resolved import IdentityKind
    from aks_flex_node.settings.azure_models import Azure, ServicePrincipal
    from aks_flex_node.settings.models import NodeConfig


def identity_kind(config: NodeConfig) -> IdentityKind | None:
    """Returns how this node signs in to Azure, or None if the configuration has no Azure identity."""
    return next(iter(azure_identities(config)), None)


def require_identity(config: NodeConfig) -> None:
    """Raises ConfigError if the configuration has no usable Azure identity."""
    found = identity_kind(config)
    if found is None:
        raise ConfigError(
            "azure-identity-missing",
            "The configuration has no Azure identity, and no provider has bound the key of this machine, so the "
            "agent cannot sign in.",
            "Join by a configuration URL of a provider that is not older than this agent, set "
            "`azure.servicePrincipal`, `azure.managedIdentity` or `azure.arc.enabled`, or set `continuousMonitoring` "
            "to false.",
        )
    require_complete_identity(config.azure, found)


def require_complete_identity(azure: Azure, found: IdentityKind) -> None:
    """Raises ConfigError if a setting of the identity is missing."""
    if missing := _missing_field(azure, found):
        raise ConfigError(
            "azure-identity-incomplete",
            f"azure.{found} has no {missing}, so the agent cannot sign in.",
            "Join again with a configuration URL from the provider, or set the value in the configuration.",
        )


def _missing_field(azure: Azure, found: IdentityKind) -> str:
    if found == "servicePrincipal" and (own := azure.service_principal):
        if not (own.client_secret or own.client_certificate):
            return "clientSecret"
        return "" if own.tenant_id or azure.tenant_id else "tenantId"
    if found == "workloadIdentity" and (workload := azure.workload_identity):
        return "" if workload.tenant_id or azure.tenant_id else "tenantId"
    return ""


def node_credential(config: NodeConfig, ca_file: str | None) -> TokenCredential:
    """Returns the credential of this node."""
    require_identity(config)
    azure, found = config.azure, identity_kind(config)
    if found == "arc":
        return ArcCredential()
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
    """Returns the credential for changes in Azure: the configured service principal, else the user of the Azure CLI,
    else the machine's identity, else a device code sign-in if it is enabled.
    """
    azure = config.azure
    if azure.service_principal:
        require_complete_identity(azure, "servicePrincipal")
        return _principal(azure.service_principal, azure.tenant_id or "", _authority(config, ca_file))
    private_ca = read_certificate(azure.ca_cert_data) if azure.ca_cert_data else None
    cli_user = CliCredential(
        CliUser.at(environment), _authority(config, ca_file), azure.tenant_id or "", private_ca=private_ca or b""
    )
    has_own = identity_kind(config) in {"managedIdentity", "arc"}
    found = FirstWorkingCredential([cli_user, *([node_credential(config, ca_file)] if has_own else [])])
    if (device := _interaction.device_sign_in) is None:
        return found

    def open_authority(files: contextlib.ExitStack) -> TokenAuthority:
        return _authority(config, files.enter_context(ca_bundle(config)))

    return DeviceCodeFallback(found, device, azure.tenant_id or "", open_authority)


@dataclass
class _Interaction:
    """Whether the operator of this process can be asked to sign in. Only a command at a terminal sets it."""

    device_sign_in: DeviceSignIn | None = None


_interaction = _Interaction()


def enable_device_sign_in(prompt: DeviceCodePrompt | None) -> None:
    """Offers device code sign-in to the operator from now on, or never if `prompt` is None."""
    _interaction.device_sign_in = DeviceSignIn(prompt) if prompt else None


def offers_device_sign_in() -> bool:
    return _interaction.device_sign_in is not None


def _authority(config: NodeConfig, ca_file: str | None) -> TokenAuthority:
    host = authority_host(config)
    return TokenAuthority(host, ca_file, proxy_options(config).proxy_for(host))


def _principal(principal: ServicePrincipal, tenant: str, authority: TokenAuthority) -> TokenCredential:
    tenant = principal.tenant_id or tenant
    if principal.client_certificate:
        pem = principal.client_certificate.reveal().encode()
        return credentials.service_principal_by_certificate(tenant, principal.client_id, pem, authority)
    secret = principal.client_secret.reveal() if principal.client_secret else ""
    return credentials.service_principal(tenant, principal.client_id, secret, authority)


# Sign-in failures are reported once, in the error.
logging.getLogger("azure").setLevel(logging.CRITICAL)
SYSTEM_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


@frozen
class AzureToken:
    value: str = field(repr=False)
    expires: float  # Unix time


def sign_in(config: NodeConfig, scope: str, *, operator: bool = False) -> AzureToken:
    """Gets a token for the node's identity or for its operator."""
    from azure.core import exceptions as azure

    with ca_bundle(config) as file:
        try:
            credential = operator_credential(config, file) if operator else node_credential(config, file)
            token = credential.get_token(scope)
        except azure.ClientAuthenticationError as error:
            if is_connection_failure(error):
                raise sign_in_unreachable_error(config, error.message) from None
            raise sign_in_failed_error(error.message) from None
        except azure.AzureError as error:
            raise sign_in_unreachable_error(config, error.message) from None
    return AzureToken(token.token, float(token.expires_on))


@contextlib.contextmanager
def open_arm(config: NodeConfig, *, operator: bool = False) -> Iterator[ArmClient]:
    """Opens an Azure Resource Manager client as this node or as its operator."""
    with ca_bundle(config) as file:
        credential = operator_credential(config, file) if operator else node_credential(config, file)
        endpoint = resource_manager(config)
        client = ArmClient(credential, endpoint, ca_file=file, proxy=proxy_options(config).proxy_for(endpoint))
        with contextlib.closing(client):
            yield client


@contextlib.contextmanager
def ca_bundle(config: NodeConfig) -> Iterator[str | None]:
    """Yields a CA file: the configured CA, else the system's, else None for the CAs bundled with Python."""
    if not config.azure.ca_cert_data:
        yield str(SYSTEM_CA_BUNDLE) if SYSTEM_CA_BUNDLE.exists() else None
        return
    # In memory, so that a killed child process leaves no file.
    with os.fdopen(os.memfd_create("authorities"), "wb") as file:
        file.write(read_certificate(config.azure.ca_cert_data) or b"")
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def sign_in_unreachable_error(config: NodeConfig, cause: str) -> FlexError:
    reason = cause.rsplit(": ", 1)[-1].strip(" ()'\".") or "unknown cause"
    return FlexError(
        "sign-in-unreachable",
        f"Could not get a token from {authority_host(config)}: {reason}.",
        "Check the network, the proxy (`proxy.https`) and the clock of this machine. The agent retries "
        "automatically.",
        retryable=True,
    )
