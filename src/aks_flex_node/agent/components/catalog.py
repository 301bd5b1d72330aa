"""All components in the order in which a node needs them, and their selection for `--only` and `--from`."""

from __future__ import annotations

from dataclasses import dataclass
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
from aks_flex_node.errors import CommandUsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.ledger import Ledger

# A kubelet registers for a second or so: what it does not need is fetched and placed meanwhile, and comes last.
SEQUENCE: tuple[Component, ...] = (
    *(module.COMPONENT for module in (vpn, system, runc, containerd, kubernetes, cni, credentials, kubelet, npd)),
    kubernetes.TOOLS_COMPONENT,
)
AGENT_COMPONENTS: tuple[Component, ...] = (
    service.RELEASE,
    service.COMPONENT,
)  # the agent itself, once the machine is a node
ALL = SEQUENCE + AGENT_COMPONENTS
COMPONENT_NAMES = tuple(component.name for component in SEQUENCE)


@dataclass(frozen=True)
class BootstrapStep:
    """A step of the first design, and where it lives here."""

    number: int
    title: str
    home: str
    what: str


BOOTSTRAP_STEPS = (
    BootstrapStep(
        1, "Arc registration", "arc", "only where azure.arc is enabled; then the tunnel, where azure.vpn is"
    ),
    BootstrapStep(
        2, "Service stop", "kubelet, containerd, npd", "a service is restarted when its inputs changed, never before"
    ),
    BootstrapStep(3, "Directories", "every component", "each makes the directories it needs"),
    BootstrapStep(4, "System configuration", "system", "kernel modules, settings, swap"),
    BootstrapStep(5, "runc", "runc", "the low-level runtime"),
    BootstrapStep(6, "containerd", "containerd", "configuration, unit, started at once"),
    BootstrapStep(
        7, "Kubernetes components", "kubernetes, tools", "the kubelet's program; kubectl and kubeadm at the end"
    ),
    BootstrapStep(
        8, "CNI", "cni, npd", "plugins; the node's network once the cluster gave it addresses; npd at the end"
    ),
    BootstrapStep(9, "Cluster credentials", "credentials", "the cluster's CA and the bootstrap credentials"),
    BootstrapStep(10, "Kubelet configuration", "kubelet", "configuration, unit, started at once"),
    BootstrapStep(
        11, "Service start", "readiness", "containerd runs, the kubelet is well, the Node is registered and Ready"
    ),
)


def select_components(only: Sequence[str] = (), start: str = "") -> tuple[Component, ...]:
    """The components that are meant by `--only` and `--from`; all of them by neither."""
    for name in (*only, *([start] if start else [])):
        if name not in COMPONENT_NAMES:
            raise CommandUsageError(
                "component-unknown", f"There is no component {name!r}.", f"There are: {', '.join(COMPONENT_NAMES)}."
            )
    if only and start:
        raise CommandUsageError("options-conflict", "--only and --from do not go together.", "Use one of them.")
    if only:
        return tuple(component for component in SEQUENCE if component.name in only)
    return SEQUENCE[COMPONENT_NAMES.index(start) :] if start else SEQUENCE


def ordered_agent_components(config: NodeConfig) -> tuple[Component, ...]:
    """The agent itself. Where its versions are to go, nothing starts them any more before they do: whoever is cut
    off in between, or is one of them, leaves an agent that starts."""
    return AGENT_COMPONENTS if config.continuous_monitoring and config.agent.version else AGENT_COMPONENTS[::-1]


def managed_components(ledger: Ledger, config: NodeConfig) -> tuple[Component, ...]:
    """What this machine is kept by: the agent's own service only where one was installed."""
    return (
        SEQUENCE + ordered_agent_components(config)
        if any(not ledger.owned(one.name).empty for one in AGENT_COMPONENTS)
        else SEQUENCE
    )
