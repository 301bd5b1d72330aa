"""Endpoints of the configured Azure cloud: Azure Resource Manager, token authority, and the proxies to reach them."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_node.settings.azure_models import AZURE_CLOUDS

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig

AKS_SERVER_APP_ID = "6dae42f8-4368-4678-94ff-3960e28e3630"  # AKS server application: the audience of cluster tokens
CLOUD_ENDPOINTS = {  # Azure Resource Manager, token authority
    "azurepubliccloud": ("https://management.azure.com", "https://login.microsoftonline.com"),
    "azurechinacloud": ("https://management.chinacloudapi.cn", "https://login.chinacloudapi.cn"),
    "azureusgovernment": ("https://management.usgovcloudapi.net", "https://login.microsoftonline.us"),
}
METADATA_PATH = "/metadata/endpoints?api-version=2022-09-01"
METADATA_SECONDS = 10.0
MAX_METADATA_BYTES = 1 << 20


def resource_manager(config: NodeConfig) -> str:
    return config.azure.resource_manager or _cloud(config)[0]


def authority_host(config: NodeConfig) -> str:
    """Returns the token authority. If a private cloud configures only its resource manager, queries that once."""
    azure = config.azure
    if azure.authority_host:
        return azure.authority_host
    if azure.resource_manager is None:
        return _cloud(config)[1]
    known = dict(CLOUD_ENDPOINTS.values())
    return known.get(azure.resource_manager) or _discover_authority(
        azure.resource_manager, azure.ca_cert_data, proxy_options(config)
    )


def check_cloud(config: NodeConfig) -> None:
    """Raises ConfigError if the endpoints of the cloud are unknown. Makes no requests."""
    if config.azure.resource_manager is None:
        _cloud(config)


def proxy_options(config: NodeConfig) -> DownloadOptions:
    """Returns the proxies for Azure and the provider."""
    return DownloadOptions(
        http_proxy=config.proxy.http,
        https_proxy=config.proxy.https,
        no_proxy=config.proxy.no_proxy,
        parallel=2,
        stall_seconds=30.0,
    )


def _cloud(config: NodeConfig) -> tuple[str, str]:
    known = CLOUD_ENDPOINTS.get(config.azure.cloud.lower())
    if known is None:
        raise ConfigError(
            "cloud-unknown",
            f"The endpoints of azure.cloud {config.azure.cloud} are not known.",
            f"Use one of {', '.join(AZURE_CLOUDS)}, or set `azure.resourceManager` and `azure.authorityHost`.",
        )
    return known


@functools.cache
def _discover_authority(manager: str, authorities: str | None, sources: DownloadOptions) -> str:
    """Queries the metadata endpoint of a cloud. Errors are not cached."""
    from urllib3.exceptions import HTTPError

    from aks_flex_node.agent.http.connections import explain_failure, make_pool, tls_context
    from aks_flex_node.bounded_http.limits import BodyLimitError, read_body, time_limit

    proxy = sources.proxy_for(manager)
    private_ca = read_certificate(authorities) if authorities else None
    try:
        with make_pool(sources, proxy, tls_context(system=private_ca is None, pem=private_ca)) as pool:
            with time_limit(METADATA_SECONDS):
                response = pool.request(
                    "GET",
                    manager + METADATA_PATH,
                    timeout=METADATA_SECONDS,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                content = read_body(response, MAX_METADATA_BYTES)
            cause = f"its response has status {response.status}"
            login = str(json.loads(content)["authentication"]["loginEndpoint"]) if response.status == 200 else ""
    except (HTTPError, OSError) as error:
        login, cause = "", explain_failure(error, manager, proxy, METADATA_SECONDS).cause
    except BodyLimitError as limit:
        login, cause = "", f"its response cannot be used: {limit}"
    except (ValueError, KeyError, TypeError, RecursionError):
        login, cause = "", "its response is not a cloud description"
    if login.startswith("https://"):
        return login.rstrip("/")
    raise FlexError(
        "cloud-endpoints-missing",
        f"Could not get the token authority from {manager}: {cause}.",
        "Set `azure.authorityHost`, or check `azure.resourceManager`, `azure.caCertData` and the network.",
        retryable=True,
    )
