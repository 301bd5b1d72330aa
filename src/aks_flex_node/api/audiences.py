"""Audiences of tokens: which of them belong to Azure, and to which servers a token may be sent.

A token for Azure lets its holder act in Azure, so only Azure may receive it. A self-hosted resource provider has an
application of its own in Entra ID, whose tokens are worthless elsewhere. The services of Microsoft cannot be listed
completely, so only audiences that look like such an application are sent to a provider.
"""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import urlsplit

# Domains that only Microsoft can register as the identifier of an application.
AZURE_DOMAINS = (
    *("azure.com", "azure.net", "azure.cn", "azure.us", "windows.net", "windowsazure.cn", "chinacloudapi.cn"),
    *("usgovcloudapi.net", "cloudapi.de", "microsoft.com", "microsoft.us", "microsoftonline.com", "office.com"),
    *("office365.com", "microsoftazure.de", "microsoftazure.us", "azuredatabricks.net", "azurecr.io"),
    *(
        "visualstudio.com",
        "loganalytics.io",
        "applicationinsights.io",
        "azconfig.io",
        "azuresynapse.net",
        "azureml.ms",
    ),
    *("sharepoint.com", "powerbi.com", "dynamics.com", "outlook.com", "windowsazure.com", "azure-devices.net"),
)
ARM_SERVERS = frozenset(
    (f"management.{each}", 443) for each in ("azure.com", "chinacloudapi.cn", "usgovcloudapi.net")
)
ARM_APPLICATION = "797f4846-ba00-4fd7-ba43-dac1f8f63013"
AZURE_APPLICATIONS = frozenset(
    {
        ARM_APPLICATION,
        "cfa8b339-82a2-471a-a3c9-0fc0be7a4093",  # Azure Key Vault
        "e406a681-f3d4-42a8-90b6-c2b029497af1",  # Azure Storage
        "6dae42f8-4368-4678-94ff-3960e28e3630",  # AKS, whose tokens clusters accept
        "ca7f3f0b-7d91-482c-8e09-c5d840d0eac5",  # Log Analytics
        "022907d3-0f1b-48f7-badc-1ba6abab6d66",  # Azure SQL
        "123cd850-d9df-40bd-94d5-c9f07b7fa203",  # Azure Database for PostgreSQL and MySQL
        "2ff814a6-3304-4ab8-85cb-cd0e6f879c1d",  # Azure Databricks
        "35ffadb3-7fc1-497e-b61b-381d28e744cc",  # Azure App Configuration
        "499b84ac-1321-427f-aa17-267ca6975798",  # Azure DevOps
        "80369ed6-5f11-4dd9-bef3-692475845e77",  # Azure Event Hubs
        "80a10ef9-8168-493d-abf9-3297c4ef6e3c",  # Azure Service Bus
        "a232010e-820c-4083-83bb-3ace5fc29d0b",  # Azure Cosmos DB
        "c44b4083-3bb0-49c1-b47d-974e53cbdf3c",  # Azure portal
        "c5393580-f805-4401-95e8-94b7a6ef2fc2",  # Office 365 Management APIs
        "e9f49c6b-5ce5-44c8-925d-015017e9f7ad",  # Azure Data Lake
    }
)
# Applications of Microsoft with numbers instead of random IDs, such as Microsoft Graph and Exchange.
_NUMBERED_APPLICATION = re.compile(r"[0-9a-f]{8}-0000-0(?:000-c0|ff1-ce)00-000000000000")
TOKEN_EXCHANGE = "api://azureadtokenexchange"  # noqa: S105 - of federated credentials, with suffixes in other clouds
_APPLICATION = re.compile(r"(?:api://|spn:)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/?")


def is_azure_audience(audience: str, resource_manager: str = "") -> bool:
    """Returns whether tokens for the audience are known to be valid in Azure. `resource_manager` is that of a private
    cloud.
    """
    if application := _application(audience):
        return application in AZURE_APPLICATIONS or _NUMBERED_APPLICATION.fullmatch(application) is not None
    if audience.strip().lower().startswith(TOKEN_EXCHANGE):
        return True
    host, port = _host_and_port(audience)
    if not host:
        return False
    known = any(f".{host}".endswith(f".{each}") for each in AZURE_DOMAINS)
    return known or (host, port) == _host_and_port(resource_manager)


def may_send_token(audience: str, origin: str, resource_manager: str = "") -> bool:
    """Returns whether a token for the audience may be sent to this server.

    A token for Azure is sent to the resource manager that it is for. Azure's domains also contain machines of its
    customers, so the server must be Azure Resource Manager itself. Other servers get only tokens for an application
    of the customer: a URI `api://…`, an application ID, or the URL of the server itself.
    """
    server = _host_and_port(origin)
    if is_azure_audience(audience, resource_manager):
        same = bool(server[0]) and server == _host_and_port(audience)
        return same or (server in ARM_SERVERS and _is_arm(audience))
    if _application(audience) or audience.strip().lower().startswith("api://"):
        return True
    host, _ = _host_and_port(audience)
    return bool(host) and host == server[0]


def audience_forms(audience: str) -> tuple[str, ...]:
    """Returns the audience as tokens name it: version 2 tokens have the ID of an application instead of its URI."""
    found = _application(audience)
    return tuple(dict.fromkeys((audience, found, f"api://{found}"))) if found else (audience,)


def token_audiences(token: str) -> tuple[str, ...]:
    """Returns the audiences that a JSON web token names, without verifying it; none if it is not such a token."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        named = claims.get("aud", ())
    except (IndexError, ValueError, AttributeError, RecursionError):
        return ()
    return tuple(str(each) for each in (named if isinstance(named, list) else (named,)) if each)


def _is_arm(audience: str) -> bool:
    host, _ = _host_and_port(audience)
    manager = (host, 443) in ARM_SERVERS or host.startswith("management.core.")
    return manager or _application(audience) == ARM_APPLICATION


def _application(audience: str) -> str:
    """Returns the application ID in an audience, or "" if the audience is something else."""
    found = _APPLICATION.fullmatch(audience.strip().lower())
    return found[1] if found else ""


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url.strip().lower())
        return parts.hostname or "", parts.port or 443
    except ValueError:
        return "", 0
