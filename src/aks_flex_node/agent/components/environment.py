"""Proxies, as the environment of a unit: in a file, because everybody may ask systemd what a unit says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import Proxy


def proxy_lines(proxy: Proxy) -> str:
    """Lines of an environment file; nothing when there is no proxy."""
    values = {"HTTP_PROXY": proxy.http, "HTTPS_PROXY": proxy.https, "NO_PROXY": ",".join(proxy.no_proxy)}
    if not (proxy.http or proxy.https):
        return ""
    return "".join(f'{name}="{_escaped(value)}"\n' for name, value in values.items() if value)


def _escaped(value: str) -> str:
    """What systemd would take for something else between double quotes."""
    return "".join(f"\\{char}" if char in '"\\`$' else char for char in value)
