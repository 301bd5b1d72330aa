"""Plans the removal of pod resources: processes, mounts, network namespaces, and what their network left."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.bootstrap import network_cleanup
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import Action, KillGroup, Remove, StopUnit, Unmount
from aks_flex_node.host.host import Host, read_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from aks_flex_node.settings.models import NodeConfig

SERVICES = ("node-problem-detector.service", "kubelet.service", "containerd.service")
GROUPS = {  # cgroup to owning service
    "/kubepods.slice": "kubelet.service",
    "/kubepods": "kubelet.service",
    "/system.slice/containerd.service": "containerd.service",
}
NAMESPACES = "/run/netns"
NAMESPACE = re.compile(r"cni-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # as containerd names them


def pod_removal(
    host: Host,
    config: NodeConfig,
    found: Mapping[str, Sequence[str]] | None = None,
    owned: Collection[str] = (),
    pod_cidr: str = "",
) -> list[Action]:
    """Returns the actions that remove all pod resources, except those in `found`, which existed before the join.
    `owned` are the services in the ledger: the file of a unit may be damaged.
    """
    found = found or {}
    ours = [name for name in SERVICES if name in owned or _is_ours(host, name)]
    # The containers of a service that the agent did not install are kept.
    foreign = frozenset(name for name in SERVICES if name not in ours and host.unit(name).exists)
    if not host.live:
        return []
    network = network_cleanup.network_removal(host, config, found, pod_cidr)
    return [
        *_processes(host, ours, foreign),
        *_mounts(host, config, found, foreign),
        *network_cleanup.bridge_removal(host),
        *(() if foreign & {"kubelet.service", "containerd.service"} else network),
    ]


def existing_names(host: Host, config: NodeConfig) -> dict[str, list[str]]:
    """Returns what exists before the join and is like resources of pods, so that unbootstrap keeps it."""
    spaces = [name for name in host.list_dir(NAMESPACES) if NAMESPACE.fullmatch(name)]
    return {**({"netns": spaces} if host.live and spaces else {}), **network_cleanup.existing_names(host, config)}


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


def _mounts(
    host: Host, config: NodeConfig, found: Mapping[str, Sequence[str]], foreign: frozenset[str]
) -> Iterator[Action]:
    points = mounts.mount_points(read_text(host, mounts.MOUNTINFO))
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
        # Without links, as the kernel lists mounts.
        real = host.query("readlink", "--canonicalize-missing", folder).out.strip() or folder
        start = f"{real}/{name}"
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
