"""Delivery through Azure Blob Storage, for several replicas and for machines that reach Azure but not the service.

A bundle is a blob with an unguessable name and a read-only SAS URL. The folder is a hash of the node, and the name
contains the expiry, so blobs can be found and swept without a record. Deleting the blob revokes the URL. Bundles are
sealed: their key is only in the URL, so that administrators of the account can neither read nor change them.

The Azure SDK is slow to import and blocking: both are contained in this module.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from aks_flex_node.api import config_urls, sealed_bundles
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_rp import private_files
from aks_flex_rp.azure_identity import open_credential
from aks_flex_rp.settings import BlobSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from azure.core.credentials import TokenCredential
    from azure.storage.blob import BlobServiceClient, ContainerClient

    from aks_flex_rp.settings import ServiceSettings


T = TypeVar("T")

CONTAINER = "flexnode-configs"
NAME_BYTES = 32
SEALED_TYPE = "application/octet-stream"
RETRIES = 3
CLOCKS = timedelta(minutes=15)  # maximum clock difference to Azure
KEY_DAYS = timedelta(days=7)  # maximum lifetime of a user delegation key in Azure


class AzureBlobDelivery:
    def __init__(self, service: BlobServiceClient, container: str = CONTAINER) -> None:
        self._service = service
        self._container: ContainerClient = service.get_container_client(container)

    async def start(self) -> None:
        """Creates the container if it does not exist. It allows no anonymous access."""
        await _in_thread(self._make_container)

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:
        """Uploads the new blob, then deletes the earlier one, so that there is always one and finally exactly one."""
        return await _in_thread(self._put, folder_of(cluster_key, node_key), bundle, expires)

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        return await _in_thread(self._delete_others, folder_of(cluster_key, node_key)) > 0

    async def sweep(self, now: float) -> int:
        return await _in_thread(self._sweep, now)

    def _make_container(self) -> None:
        from azure.core.exceptions import ResourceExistsError  # noqa: PLC0415

        with suppress(ResourceExistsError):
            self._container.create_container()

    def _put(self, folder: str, bundle: bytes, expires: float) -> str:
        from azure.storage.blob import ContentSettings  # noqa: PLC0415

        name = f"{folder}{int(expires)}-{secrets.token_urlsafe(NAME_BYTES)}"
        form, key = ContentSettings(content_type=SEALED_TYPE, cache_control="no-store"), sealed_bundles.new_key()
        sealed = sealed_bundles.seal(bundle, key)
        blob = self._container.upload_blob(name, sealed, overwrite=False, content_settings=form)
        self._delete_others(folder, name)
        signature = self._signature(name, datetime.fromtimestamp(expires, timezone.utc))
        return config_urls.add_key(f"{blob.url}?{signature}", key)

    def _signature(self, name: str, expires: datetime) -> str:
        """Creates a SAS that allows to read this blob, only over TLS if the account supports it."""
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas  # noqa: PLC0415

        encrypted = self._service.url.startswith("https:")
        return generate_blob_sas(
            account_name=str(self._service.account_name),
            container_name=self._container.container_name,
            blob_name=name,
            permission=BlobSasPermissions(read=True),
            expiry=expires,
            protocol="https" if encrypted else "https,http",
            **self._signing_key(expires),
        )

    def _signing_key(self, expires: datetime) -> dict[str, Any]:
        """Returns the account key, or a user delegation key of the service's identity."""
        key = getattr(self._service.credential, "account_key", None)
        if key:
            return {"account_key": key}
        now = datetime.now(timezone.utc)
        until = min(expires, now + KEY_DAYS - CLOCKS)
        return {"user_delegation_key": self._service.get_user_delegation_key(now - CLOCKS, until)}

    def _delete_others(self, folder: str, current: str = "") -> int:
        others = [name for name in self._names(folder) if name != current]
        return sum(self._delete(name) for name in others)

    def _sweep(self, now: float) -> int:
        return sum(self._delete(name) for name in list(self._names("")) if expiry_of(name) <= now)

    def _names(self, folder: str) -> Iterator[str]:
        return iter(self._container.list_blob_names(name_starts_with=folder))

    def _delete(self, name: str) -> bool:
        from azure.core.exceptions import ResourceNotFoundError  # noqa: PLC0415

        try:
            self._container.delete_blob(name)
        except ResourceNotFoundError:
            return False  # another replica deleted it
        return True


async def _in_thread(act: Callable[..., T], *arguments: object) -> T:
    """Runs a blocking call of the SDK in a thread, and translates Azure's errors."""
    from azure.core.exceptions import AzureError  # noqa: PLC0415

    try:
        return await asyncio.to_thread(act, *arguments)
    except AzureError as error:
        raise FlexError(
            "blob-storage-unavailable",
            f"The storage account rejected the request: {str(error.message).splitlines()[0]}",
            "Check that the account exists, and that its key or the service's identity may write blobs.",
            retryable=True,
        ) from error


def folder_of(cluster_key: str, node_key: str) -> str:
    """Returns the folder of a node's blobs: a hash, so that a URL does not reveal the node's name."""
    return hashlib.sha256(f"{cluster_key}/{node_key}".encode()).hexdigest()[:32] + "/"


def expiry_of(name: str) -> float:
    """Returns the expiry from a blob's name. Blobs that are not from this service never expire."""
    text = name.rpartition("/")[2].partition("-")[0]
    return float(text) if text.isascii() and text.isdigit() else float("inf")


def by_connection_string(file: Path, **options: Any) -> BlobServiceClient:
    """Opens a storage account with the connection string from a private file."""
    from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

    text = private_files.read(file).decode(errors="replace").strip()
    try:
        service = BlobServiceClient.from_connection_string(text, **options)
    except ValueError:
        service = None
    if service is None or not getattr(service.credential, "account_key", None):
        raise ConfigError(
            "blob-account-invalid",
            f"{file} contains no connection string with an account key.",
            "Copy the complete output of `az storage account show-connection-string` on one line.",
        )
    return service


def by_identity(account_url: str, credential: TokenCredential, **options: Any) -> BlobServiceClient:
    """Opens a storage account with an identity that may write blobs and request user delegation keys."""
    from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

    if not account_url.startswith("https://"):
        raise ConfigError(
            "blob-account-invalid",
            f"{account_url} is not the URL of a storage account.",
            "Use https://ACCOUNT.blob.core.windows.net.",
        )
    return BlobServiceClient(account_url, credential=credential, **options)


def open_blob_delivery(settings: ServiceSettings) -> AzureBlobDelivery:
    from aks_flex_node.azure.transport import BoundedTransport  # noqa: PLC0415

    trust: dict[str, Any] = {"connection_verify": str(settings.azure.ca_file)} if settings.azure.ca_file else {}
    limits: dict[str, Any] = {"transport": BoundedTransport(**trust), "retry_total": RETRIES}
    blob = settings.delivery.azure_blob or BlobSettings()
    if blob.connection_string_file:
        return AzureBlobDelivery(by_connection_string(blob.connection_string_file, **limits), blob.container)
    credential = open_credential(settings)
    return AzureBlobDelivery(by_identity(blob.account_url or "", credential, **limits), blob.container)
