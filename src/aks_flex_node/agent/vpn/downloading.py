"""Azure, for the VPN: a client of its resource manager, and the archive that it makes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.causes import explain
from aks_flex_node.agent.artifacts.connections import make_pool, tls_context
from aks_flex_node.agent.identities.clouds import ways_out
from aks_flex_node.agent.vpn.profiles import unfit
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.azure.operations import ArmSender
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.azure.operations import Sender

LARGEST = 4 << 20
SECONDS = 60.0


@contextlib.contextmanager
def azure(config: NodeConfig) -> Iterator[Sender]:
    """As the operator, who may make gateways."""
    from aks_flex_node.agent.identities.signing import arm

    with arm(config, operator=True) as client:
        yield ArmSender(client)


def download(config: NodeConfig, url: str) -> bytes:
    """What a link of Azure's leads to. The link itself opens the archive to whoever has it, so it is told nobody."""
    from urllib3.exceptions import HTTPError

    sources = ways_out(config)
    proxy = sources.proxy_for(url)
    place = url.partition("?")[0]
    try:
        with make_pool(sources, proxy, _trust(config)) as pool:
            answer = pool.request("GET", url, timeout=SECONDS, retries=False, redirect=False, preload_content=False)
            content = answer.read(LARGEST + 1)
    except (HTTPError, OSError) as error:
        raise _unreachable(explain(error, place, proxy, SECONDS).cause) from None
    if answer.status != 200:
        raise _unreachable(f"the answer has status {answer.status}")
    if len(content) > LARGEST:
        raise unfit(f"it has more than {LARGEST >> 20} MB")
    return bytes(content)


def _unreachable(why: str) -> FlexError:
    return FlexError(
        "vpn-profile-unreachable",
        f"The profile that Azure made for the VPN cannot be fetched: {why}.",
        "Check that this machine reaches Azure's storage (*.blob.core.windows.net), then run the same command again.",
        again=True,
    )


def _trust(config: NodeConfig) -> ssl.SSLContext:
    """The system's authorities, and those of a private cloud."""
    context = tls_context(None)
    given = read_certificate(config.azure.ca_cert_data) if config.azure.ca_cert_data else None
    if given:
        context.load_verify_locations(cadata=given.decode("ascii"))
    return context
