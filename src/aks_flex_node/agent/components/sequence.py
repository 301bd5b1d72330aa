"""All components, in the order in which a node needs them, and the eleven steps of the first design."""

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
from aks_flex_node.errors import WordsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.ledger import Ledger

# A kubelet registers for a second or so: what it does not need is fetched and placed meanwhile, and comes last.
SEQUENCE: tuple[Component, ...] = (
    *(room.COMPONENT for room in (vpn, system, runc, containerd, kubernetes, cni, credentials, kubelet, npd)),
    kubernetes.PERSONS,
)
AFTER: tuple[Component, ...] = (service.RELEASE, service.COMPONENT)  # the agent itself, once the machine is a node
ALL = SEQUENCE + AFTER
NAMES = tuple(component.name for component in SEQUENCE)


@dataclass(frozen=True)
class Step:
    """A step of the first design, and where it lives here."""

    number: int
    title: str
    home: str
    what: str


STEPS = (
    Step(1, "Arc registration", "arc", "only where azure.arc is enabled; then the tunnel, where azure.vpn is"),
    Step(
        2, "Service stop", "kubelet, containerd, npd", "a service is restarted when its inputs changed, never before"
    ),
    Step(3, "Directories", "every component", "each makes the directories it needs"),
    Step(4, "System configuration", "system", "kernel modules, settings, swap"),
    Step(5, "runc", "runc", "the low-level runtime"),
    Step(6, "containerd", "containerd", "configuration, unit, started at once"),
    Step(7, "Kubernetes components", "kubernetes, tools", "the kubelet's program; kubectl and kubeadm at the end"),
    Step(8, "CNI", "cni, npd", "plugins; the node's network once the cluster gave it addresses; npd at the end"),
    Step(9, "Cluster credentials", "credentials", "the cluster's CA and the bootstrap credentials"),
    Step(10, "Kubelet configuration", "kubelet", "configuration, unit, started at once"),
    Step(11, "Service start", "proof", "containerd runs, the kubelet is well, the Node is registered and Ready"),
)


def choose(only: Sequence[str] = (), start: str = "") -> tuple[Component, ...]:
    """The components that are meant by `--only` and `--from`; all of them by neither."""
    for name in (*only, *([start] if start else [])):
        if name not in NAMES:
            raise WordsError(
                "component-unknown", f"There is no component {name!r}.", f"There are: {', '.join(NAMES)}."
            )
    if only and start:
        raise WordsError("words-conflict", "--only and --from do not go together.", "Use one of them.")
    if only:
        return tuple(component for component in SEQUENCE if component.name in only)
    return SEQUENCE[NAMES.index(start) :] if start else SEQUENCE


def own(config: NodeConfig) -> tuple[Component, ...]:
    """The agent itself. Where its versions are to go, nothing starts them any more before they do: whoever is cut
    off in between, or is one of them, leaves an agent that starts."""
    return AFTER if config.continuous_monitoring and config.agent.version else AFTER[::-1]


def kept(ledger: Ledger, config: NodeConfig) -> tuple[Component, ...]:
    """What this machine is kept by: the agent's own service only where one was installed."""
    return SEQUENCE + own(config) if any(not ledger.owned(one.name).empty for one in AFTER) else SEQUENCE
