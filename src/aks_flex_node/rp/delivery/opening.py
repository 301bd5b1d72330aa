"""The storage account that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.delivery.azure_blob import AzureBlob, by_connection_string, by_identity
from aks_flex_node.rp.identity import open_credential

if TYPE_CHECKING:
    from aks_flex_node.rp.settings import ServiceSettings


def open_blobs(settings: ServiceSettings) -> AzureBlob:
    blob = settings.delivery.azure_blob
    trust: dict[str, Any] = {"connection_verify": str(settings.azure.ca_file)} if settings.azure.ca_file else {}
    if blob and blob.connection_string_file:
        return AzureBlob(by_connection_string(blob.connection_string_file, **trust), blob.container)
    if blob and blob.account_url:
        return AzureBlob(by_identity(blob.account_url, open_credential(settings), **trust), blob.container)
    raise ConfigError(
        "blob-account-missing",
        "delivery.azureBlob names no storage account.",
        "Give connectionStringFile, or accountUrl for the service's own identity.",
    )
