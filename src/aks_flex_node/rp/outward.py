"""How nodes reach this service, and Azure, by its settings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.resource.ways import Ways
from aks_flex_node.rp.settings import AzureSettings
from aks_flex_node.rp.tls.own import Own

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.rp.settings import ServiceSettings

PUBLIC = AzureSettings()


def own_authority(settings: ServiceSettings) -> Own:
    return Own(settings.state_dir / "tls", settings.names)


def ways(settings: ServiceSettings) -> Ways:
    """Read once, when the service begins and has its certificate."""
    return Ways(
        url=settings.agents_url or settings.origin,
        ca_cert_data=_own_certificate(settings),
        audiences={each.tenant_id: each.audiences[0] for each in settings.auth.tenants},
        poll_seconds=settings.nodes.poll_seconds,
        azure=_private_cloud(settings.azure),
    )


def _own_certificate(settings: ServiceSettings) -> str:
    """Not of files that were given, nor behind a gateway by another name, which shows a certificate of its own."""
    name = urlsplit(settings.agents_url or settings.origin).hostname
    if settings.tls.certificate_file or name not in [each.lower() for each in settings.names]:
        return ""
    return _encoded(own_authority(settings).public_file)


def _private_cloud(azure: AzureSettings) -> dict[str, str]:
    told = {
        "resourceManager": azure.resource_manager if azure.resource_manager != PUBLIC.resource_manager else "",
        "authorityHost": azure.authority if azure.authority != PUBLIC.authority else "",
        "caCertData": _encoded(azure.ca_file) if azure.ca_file else "",
    }
    return {name: value for name, value in told.items() if value}


def _encoded(file: Path) -> str:
    try:
        return base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise ConfigError(
            "service-config-invalid",
            f"{file}, which nodes are to trust, cannot be read: {error.strerror}.",
            "Correct the settings of the service, or the file.",
        ) from error
