"""What pods leave on a machine when the node goes: processes, mounts, network namespaces, links and rules."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.cni import BRIDGE
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import KillGroup, Remove, Run, StopUnit, Unmount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host

SERVICES = ("node-problem-detector.service", "kubelet.service", "containerd.service")
GROUPS = {  # and whose they are
    "/kubepods.slice": "kubelet.service",
    "/kubepods": "kubelet.service",
    "/system.slice/containerd.service": "containerd.service",
}
CHAIN = re.compile(r"^(?:KUBE|CNI)-")
NAMESPACES = "/run/netns"


def removal(host: Host, config: NodeConfig) -> list[Action]:
    """How to end everything that pods are made of; nothing, when there is none."""
    return [*_processes(host), *_mounts(host, config), *_network(host)] if host.live else []


def _processes(host: Host) -> Iterator[Action]:
    for name in SERVICES:
        if host.unit(name).running and _is_ours(host, name):
            yield StopUnit(name)
    if host.unit("kubepods.slice").running and not _is_foreign(host, "kubelet.service"):
        yield KillGroup("/kubepods.slice")
        yield StopUnit("kubepods.slice")
    for path, name in GROUPS.items():
        places = [f"/sys/fs/cgroup{root}{path}" for root in ("", "/systemd", "/pids", "/memory")]
        if not _is_foreign(host, name) and any(host.look(place) for place in places):
            yield KillGroup(path)


def _is_ours(host: Host, name: str) -> bool:
    return b"aks-flex-node" in (host.read(f"/etc/systemd/system/{name}") or b"")


def _is_foreign(host: Host, name: str) -> bool:
    """Whether somebody else's service of that name is here: its containers are none of our business."""
    return host.unit(name).exists and not _is_ours(host, name)


def _mounts(host: Host, config: NodeConfig) -> Iterator[Action]:
    points = mounts.mount_points((host.read(mounts.MOUNTINFO) or b"").decode(errors="replace"))
    homes = {
        config.paths.kubernetes.kubelet_dir: "kubelet.service",
        "/run/containerd": "containerd.service",
        config.paths.containerd_dir: "containerd.service",
    }
    for folder in (path for path, name in homes.items() if not _is_foreign(host, name)):
        yield from (Unmount(point) for point in dict.fromkeys(mounts.below(points, folder)) if point != folder)
    if _is_foreign(host, "containerd.service"):
        return
    spaces = [name for name in host.names(NAMESPACES) if name.startswith("cni-")]
    for space in (f"{NAMESPACES}/{name}" for name in spaces):
        if space in points:
            yield Unmount(space)
        yield Remove(space)
    if host.look(NAMESPACES) and host.names(NAMESPACES) == tuple(spaces):
        yield Remove(NAMESPACES)  # containerd made it; empty, it is of no use to anybody


def _network(host: Host) -> Iterator[Action]:
    if BRIDGE in links(host.ask("ip", "-j", "link", "show", "type", "bridge").out):
        yield Run(("ip", "link", "delete", BRIDGE), f"remove network link {BRIDGE}")
    if _is_foreign(host, "kubelet.service") or _is_foreign(host, "containerd.service"):
        return
    for family in ("iptables", "ip6tables"):
        if script := without_our_chains(host.ask(f"{family}-save").out):
            yield Run((f"{family}-restore", "--noflush"), f"remove the chains of pods from {family}", script.encode())


def without_our_chains(saved: str) -> str:
    """What to tell `iptables-restore --noflush` so that chains of kubelets and CNI plugins go, and all else stays."""
    script: list[str] = []
    for table in re.split(r"(?m)^(?=\*)", saved):
        name = table.partition("\n")[0]
        chains = [found[1] for found in re.finditer(r"(?m)^:(\S+) ", table) if CHAIN.match(found[1])]
        rules = [line for line in table.splitlines() if line.startswith("-A ") and _leads_to(line, chains)]
        if not chains:
            continue
        script += [name, *(f":{chain} - [0:0]" for chain in chains)]
        script += [f"-D {rule.removeprefix('-A ')}" for rule in rules]
        script += [*(f"-X {chain}" for chain in chains), "COMMIT"]
    return "".join(f"{line}\n" for line in script)


def _leads_to(rule: str, chains: list[str]) -> bool:
    """Whether a rule of somebody else's chain leads to one of ours."""
    words = rule.split()
    target = next((words[at + 1] for at, word in enumerate(words[:-1]) if word in {"-j", "-g"}), "")
    return target in chains and words[1] not in chains


def links(text: str) -> list[str]:
    """The names that `ip -j link` gives."""
    return [str(link.get("ifname", "")) for link in json.loads(text or "[]")]
