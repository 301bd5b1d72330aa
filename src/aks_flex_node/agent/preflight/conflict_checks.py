"""Checks for conflicts with a node: another kubelet or container runtime, and leftovers of an earlier node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, error, warning
from aks_flex_node.agent.reconcile.resources import File, Symlink
from aks_flex_node.host.system import read_units
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_node.host.host import UnitState


@frozen
class ConflictingService:
    """Another service that runs containers or a kubelet."""

    name: str
    units: tuple[str, ...]
    processes: tuple[str, ...]  # names in /proc, at most 15 characters
    stop: str  # command that stops it
    remove: str  # command that removes it
    packages: tuple[str, ...] = ()  # the installed ones are added to the remove command


def _packaged(name: str, units: str, processes: str, packages: str) -> ConflictingService:
    return ConflictingService(
        name,
        tuple(units.split()),
        tuple(processes.split()),
        f"sudo systemctl disable --now {units}",
        "sudo apt-get remove",
        tuple(packages.split()),
    )


def _snap(name: str, snap: str, services: str, processes: str = "") -> ConflictingService:
    units = tuple(f"snap.{snap}.{service}.service" for service in services.split())
    stop, remove = f"sudo snap stop --disable {snap}", f"sudo snap remove {snap}"
    return ConflictingService(name, units, tuple(processes.split()), stop, remove)


def _scripted(name: str, units: str, script: str) -> ConflictingService:
    first = f"{name}-server" if name in {"k3s", "rke2"} else name
    processes = (name, first, f"{name}-agent")
    return ConflictingService(
        name, tuple(units.split()), processes, f"sudo systemctl disable --now {units}", f"sudo {script}"
    )


CONFLICTING_SERVICES = (
    _packaged("kubelet", "kubelet.service", "kubelet", "kubelet"),
    _packaged("containerd", "containerd.service", "containerd", "containerd containerd.io"),
    _packaged("Docker", "docker.service docker.socket", "dockerd", "docker.io docker-ce"),
    _packaged("CRI-O", "crio.service", "crio", "cri-o"),
    _scripted("k3s", "k3s.service k3s-agent.service", "k3s-uninstall.sh"),
    _scripted("rke2", "rke2-server.service rke2-agent.service", "rke2-uninstall.sh"),
    _scripted("k0s", "k0sworker.service k0scontroller.service", "k0s reset"),
    _snap("MicroK8s", "microk8s", "daemon-kubelite daemon-containerd", "kubelite"),
    _snap("Canonical Kubernetes", "k8s", "kubelet containerd"),
    _snap("the kubelet snap", "kubelet", "daemon"),
    _snap("the Docker snap", "docker", "dockerd"),
)
PODMAN_PATHS = ("/usr/bin/podman", "/usr/local/bin/podman")


def check_other_runtime(context: PreflightContext) -> Iterator[CheckFinding]:
    running = foreign_processes(context)
    units = read_units(context.host, [name for service in CONFLICTING_SERVICES for name in service.units])
    for service in CONFLICTING_SERVICES:
        found = _by_unit(context, service, units) or _by_process(running, service)
        if found:
            yield found
    # podman has no permanent service and is compatible with a node, except for its networks.
    podman = next((path for path in PODMAN_PATHS if context.exists(path)), None)
    if podman:
        yield warning(
            f"podman is installed ({podman}). Its older versions store networks in "
            f"{context.config.paths.cni.conf_dir}.",
            "Do not run podman containers on a node, or remove podman: `sudo apt-get remove podman`.",
        )


def _by_unit(
    context: PreflightContext, service: ConflictingService, units: Mapping[str, UnitState]
) -> CheckFinding | None:
    foreign = [name for name in service.units if name not in context.owned_services]
    states = [units.get(name) or context.host.unit(name) for name in foreign]
    installed = [state for state in states if state.exists and not context.owns(f"/etc/systemd/system/{state.name}")]
    active = next((state for state in installed if state.running), None)
    if active:
        return error(
            f"{service.name} runs on this machine ({active.name}), but was not installed by the agent. It would "
            "conflict with the node over containers, ports and networks.",
            f"Run `{service.stop}` to stop it and its containers. {_removal(context, service)}".rstrip(),
        )
    if installed:
        return warning(
            f"{service.name} is installed ({installed[0].name}), but does not run.",
            f"{_removal(context, service)} If you keep it, do not start it while this machine is a node.".lstrip(),
        )
    return None


def _removal(context: PreflightContext, service: ConflictingService) -> str:
    """Returns how to remove a service, or an empty string if that is not known."""
    if not service.packages:
        return f"Run `{service.remove}` to remove it."
    result = context.host.query("dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *service.packages)
    installed = [line.split()[0] for line in result.out.splitlines() if line.endswith(" installed")]
    return f"Run `{service.remove} {' '.join(installed)}` to remove it." if installed else ""


def _by_process(running: dict[str, int], service: ConflictingService) -> CheckFinding | None:
    name = next((name for name in service.processes if name in running), None)
    if name is None:
        return None
    return error(
        f"{service.name} runs on this machine (process {running[name]}, {name}), but not as a service of the agent.",
        f"Run `systemctl status {running[name]}` to find what started it, and stop that.",
    )


def foreign_processes(context: PreflightContext) -> dict[str, int]:
    """Returns processes with these names that neither the agent's services nor a service below started, by name.

    A service is found by its unit, whose finding says how to stop it.
    """
    names = {name for service in CONFLICTING_SERVICES for name in service.processes}
    ours = {context.host.unit(name).pid for name in context.owned_services}
    found: dict[str, int] = {}
    for pid in filter(str.isdigit, context.names("/proc")):
        name = context.text(f"/proc/{pid}/comm").strip()
        if name not in names or int(pid) in ours:
            continue
        group = context.text(f"/proc/{pid}/cgroup")
        is_service = any(f"/{name}" in group for name in context.owned_services)
        if not (is_service or (context.joined and "kubepods" in group)) and not _is_found_by_unit(context, group):
            found.setdefault(name, int(pid))
    return found


def _is_found_by_unit(context: PreflightContext, group: str) -> bool:
    units = (unit for service in CONFLICTING_SERVICES for unit in service.units)
    return any(f"/{unit}" in group and context.host.unit(unit).exists for unit in units)


CREDENTIALS = ("kubelet.conf", "bootstrap-kubelet.conf", "admin.conf", "super-admin.conf")
POD_NETWORK_LINKS = (
    "cni0",
    "flannel.1",
    "cilium_host",
    "cilium_net",
    "vxlan.calico",
    "kube-ipvs0",
    "kube-bridge",
    "weave",
    "flex0",
)
POD_CGROUPS = ("kubepods", "kubepods.slice")
CGROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd")
RESET_HINT = (
    "If it was a node of another cluster, run `sudo kubeadm reset -f`. If it was a node of this agent, run `sudo "
    "aks-flex-node reset`."
)


def check_leftovers(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.kubernetes.config_dir
    found = [f"{folder}/{name}" for name in CREDENTIALS if _is_foreign(context, f"{folder}/{name}")]
    if found:
        yield error(
            f"This machine has credentials of another cluster: {', '.join(found)}.",
            f"{RESET_HINT} Or remove the files.",
        )
    yield from _kubelet_state(context)
    yield from _static_pods(context)
    yield from _existing_data(context)
    yield from _replaced(context)
    if not context.joined:
        yield from _networks(context)
        links = [name for name in proc_link_names(context.text("/proc/net/dev")) if name in POD_NETWORK_LINKS]
        if links:
            command = " && ".join(f"sudo ip link delete {name}" for name in links)
            yield warning(
                f"Pod networks of an earlier node exist: {', '.join(links)}.", f"Run `{command}`, or reboot."
            )
        paths = [f"{folder}/{name}" for folder in CGROUP_ROOTS for name in POD_CGROUPS]
        groups = [path for path in paths if context.exists(path)]
        if groups:
            yield warning(f"Control groups of pods of an earlier node exist: {groups[0]}.", "Reboot the machine.")


def _kubelet_state(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.kubernetes.kubelet_dir
    names = [name for name in context.names(folder) if not context.owns(f"{folder}/{name}")]
    if names:
        yield error(
            f"{folder} contains the state of an earlier kubelet ({_shorten(names)}).",
            f"{RESET_HINT} Or, if nothing is mounted there (`findmnt | grep {folder}`), rename it: `sudo mv "
            f"{folder} {folder}.old`.",
        )


def _static_pods(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.kubernetes.manifests_dir
    names = [name for name in context.names(folder) if not name.startswith(".")]
    if names and not context.joined:
        yield error(
            f"{folder} contains static pods ({_shorten(names)}), which the kubelet would start.",
            f"{RESET_HINT} Or rename it: `sudo mv {folder} {folder}.old`.",
        )


def _existing_data(context: PreflightContext) -> Iterator[CheckFinding]:
    paths = context.config.paths
    directories = {
        paths.containerd_dir: "images and containers of an earlier containerd, which `unbootstrap` will remove",
        paths.cni.lib_dir: "addresses that an earlier pod network assigned",
        "/var/lib/etcd": "the data of a control plane",
    }
    for folder, content in directories.items():
        names = context.names(folder)
        if names and not context.owns(folder):
            yield warning(
                f"{folder} contains {content}.", f"If it is not needed, rename it: `sudo mv {folder} {folder}.old`."
            )


def _replaced(context: PreflightContext) -> Iterator[CheckFinding]:
    """Reports files that the node will replace. They are backed up, and `unbootstrap` restores them."""
    paths = [
        resource.path for spec in context.specs for resource in spec.resources if isinstance(resource, File | Symlink)
    ]
    found = [path for path in paths if _is_foreign(context, path)]
    if found:
        yield warning(
            f"The node will replace {_shorten(found)}. `unbootstrap` restores the original files.",
            "No action is needed, unless other software uses these files.",
        )


def _networks(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.cni.conf_dir
    files = [name for name in context.names(folder) if not context.owns(f"{folder}/{name}")]
    if files:
        yield warning(
            f"{folder} contains network configurations of other software ({_shorten(files)}). Pods would use the "
            "first of them.",
            f"Move them: `sudo mkdir {folder}.old && sudo mv {folder}/* {folder}.old/`.",
        )


def proc_link_names(table: str) -> list[str]:
    """Returns the network links in /proc/net/dev, after its two header lines."""
    return [line.partition(":")[0].strip() for line in table.splitlines()[2:] if ":" in line]


def _is_foreign(context: PreflightContext, path: str) -> bool:
    return context.exists(path) and not context.owns(path) and not context.marked(path)


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
