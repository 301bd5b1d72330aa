"""Azure identity of the service: builds the credential and the Resource Manager client from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.azure import credentials
from aks_flex_node.azure.arm import ArmClient
from aks_flex_rp import private_files

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

    from aks_flex_rp.settings import ServiceSettings


def open_arm(settings: ServiceSettings) -> ArmClient:
    azure = settings.azure
    return ArmClient(
        open_credential(settings), azure.resource_manager, ca_file=str(azure.ca_file) if azure.ca_file else None
    )


def open_credential(settings: ServiceSettings) -> TokenCredential:
    azure = settings.azure
    authority = credentials.TokenAuthority(azure.authority, str(azure.ca_file) if azure.ca_file else None)
    if azure.client_id and azure.client_secret_file:
        secret = private_files.read(azure.client_secret_file).decode().strip()
        return credentials.service_principal(azure.tenant_id or "", azure.client_id, secret, authority)
    return (
        credentials.managed_identity(azure.client_id)
        if azure.client_id
        else credentials.default_credential(authority)
    )
