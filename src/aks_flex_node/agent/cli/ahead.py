"""What comes before a node is made: Azure is asked about the cluster, Arc gets to know the machine, a tunnel leads
to the cluster, and the provider gets to know who comes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import discovering
from aks_flex_node.agent.cli import door, screen
from aks_flex_node.agent.components.agent import APPLIED
from aks_flex_node.agent.config.derived import cluster, kubelet_auth
from aks_flex_node.agent.engine.state import Phase
from aks_flex_node.agent.joining import Stage
from aks_flex_node.errors import FlexError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.loader import Loaded
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.discovering import Discovered
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.following.provider import Provider
    from aks_flex_node.agent.leaving import TakeBack
    from aks_flex_node.host.host import Host

INTRODUCTION_SECONDS = 120.0


def ask_azure(config: NodeConfig) -> tuple[NodeConfig, Discovered | None]:
    """The configuration with what Azure says of the cluster, where it leaves that out; and that by itself, when Azure
    was asked. Changes nothing."""

    def ask() -> Discovered:
        from aks_flex_node.agent.identities.signing import arm

        screen.say(f"Asking Azure about {discovering.cluster_id(config)}.")
        with arm(config, operator=True) as azure:
            return discovering.discover(config, azure)

    kept = discovering.kept(RealHost())
    return discovering.told(config, kept, ask, screen.say, joined=Path(APPLIED).exists())


def stages(engine: Engine, note: Callable[[str], None]) -> list[Stage]:
    config, found = engine.config, []
    if config.azure.arc.enabled:
        from aks_flex_node.agent.arc.registration import Registration

        phases = (Phase.ARC_REGISTERING, Phase.ARC_REGISTERED, Phase.ARC_FAILED)
        found.append(Stage("arc", "Azure Arc knows this machine", *phases, Registration(engine, note).run))
    if config.azure.vpn.enabled:
        from aks_flex_node.agent.vpn.connection import Connection

        phases = (Phase.VPN_BOOTSTRAPPING, Phase.VPN_CONNECTED, Phase.VPN_FAILED)
        found.append(Stage("vpn", "a tunnel to the cluster's network", *phases, Connection(engine, note).run))
    return found


def take_back(engine: Engine, note: Callable[[str], None]) -> list[TakeBack]:
    """How what was made in Azure for this machine goes again. The configuration may have changed since, so it is what
    was written down that counts."""
    from aks_flex_node.agent.arc.registration import Registration
    from aks_flex_node.agent.vpn.connection import Connection

    return [
        ("vpn", "the gateway forgets this machine", Connection(engine, note).take_back),
        ("arc", "Azure Arc forgets this machine", Registration(engine, note).take_back),
    ]


def in_azure(host: Host, config: NodeConfig) -> list[str]:
    """What `take_back` would do, by what was written down."""
    from aks_flex_node.agent.arc.records import Records
    from aks_flex_node.agent.vpn import records as vpn

    arc, tunnel = Records(host, config).read(), vpn.read(host, config)
    gateways = [*([tunnel.gateway] if tunnel.roots else []), *(gateway for gateway, _ in tunnel.former)]
    found = [f"take this machine's certificate off {each}" for each in dict.fromkeys(gateways)]
    found += [f"delete the role assignment {each}" for each in arc.assignments]
    found += [f"take {arc.machine} out of Azure Arc"] if arc.connected else []
    return [*found, *(["remove azcmagent, its users and its directories"] if arc.installed else [])]


def introduction(engine: Engine, loaded: Loaded) -> Callable[[], None] | None:
    """How this node shows itself to its provider, where that has to let it in; None where nobody has to."""
    config = engine.config
    if kubelet_auth(config) == "bootstrapToken" or not config.provider.url or cluster(config) is None:
        return None

    def introduce() -> None:
        from aks_flex_node.agent.following.endpoints import endpoint
        from aks_flex_node.agent.following.provider import Provider
        from aks_flex_node.agent.following.tokens import Tokens

        # As whom its kubelet will come: what a join before this one has kept may name somebody else.
        node = door.node_name(engine)
        tokens = Tokens(engine.machine.program, loaded.text)
        _introduce(Provider(endpoint(config, node), config, tokens))

    return introduce


def _introduce(provider: Provider) -> None:
    """The provider may be away for a moment, or not know yet that Azure has given us our roles."""
    from aks_flex_node.agent.following.introducing import introduce
    from aks_flex_node.agent.following.provider import Unanswered

    end, pause = time.monotonic() + INTRODUCTION_SECONDS, 1.0
    while True:
        try:
            return introduce(provider)
        except Unanswered as without:
            verdict = without.verdict
            if time.monotonic() + pause > end or not verdict.may_pass:
                raise FlexError(
                    "introduction-failed",
                    f"The provider did not let this node in: {verdict.message}",
                    "Look at the resource: `aks-flex-rp node show`. Its azureAuth must name this node's identity.",
                    again=True,
                ) from None
        finally:
            provider.close()
        time.sleep(pause)
        pause = min(pause * 2, 15.0)
