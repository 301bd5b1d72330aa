"""Lists all components in the order in which they are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components import (
    cni,
    containerd,
    credentials,
    kubelet,
    kubernetes,
    npd,
    runc,
    service,
    system,
    vpn,
)

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.ledger import Ledger
    from aks_flex_node.settings.models import NodeConfig

# Components that the kubelet does not need are last, so that they are installed while the node registers.
SEQUENCE: tuple[Component, ...] = (
    *(module.COMPONENT for module in (vpn, system, runc, containerd, kubernetes, cni, credentials, kubelet, npd)),
    kubernetes.TOOLS_COMPONENT,
)
AGENT_COMPONENTS: tuple[Component, ...] = (
    service.RELEASE,
    service.COMPONENT,
)  # applied after the join
ALL = SEQUENCE + AGENT_COMPONENTS


def ordered_agent_components(config: NodeConfig) -> tuple[Component, ...]:
    """Returns the agent's components in a safe order: when the configuration sets no agent version, the unit is
    changed before the installed versions are removed, so that an interruption leaves a unit that starts."""
    return AGENT_COMPONENTS if service.release.configured_version(config) else AGENT_COMPONENTS[::-1]


def managed_components(ledger: Ledger, config: NodeConfig) -> tuple[Component, ...]:
    """Returns the components that the daemon manages; includes the agent's service only if it was installed."""
    return (
        SEQUENCE + ordered_agent_components(config)
        if any(not ledger.owned(one.name).empty for one in AGENT_COMPONENTS)
        else SEQUENCE
    )
