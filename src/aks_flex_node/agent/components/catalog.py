"""Lists all components in the order in which they are applied, and selects them for `--only` and `--from`."""

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
from aks_flex_node.errors import CommandUsageError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

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
COMPONENT_NAMES = tuple(component.name for component in SEQUENCE)


@frozen
class BootstrapStep:
    """A bootstrap step of the original AKS Flex Node agent, and the component that implements it here."""

    number: int
    title: str
    home: str
    what: str


BOOTSTRAP_STEPS = (
    BootstrapStep(1, "Arc registration", "arc", "if azure.arc is enabled; then the VPN, if azure.vpn is enabled"),
    BootstrapStep(
        2, "Service stop", "kubelet, containerd, npd", "a service is restarted only when its inputs changed"
    ),
    BootstrapStep(3, "Directories", "every component", "each component creates its directories"),
    BootstrapStep(4, "System configuration", "system", "kernel modules, settings, swap"),
    BootstrapStep(5, "runc", "runc", "the low-level runtime"),
    BootstrapStep(6, "containerd", "containerd", "configuration, unit, start"),
    BootstrapStep(7, "Kubernetes components", "kubernetes, tools", "the kubelet; kubectl and kubeadm last"),
    BootstrapStep(8, "CNI", "cni, npd", "plugins; the bridge network when the pod CIDR is assigned; npd last"),
    BootstrapStep(9, "Cluster credentials", "credentials", "the cluster's CA and the bootstrap credentials"),
    BootstrapStep(10, "Kubelet configuration", "kubelet", "configuration, unit, start"),
    BootstrapStep(
        11, "Service start", "readiness", "containerd runs, the kubelet is healthy, the Node is registered and Ready"
    ),
)


def select_components(only: Sequence[str] = (), start: str = "") -> tuple[Component, ...]:
    """Returns the components selected by `--only` or `--from`; all components by default."""
    for name in (*only, *([start] if start else [])):
        if name not in COMPONENT_NAMES:
            raise CommandUsageError(
                "component-unknown",
                f"Component {name!r} does not exist.",
                f"Use one of: {', '.join(COMPONENT_NAMES)}.",
            )
    if only and start:
        raise CommandUsageError("options-conflict", "--only and --from cannot be combined.", "Use one of them.")
    if only:
        return tuple(component for component in SEQUENCE if component.name in only)
    return SEQUENCE[COMPONENT_NAMES.index(start) :] if start else SEQUENCE


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
