"""Plans the removal of pod resources: processes, mounts, network namespaces, links and iptables chains."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.cni import BRIDGE
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import KillGroup, Remove, Run, StopUnit, Unmount

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host

SERVICES = ("node-problem-detector.service", "kubelet.service", "containerd.service")
GROUPS = {  # cgroup to owning service
    "/kubepods.slice": "kubelet.service",
    "/kubepods": "kubelet.service",
    "/system.slice/containerd.service": "containerd.service",
}
# Chains of the kubelet, kube-proxy and CNI plugins. Other programs use the same prefixes, for example CNI-podman.
CHAIN = re.compile(
    r"CNI-(?:[0-9a-f]{24}|FORWARD|ADMIN|HOSTPORT-\S+|DN-\S+|SN-\S+|ISOLATION-\S+)"
    r"|KUBE-(?:[A-Z]+(?:-[A-Z]+)*|(?:SEP|SVC|SVL|EXT|FW|XLB)-[A-Z0-9]+)"
)
NAMESPACES = "/run/netns"
NAMESPACE = re.compile(r"cni-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # as containerd names them
FAMILIES = ("iptables", "ip6tables")


def pod_removal(
    host: Host,
    config: NodeConfig,
    found: Mapping[str, Sequence[str]] | None = None,
    owned: Collection[str] = (),
) -> list[Action]:
    """Returns the actions that remove all pod resources, except those in `found`, which existed before the join.
    `owned` are the services in the ledger: the file of a unit may be damaged.
    """
    found = found or {}
    foreign = frozenset(name for name in SERVICES if name not in owned and _is_foreign(host, name))
    ours = [name for name in SERVICES if name in owned or _is_ours(host, name)]
    if not host.live:
        return []
    return [*_processes(host, ours, foreign), *_mounts(host, config, found, foreign), *_network(host, found, foreign)]


def existing_network_names(host: Host) -> dict[str, list[str]]:
    """Returns existing namespaces and chains with names like those of pods, so that unbootstrap keeps them."""
    if not host.live:
        return {}
    chains = {family: sorted(set(_chains(host.query(f"{family}-save").out))) for family in FAMILIES}
    found = {"netns": [name for name in host.list_dir(NAMESPACES) if NAMESPACE.fullmatch(name)], **chains}
    return {kind: names for kind, names in found.items() if names}


def _chains(saved: str) -> list[str]:
    return [one[1] for one in re.finditer(r"(?m)^:(\S+) ", saved) if CHAIN.fullmatch(one[1])]


def _processes(host: Host, ours: Sequence[str], foreign: frozenset[str]) -> Iterator[Action]:
    for name in ours:
        if host.unit(name).running:
            yield StopUnit(name)
    if host.unit("kubepods.slice").running and "kubelet.service" not in foreign:
        yield KillGroup("/kubepods.slice")
        yield StopUnit("kubepods.slice")
    for path, name in GROUPS.items():
        directories = [f"/sys/fs/cgroup{root}{path}" for root in ("", "/systemd", "/pids", "/memory")]
        if name not in foreign and any(host.stat(directory) for directory in directories):
            yield KillGroup(path)


def _is_ours(host: Host, name: str) -> bool:
    return b"aks-flex-node" in (host.read(f"/etc/systemd/system/{name}") or b"")


def _is_foreign(host: Host, name: str) -> bool:
    """Returns whether a service of that name exists that the agent did not install; its containers are kept."""
    return host.unit(name).exists and not _is_ours(host, name)


def _mounts(
    host: Host, config: NodeConfig, found: Mapping[str, Sequence[str]], foreign: frozenset[str]
) -> Iterator[Action]:
    points = mounts.mount_points((host.read(mounts.MOUNTINFO) or b"").decode(errors="replace"))
    kubelet_dir, containerd_dir = config.paths.kubernetes.kubelet_dir, config.paths.containerd_dir
    places = {
        f"{kubelet_dir}/pods/": "kubelet.service",
        f"{kubelet_dir}/plugins/": "kubelet.service",
        "/run/containerd/": "containerd.service",
        f"{containerd_dir}/io.containerd.": "containerd.service",
        f"{containerd_dir}/tmpmounts/": "containerd.service",  # noqa: S108 - of containerd
    }
    for place in (path for path, name in places.items() if name not in foreign):
        folder, _, name = place.rpartition("/")
        start = f"{_real_path(host, folder)}/{name}"
        yield from (Unmount(point) for point in mounts.outermost(each for each in points if each.startswith(start)))
    if "containerd.service" in foreign:
        return
    names = [name for name in host.list_dir(NAMESPACES) if NAMESPACE.fullmatch(name)]
    spaces = [name for name in names if name not in found.get("netns", ())]
    for space in (f"{NAMESPACES}/{name}" for name in spaces):
        if space in points:
            yield Unmount(space)
        yield Remove(space)
    if host.stat(NAMESPACES) and host.list_dir(NAMESPACES) == tuple(spaces) and NAMESPACES not in points:
        yield Remove(NAMESPACES)  # containerd created it, and it is empty now


def _real_path(host: Host, path: str) -> str:
    """Returns the path without links, as the kernel lists mounts."""
    return host.query("readlink", "--canonicalize-missing", path).out.strip() or path


def _network(host: Host, found: Mapping[str, Sequence[str]], foreign: frozenset[str]) -> Iterator[Action]:
    if BRIDGE in parse_link_names(host.query("ip", "-j", "link", "show", "type", "bridge").out):
        yield Run(("ip", "link", "delete", BRIDGE), f"remove network interface {BRIDGE}")
    if foreign & {"kubelet.service", "containerd.service"}:
        return
    for family in FAMILIES:
        if script := chain_removal_script(host.query(f"{family}-save").out, found.get(family, ())):
            yield Run((f"{family}-restore", "--noflush"), f"remove pod chains from {family}", script.encode())


def chain_removal_script(saved: str, found: Sequence[str] = ()) -> str:
    """Returns input for `iptables-restore --noflush` that removes only the chains of the kubelet and CNI plugins."""
    script: list[str] = []
    for table in re.split(r"(?m)^(?=\*)", saved):
        name = table.partition("\n")[0]
        chains = [chain for chain in _chains(table) if chain not in found]
        rules = [line for line in table.splitlines() if line.startswith("-A ") and _jumps_to(line, chains)]
        if not chains:
            continue
        script += [name, *(f":{chain} - [0:0]" for chain in chains)]
        script += [f"-D {rule.removeprefix('-A ')}" for rule in rules]
        script += [*(f"-X {chain}" for chain in chains), "COMMIT"]
    return "".join(f"{line}\n" for line in script)


def _jumps_to(rule: str, chains: list[str]) -> bool:
    """Returns whether a rule of another chain jumps to one of these chains."""
    arguments = rule.split()
    target = next((arguments[at + 1] for at, flag in enumerate(arguments[:-1]) if flag in {"-j", "-g"}), "")
    return target in chains and arguments[1] not in chains


def parse_link_names(text: str) -> list[str]:
    """Returns the interface names in the output of `ip -j link`."""
    return [str(link.get("ifname", "")) for link in json.loads(text or "[]")]
