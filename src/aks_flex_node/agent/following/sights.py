"""How this node is, seen from the machine and from the cluster. Looks, and changes nothing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent import certificates
from aks_flex_node.agent.cluster import causes, nodes
from aks_flex_node.agent.cluster.api import Refused
from aks_flex_node.agent.config.derived import joined_file, kubelet_auth
from aks_flex_node.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.api import Api
    from aks_flex_node.agent.cluster.nodes import Node
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host

SERVICES = ("containerd.service", "kubelet.service")
EXPIRING = 0.08  # of a certificate's life: a kubelet renews it while a tenth or more is left


@dataclass(frozen=True)
class Sight:
    node: Node | None = None
    missing: bool = False  # the cluster says that it has no such Node
    unknown: str = ""  # why the cluster could not be asked
    refused: bool = False  # the cluster does not know our certificate
    certificate: bool = True  # there is one
    seconds: float = 0.0  # until it ends; below zero when it has
    life: float = 1.0  # how long it is valid in all
    by_token: bool = False  # it shows tokens of its Azure identity, and has no certificate
    kubeconfig: bool = True
    fallen: tuple[tuple[str, str], ...] = ()  # services that do not run, and their last words

    @property
    def expired(self) -> bool:
        return self.certificate and self.seconds <= 0

    @property
    def expiring(self) -> bool:
        """Whether it should have been renewed by now."""
        return self.seconds < EXPIRING * self.life

    @property
    def lost(self) -> str:
        """What this node has lost and cannot get back by waiting; nothing when it has all it needs."""
        if not self.certificate:
            return "its certificate is gone"
        if self.expired:
            return "its certificate has ended"
        if not self.kubeconfig:
            return "the kubelet's kubeconfig is gone"
        if self.refused:
            return f"the cluster no longer accepts its {'Azure identity' if self.by_token else 'certificate'}"
        return "its Node was deleted from the cluster" if self.missing else ""

    @property
    def trouble(self) -> str:
        """What it has lost, or is about to lose because nobody does anything about it."""
        worn = self.certificate and self.expiring
        return self.lost or ("its certificate is about to end, and was not renewed" if worn else "")


def look(host: Host, config: NodeConfig, name: str, api: Api, now: Callable[[], float] = time.time) -> Sight:
    by_token = kubelet_auth(config) == "exec"
    seconds, life = (math.inf, math.inf) if by_token else _left(host.read(joined_file(config)) or b"", now())
    node, missing, unknown, refused = _ask(api, name) if seconds > 0 else (None, False, "", False)
    return Sight(
        node,
        missing,
        unknown,
        refused,
        certificate=life > 0,
        seconds=seconds,
        life=life,
        by_token=by_token,
        kubeconfig=host.look(f"{config.paths.kubernetes.kubelet_dir}/kubeconfig") is not None,
        fallen=tuple(_fallen(host)),
    )


def _left(certificate: bytes, now: float) -> tuple[float, float]:
    """Seconds until a certificate ends, and how long it is valid in all; nothing for none."""
    validity = certificates.validity(certificate)
    if validity is None:
        return 0.0, 0.0
    start, end = (moment.timestamp() for moment in validity)
    return end - now, end - start


def _ask(api: Api, name: str) -> tuple[Node | None, bool, str, bool]:
    try:
        node = nodes.find(api, name)
        return node, node is None and nodes.is_missing(api, name), "", False
    except ClusterError as error:
        return None, False, error.message, False
    except Refused as refusal:
        return None, False, refusal.message, refusal.status == 401


def _fallen(host: Host) -> list[tuple[str, str]]:
    units = [host.unit(name) for name in SERVICES]
    now = time.monotonic()
    down = [unit for unit in units if not unit.running or (unit.restarts >= 3 and not unit.calm(now))]
    return [(unit.name, causes.worst_line(causes.journal(host, unit, lines=60))) for unit in down]
