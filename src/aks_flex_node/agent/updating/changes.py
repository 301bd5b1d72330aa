"""What one configuration would change about a node that has another. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.derived import kubelet_auth

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig

DISTURBING = frozenset(("kubernetes", "containerd", "runc", "cni"))
DRAINED_FOR = frozenset(("kubernetes", "containerd", "runc"))


@dataclass(frozen=True)
class Upgrade:
    """One component that is replaced; by the same version when other files of it are wanted."""

    component: str
    old: str
    new: str

    @property
    def is_downgrade(self) -> bool:
        return bool(self.old and self.new) and order(self.new) < order(self.old)

    def __str__(self) -> str:
        return f"{self.component} {self.old or 'none'} -> {self.new or 'none'}"


@dataclass(frozen=True)
class Changes:
    upgrades: tuple[Upgrade, ...] = ()
    moves: bool = False  # another way to the API server: its address, who vouches for it or for us, a proxy
    may_drain: bool = True

    @property
    def components(self) -> frozenset[str]:
        return frozenset(one.component for one in self.upgrades)

    @property
    def disturbs(self) -> bool:
        """Whether pods may notice."""
        return bool(self.components & DISTURBING)

    @property
    def drains(self) -> bool:
        return self.may_drain and bool(self.components & DRAINED_FOR)

    @property
    def downgrades(self) -> tuple[Upgrade, ...]:
        return tuple(one for one in self.upgrades if one.is_downgrade)


def between(old: NodeConfig, new: NodeConfig) -> Changes:
    before, after = _programs(old), _programs(new)
    upgrades = tuple(Upgrade(name, before[name][0], after[name][0]) for name in before if before[name] != after[name])
    return Changes(upgrades, _way(old) != _way(new), new.update_policy.drain)


def _way(config: NodeConfig) -> tuple[object, ...]:
    kubelet = config.node.kubelet
    return (kubelet.server_url, kubelet.ca_cert_data, config.proxy, kubelet_auth(config))


def _programs(config: NodeConfig) -> dict[str, tuple[str, dict[str, str]]]:
    """The version of each component, and which bytes of it are wanted, where that is said."""
    return {
        "kubernetes": (config.kubernetes.version or "", config.kubernetes.sha256),
        "containerd": (config.containerd.version, config.containerd.sha256),
        "runc": (config.runc.version, config.runc.sha256),
        "cni": (config.cni.version, config.cni.sha256),
        "npd": (config.npd.version, config.npd.sha256) if config.npd.enabled else ("", {}),
    }


def order(version: str) -> tuple[tuple[int, ...], bool, tuple[tuple[int, str], ...]]:
    """To compare versions by: 1.10 comes after 1.9, and 2.0.0-rc.1 before 2.0.0."""
    numbers, dash, suffix = version.partition("+")[0].partition("-")
    parts = tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.]", suffix) if part)
    plain = tuple(int(part) if part.isdigit() else 0 for part in numbers.split("."))
    return (plain, not dash, parts)
