"""Checks for what conflicts with a node: another kubelet or container runtime, and leftovers of an earlier node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, error, warning
from aks_flex_node.agent.reconcile.resources import File, Symlink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.check import PreflightContext


@dataclass(frozen=True)
class ConflictingService:
    """Something that does what a node of ours does."""

    name: str
    units: tuple[str, ...]
    processes: tuple[str, ...]  # by the names that /proc gives them, of 15 characters at most
    stop: str  # what to type when it runs
    remove: str  # and to be rid of it
    packages: tuple[str, ...] = ()  # which of these are installed is added to what to type


def _packaged(name: str, units: str, processes: str, packages: str) -> ConflictingService:
    return ConflictingService(
        name,
        tuple(units.split()),
        tuple(processes.split()),
        f"sudo systemctl disable --now {units}",
        "sudo apt-get remove",
        tuple(packages.split()),
    )


def _snap(name: str, unit: str, processes: str, snap: str) -> ConflictingService:
    return ConflictingService(
        name, (unit,), tuple(processes.split()), f"sudo snap stop --disable {snap}", f"sudo snap remove {snap}"
    )


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
    _snap("MicroK8s", "snap.microk8s.daemon-kubelite.service", "kubelite", "microk8s"),
    _snap("the kubelet snap", "snap.kubelet.daemon.service", "", "kubelet"),
    _snap("the Docker snap", "snap.docker.dockerd.service", "", "docker"),
)
PODMAN_PATHS = ("/usr/bin/podman", "/usr/local/bin/podman")


def check_other_runtime(context: PreflightContext) -> Iterator[CheckFinding]:
    running = foreign_processes(context)
    for neighbour in CONFLICTING_SERVICES:
        found = _by_unit(context, neighbour) or _by_process(running, neighbour)
        if found:
            yield found
    yield from _podman(context)


def _podman(context: PreflightContext) -> Iterator[CheckFinding]:
    """It has no service that would run all the time, and gets on with a node, but for what both call a network."""
    found = next((path for path in PODMAN_PATHS if context.exists(path)), None)
    if found:
        yield warning(
            f"podman is installed here ({found}), and keeps networks of its own, of which older ones stand in"
            f" {context.config.paths.cni.conf_dir}.",
            "Run no containers of its own beside a node, or remove it: `sudo apt-get remove podman`.",
        )


def _by_unit(context: PreflightContext, neighbour: ConflictingService) -> CheckFinding | None:
    states = [context.host.unit(name) for name in neighbour.units if name not in context.owned_services]
    here = [state for state in states if state.exists and not context.owns(f"/etc/systemd/system/{state.name}")]
    active = next((state for state in here if state.running), None)
    if active:
        return error(
            f"{neighbour.name} runs on this machine ({active.name}), and it is not ours: the two would fight over"
            " containers, ports and networks.",
            f"`{neighbour.stop}` stops it, and what runs in it. {_removal(context, neighbour)}".rstrip(),
        )
    if here:
        return warning(
            f"{neighbour.name} is installed here ({here[0].name}), but does not run.",
            f"{_removal(context, neighbour)} If it stays, never start it while this machine is a node.".lstrip(),
        )
    return None


def _removal(context: PreflightContext, neighbour: ConflictingService) -> str:
    """What to type to be rid of it; nothing where nobody knows how it came here."""
    if not neighbour.packages:
        return f"`{neighbour.remove}` removes it."
    asked = context.host.query("dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *neighbour.packages)
    installed = [line.split()[0] for line in asked.out.splitlines() if line.endswith(" installed")]
    return f"`{neighbour.remove} {' '.join(installed)}` removes it." if installed else ""


def _by_process(running: dict[str, int], neighbour: ConflictingService) -> CheckFinding | None:
    name = next((name for name in neighbour.processes if name in running), None)
    if name is None:
        return None
    return error(
        f"{neighbour.name} runs on this machine (process {running[name]}, {name}), and not as a service of ours.",
        f"`systemctl status {running[name]}` tells what started it; stop that.",
    )


def foreign_processes(context: PreflightContext) -> dict[str, int]:
    """Processes of such names that our own services did not start, by name."""
    names = {name for neighbour in CONFLICTING_SERVICES for name in neighbour.processes}
    ours = {context.host.unit(name).pid for name in context.owned_services}
    found: dict[str, int] = {}
    for pid in filter(str.isdigit, context.names("/proc")):
        name = context.text(f"/proc/{pid}/comm").strip()
        if name in names and int(pid) not in ours and not _is_own_process(context, pid):
            found.setdefault(name, int(pid))
    return found


def _is_own_process(context: PreflightContext, pid: str) -> bool:
    """What a pod of our node runs is the pod's matter; a service that cannot stay up is always another process."""
    group = context.text(f"/proc/{pid}/cgroup")
    service = any(f"/{name}" in group for name in context.owned_services)
    return service or (context.joined and "kubepods" in group)


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
    "If it was a node of another cluster, run `sudo kubeadm reset -f`; if it was one of ours, `sudo aks-flex-node"
    " reset`."
)


def check_leftovers(context: PreflightContext) -> Iterator[CheckFinding]:
    yield from _credentials(context)
    yield from _kubelet_state(context)
    yield from _static_pods(context)
    yield from _kept_data(context)
    yield from _replaced(context)
    if not context.joined:
        yield from _networks(context)
        yield from _kernel(context)


def _credentials(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.kubernetes.config_dir
    found = [f"{folder}/{name}" for name in CREDENTIALS if _is_foreign(context, f"{folder}/{name}")]
    if found:
        yield error(
            f"This machine has credentials of another cluster: {', '.join(found)}.",
            f"{RESET_HINT} Or remove the files.",
        )


def _kubelet_state(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.kubernetes.kubelet_dir
    names = [name for name in context.names(folder) if not context.owns(f"{folder}/{name}")]
    if names:
        yield error(
            f"{folder} holds the state of an earlier kubelet ({_shorten(names)}).",
            f"{RESET_HINT} Or, when nothing is mounted there any more (`findmnt | grep {folder}`), move it away:"
            f" `sudo mv {folder} {folder}.old`.",
        )


def _static_pods(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.kubernetes.manifests_dir
    names = [name for name in context.names(folder) if not name.startswith(".")]
    if names and not context.joined:
        yield error(
            f"{folder} holds static pods ({_shorten(names)}), which the kubelet would start.",
            f"{RESET_HINT} Or move them away: `sudo mv {folder} {folder}.old`.",
        )


def _kept_data(context: PreflightContext) -> Iterator[CheckFinding]:
    paths = context.config.paths
    directories = {
        paths.containerd_dir: "images and containers of an earlier containerd; reset removes them with ours",
        paths.cni.lib_dir: "addresses that an earlier network gave to pods",
        "/var/lib/etcd": "the data of a control plane",
    }
    for folder, what in directories.items():
        names = context.names(folder)
        if names and not context.owns(folder):
            yield warning(
                f"{folder} holds {what}.", f"If nobody needs it, move it away: `sudo mv {folder} {folder}.old`."
            )


def _replaced(context: PreflightContext) -> Iterator[CheckFinding]:
    """Files that stand where ours will: they are put aside, and come back by reset."""
    paths = [one.path for spec in context.specs for one in spec.resources if isinstance(one, File | Symlink)]
    found = [path for path in paths if _is_foreign(context, path)]
    if found:
        yield warning(
            f"The node will put files of its own in place of {_shorten(found)}; `reset` gives them back.",
            "Nothing has to be done, unless something else needs them meanwhile.",
        )


def _networks(context: PreflightContext) -> Iterator[CheckFinding]:
    folder = context.config.paths.cni.conf_dir
    files = [name for name in context.names(folder) if not context.owns(f"{folder}/{name}")]
    if files:
        yield warning(
            f"{folder} has networks of somebody else ({_shorten(files)}), and the first of them is used for pods.",
            f"Move them away: `sudo mkdir {folder}.old && sudo mv {folder}/* {folder}.old/`.",
        )


def _kernel(context: PreflightContext) -> Iterator[CheckFinding]:
    links = [name for name in proc_link_names(context.text("/proc/net/dev")) if name in POD_NETWORK_LINKS]
    if links:
        typed = " && ".join(f"sudo ip link delete {name}" for name in links)
        yield warning(f"Pod networks of an earlier node are up: {', '.join(links)}.", f"`{typed}`, or reboot.")
    paths = [f"{folder}/{name}" for folder in CGROUP_ROOTS for name in POD_CGROUPS]
    groups = [path for path in paths if context.exists(path)]
    if groups:
        yield warning(f"There are control groups of an earlier node's pods: {groups[0]}.", "Reboot the machine.")


def proc_link_names(table: str) -> list[str]:
    """The network links of /proc/net/dev, below its two lines of headings."""
    return [line.partition(":")[0].strip() for line in table.splitlines()[2:] if ":" in line]


def _is_foreign(context: PreflightContext, path: str) -> bool:
    return context.exists(path) and not context.owns(path) and not context.marked(path)


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
