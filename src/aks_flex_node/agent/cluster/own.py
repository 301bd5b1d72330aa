"""How this node speaks to the API server: by its own certificate, or by tokens of its Azure identity."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.sources import Sources
from aks_flex_node.agent.cluster.api import Api
from aks_flex_node.agent.config.derived import joined_file, kubelet_auth
from aks_flex_node.agent.identities import handing
from aks_flex_node.errors import ClusterError
from aks_flex_node.host import processes

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig

LEAST = 30.0  # seconds that a token must be good for to be shown
SECONDS = 40.0  # for whoever signs us in; well below what the watchdog of the agent that stays allows


def node_api(config: NodeConfig) -> Api:
    places, server = config.paths.kubernetes, config.node.kubelet.server_url or ""
    authority, proxy = f"{places.certs_dir}/ca.crt", proxy_to(config, server)
    if kubelet_auth(config) == "exec":
        return Api(server, authority, proxy=proxy, token=lambda: azure_token(places.kubelet_dir))
    return Api(server, authority, joined_file(config), proxy=proxy)


def azure_token(folder: str) -> str:
    """What the kubelet shows: from the same file while it is good, else by the same script.

    The kubelet gets a new one when the old has ended, and keeps it there; who only looks along need not be sooner.
    Signing in loads large libraries, so it is left to a child.
    """
    known = handing.read(Path(folder, handing.KEPT))
    if known and known.lasts(time.time() + LEAST):
        return known.value
    answer = processes.run((f"{folder}/token.sh",), seconds=SECONDS)
    try:
        return str(json.loads(answer.out)["status"]["token"])
    except (ValueError, KeyError, TypeError):
        if known and known.lasts(time.time()):
            return known.value
        words = answer.err.strip().splitlines()
        raise ClusterError(
            "azure-token-missing",
            f"There is no token to show the API server: {words[-1][:300] if words else 'nobody said why'}",
            "Try `aks-flex-node token kubernetes`; it says what is wrong.",
            again=True,
        ) from None


def proxy_to(config: NodeConfig, server: str) -> str:
    """The way out that the kubelet takes, too."""
    proxy = config.proxy
    sources = Sources(http_proxy=proxy.http, https_proxy=proxy.https, no_proxy=proxy.no_proxy)
    return sources.proxy_for(server) or ""
