"""Who we are to Azure. azure-identity is imported when it is needed: it costs 0.3 s and 40 MiB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

PUBLIC = "https://login.microsoftonline.com"
# Clouds that Entra's own list knows. Any other authority is a private one, which that list would call a fake.
KNOWN = frozenset(
    (
        "login.microsoftonline.com",
        "login.chinacloudapi.cn",
        "login.microsoftonline.us",
        "login.partner.microsoftonline.cn",
    )
)


@dataclass(frozen=True)
class Authority:
    """Where tokens come from."""

    host: str = PUBLIC
    ca_file: str | None = None  # for an authority with certificates of its own

    def options(self) -> dict[str, Any]:
        """What azure-identity has to be told about it."""
        told: dict[str, Any] = {"authority": self.host}
        if urlsplit(self.host).hostname not in KNOWN:
            told["disable_instance_discovery"] = True
        return {**told, **self.trust()}

    def trust(self) -> dict[str, Any]:
        return {"connection_verify": self.ca_file} if self.ca_file else {}


def service_principal(
    tenant: str, client_id: str, secret: str, authority: Authority | None = None
) -> TokenCredential:
    from azure.identity import ClientSecretCredential  # noqa: PLC0415

    return ClientSecretCredential(tenant, client_id, secret, **(authority or Authority()).options())


def managed_identity(client_id: str | None = None) -> TokenCredential:
    """The identity of the Azure VM (or pod) that this runs on; which one, when it has several."""
    from azure.identity import ManagedIdentityCredential  # noqa: PLC0415

    return ManagedIdentityCredential(client_id=client_id)


def default(authority: Authority | None = None) -> TokenCredential:
    """Whatever this service was given: environment variables, workload identity, managed identity, or `az login`."""
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415

    told = authority.options() if authority else {}  # without one, AZURE_AUTHORITY_HOST decides
    return DefaultAzureCredential(
        **told, exclude_interactive_browser_credential=True, exclude_powershell_credential=True
    )
