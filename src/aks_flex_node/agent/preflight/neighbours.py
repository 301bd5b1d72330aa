"""Check for another kubelet or container runtime, which would fight with ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.findings import Finding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.situations import Situation


@dataclass(frozen=True)
class Neighbour:
    """Something that does what a node of ours does."""

    name: str
    units: tuple[str, ...]
    processes: tuple[str, ...]  # by the names that /proc gives them, of 15 characters at most
    stop: str  # what to type when it runs
    remove: str  # and to be rid of it
    packages: tuple[str, ...] = ()  # which of these are installed is added to what to type


def _packaged(name: str, units: str, processes: str, packages: str) -> Neighbour:
    return Neighbour(
        name,
        tuple(units.split()),
        tuple(processes.split()),
        f"sudo systemctl disable --now {units}",
        "sudo apt-get remove",
        tuple(packages.split()),
    )


def _snap(name: str, unit: str, processes: str, snap: str) -> Neighbour:
    return Neighbour(
        name, (unit,), tuple(processes.split()), f"sudo snap stop --disable {snap}", f"sudo snap remove {snap}"
    )


def _scripted(name: str, units: str, script: str) -> Neighbour:
    first = f"{name}-server" if name in {"k3s", "rke2"} else name
    processes = (name, first, f"{name}-agent")
    return Neighbour(name, tuple(units.split()), processes, f"sudo systemctl disable --now {units}", f"sudo {script}")


NEIGHBOURS = (
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
PODMAN = ("/usr/bin/podman", "/usr/local/bin/podman")


def neighbours(situation: Situation) -> Iterator[Finding]:
    running = strangers(situation)
    for neighbour in NEIGHBOURS:
        found = _by_unit(situation, neighbour) or _by_process(running, neighbour)
        if found:
            yield found
    yield from _podman(situation)


def _podman(situation: Situation) -> Iterator[Finding]:
    """It has no service that would run all the time, and gets on with a node, but for what both call a network."""
    found = next((path for path in PODMAN if situation.exists(path)), None)
    if found:
        yield warning(
            f"podman is installed here ({found}), and keeps networks of its own, of which older ones stand in"
            f" {situation.config.paths.cni.conf_dir}.",
            "Run no containers of its own beside a node, or remove it: `sudo apt-get remove podman`.",
        )


def _by_unit(situation: Situation, neighbour: Neighbour) -> Finding | None:
    states = [situation.host.unit(name) for name in neighbour.units if name not in situation.owned_services]
    here = [state for state in states if state.exists and not situation.owns(f"/etc/systemd/system/{state.name}")]
    active = next((state for state in here if state.running), None)
    if active:
        return error(
            f"{neighbour.name} runs on this machine ({active.name}), and it is not ours: the two would fight over"
            " containers, ports and networks.",
            f"`{neighbour.stop}` stops it, and what runs in it. {_removal(situation, neighbour)}".rstrip(),
        )
    if here:
        return warning(
            f"{neighbour.name} is installed here ({here[0].name}), but does not run.",
            f"{_removal(situation, neighbour)} If it stays, never start it while this machine is a node.".lstrip(),
        )
    return None


def _removal(situation: Situation, neighbour: Neighbour) -> str:
    """What to type to be rid of it; nothing where nobody knows how it came here."""
    if not neighbour.packages:
        return f"`{neighbour.remove}` removes it."
    asked = situation.host.ask("dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *neighbour.packages)
    installed = [line.split()[0] for line in asked.out.splitlines() if line.endswith(" installed")]
    return f"`{neighbour.remove} {' '.join(installed)}` removes it." if installed else ""


def _by_process(running: dict[str, int], neighbour: Neighbour) -> Finding | None:
    name = next((name for name in neighbour.processes if name in running), None)
    if name is None:
        return None
    return error(
        f"{neighbour.name} runs on this machine (process {running[name]}, {name}), and not as a service of ours.",
        f"`systemctl status {running[name]}` tells what started it; stop that.",
    )


def strangers(situation: Situation) -> dict[str, int]:
    """Processes of such names that our own services did not start, by name."""
    names = {name for neighbour in NEIGHBOURS for name in neighbour.processes}
    ours = {situation.host.unit(name).pid for name in situation.owned_services}
    found: dict[str, int] = {}
    for pid in filter(str.isdigit, situation.names("/proc")):
        name = situation.text(f"/proc/{pid}/comm").strip()
        if name in names and int(pid) not in ours and not _belongs_to_us(situation, pid):
            found.setdefault(name, int(pid))
    return found


def _belongs_to_us(situation: Situation, pid: str) -> bool:
    """What a pod of our node runs is the pod's matter; a service that cannot stay up is always another process."""
    group = situation.text(f"/proc/{pid}/cgroup")
    service = any(f"/{name}" in group for name in situation.owned_services)
    return service or (situation.joined and "kubepods" in group)
