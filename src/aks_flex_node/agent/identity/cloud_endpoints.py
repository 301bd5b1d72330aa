"""Endpoints of the Azure cloud that a configuration names: resource manager, token authority, proxies to reach
them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig

AKS_SERVER_APP_ID = (
    "6dae42f8-4368-4678-94ff-3960e28e3630"  # AKS's server application: what a token for a cluster is for
)
CLOUD_ENDPOINTS = {  # resource manager, and where tokens come from
    "azurepubliccloud": ("https://management.azure.com", "https://login.microsoftonline.com"),
    "azurechinacloud": ("https://management.chinacloudapi.cn", "https://login.chinacloudapi.cn"),
    "azureusgovernment": ("https://management.usgovcloudapi.net", "https://login.microsoftonline.us"),
}
METADATA_PATH = "/metadata/endpoints?api-version=2022-09-01"
METADATA_SECONDS = 10.0


def resource_manager(config: NodeConfig) -> str:
    return config.azure.resource_manager or _cloud(config)[0]


def authority_host(config: NodeConfig) -> str:
    """Where tokens come from. A private cloud that gives only its resource manager is asked for it, once."""
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
    """Raise when it cannot be known where this Azure is. Asks nobody."""
    if config.azure.resource_manager is None:
        _cloud(config)


def proxy_options(config: NodeConfig) -> DownloadOptions:
    """The proxies that lead to Azure and to the provider."""
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
            f"azure.cloud is {config.azure.cloud}, and where that is, is not known.",
            f"Use one of {', '.join(CLOUD_ENDPOINTS)}, or set azure.resourceManager and azure.authorityHost.",
        )
    return known


@functools.cache
def _discover_authority(manager: str, authorities: str | None, sources: DownloadOptions) -> str:
    """What a cloud says of itself; errors are not kept."""
    from urllib3.exceptions import HTTPError

    from aks_flex_node.agent.http.connections import explain_failure, make_pool, tls_context

    proxy = sources.proxy_for(manager)
    given = read_certificate(authorities) if authorities else None
    try:
        with make_pool(sources, proxy, tls_context(system=given is None, pem=given)) as pool:
            answer = pool.request(
                "GET", manager + METADATA_PATH, timeout=METADATA_SECONDS, retries=False, redirect=False
            )
            login = str(answer.json()["authentication"]["loginEndpoint"]) if answer.status == 200 else ""
            cause = f"its answer has status {answer.status}"
    except (HTTPError, OSError) as error:
        login, cause = "", explain_failure(error, manager, proxy, METADATA_SECONDS).cause
    except (ValueError, KeyError, TypeError):
        login, cause = "", "its answer is not a description of a cloud"
    if login.startswith("https://"):
        return login.rstrip("/")
    raise FlexError(
        "cloud-endpoints-missing",
        f"{manager} does not say where its tokens come from: {cause}.",
        "Set azure.authorityHost, or check azure.resourceManager, azure.caCertData and the network.",
        retryable=True,
    )
