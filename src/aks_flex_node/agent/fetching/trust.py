"""Whom to believe that it is the service: the system's authorities, or exactly the one that the URL names."""

from __future__ import annotations

import hashlib
import ssl
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.connections import tls_context
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts.sources import Sources
    from aks_flex_node.api.config_urls import ConfigUrl


def context_for(url: ConfigUrl, sources: Sources, proxy: str | None) -> ssl.SSLContext:
    """What the request itself is verified with, the server's name included."""
    if not url.pin or url.scheme == "http":
        return tls_context(sources.ca_file)
    from aks_flex_node.agent.fetching.probing import shown_certificates

    chain = shown_certificates(url.origin, sources, proxy)
    pinned = next((each for each in chain if hashlib.sha256(each).hexdigest() == url.pin), None)
    if pinned is None:
        raise untrusted(url, "it does not show the CA certificate that the URL names")
    # That it is shown proves nothing: anybody can show it. That the server's own is signed by it does.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pinned)
    return context


def untrusted(url: ConfigUrl, why: str) -> ConfigError:
    hint = "If you did not change the URL, somebody may stand between; ask whoever runs the service for a new URL."
    if not url.pin:
        hint = "If the service has a CA of its own, the URL must end in #ca=sha256:…: copy all of it, in quotes."
    return ConfigError(
        "config-url-untrusted", f"{url.origin} cannot be trusted, and nothing was asked of it: {why}.", hint
    )
