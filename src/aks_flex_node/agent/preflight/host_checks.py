"""Checks of the host: root, operating system, architecture, systemd, host name, memory, CPUs, required programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, error, ok, warning
from aks_flex_node.api.kubernetes_rules import node_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.check import PreflightContext


TESTED_RELEASES = {"debian": ("12", "13"), "ubuntu": ("22.04", "24.04")}
ARCHITECTURES = ("amd64", "arm64")
UNSET_HOSTNAMES = ("", "localhost", "localhost.localdomain", "(none)")
GIB = 1 << 30
# A machine of 1 GiB says a little less of itself, since the kernel keeps some.
LEAST_MEMORY, GOOD_MEMORY = int(0.9 * GIB), int(1.8 * GIB)
GOOD_CPUS = 2


def check_root(context: PreflightContext) -> Iterator[CheckFinding]:
    if context.uid != 0:
        yield error("Only root can make this machine a node.", "Run the same command again with `sudo`.")


def check_operating_system(context: PreflightContext) -> Iterator[CheckFinding]:
    machine = context.machine
    name = f"{machine.system or 'an unknown system'} {machine.release}".strip()
    if machine.release in TESTED_RELEASES.get(machine.system, ()):
        yield ok(name)
        return
    tried = ", ".join(
        f"{system.capitalize()} {' and '.join(releases)}" for system, releases in TESTED_RELEASES.items()
    )
    yield warning(f"This is {name}, on which nobody has tried this.", f"Use one of these if you can: {tried}.")


def check_architecture(context: PreflightContext) -> Iterator[CheckFinding]:
    arch = context.machine.arch
    if arch in ARCHITECTURES:
        yield ok(arch)
    else:
        yield error(
            f"Nobody publishes the programs of a node for {arch}.",
            f"Use a machine of one of these architectures: {', '.join(ARCHITECTURES)}.",
        )


def check_systemd(context: PreflightContext) -> Iterator[CheckFinding]:
    if not context.machine.systemd:
        first = context.text("/proc/1/comm").strip() or "something else"
        yield error(
            f"This machine was started by {first}, and not by systemd, which has to run the node's services.",
            "Use a machine, or a container, that systemd boots.",
        )


def check_hostname(context: PreflightContext) -> Iterator[CheckFinding]:
    config, given = context.config, context.machine.hostname
    if config.node.name:
        yield from _configured(config.node.name)
    elif given.lower() in UNSET_HOSTNAMES:
        yield error(
            f"This machine has no name of its own ({given or 'none at all'}), and nodes are told apart by it.",
            "Give it one with `sudo hostnamectl set-hostname edge-1`, or set node.name in the configuration.",
        )
    elif wrong := node_name(given.lower()):
        yield error(
            f"The host name {given} cannot be the name of a node: it {wrong}",
            "Change it with `sudo hostnamectl set-hostname edge-1`, or set node.name in the configuration.",
        )
    elif given != given.lower():
        yield ok(f"The node will be called {given.lower()}: Kubernetes knows no upper case, as in {given}.")
    else:
        yield ok(given)


def _configured(name: str) -> Iterator[CheckFinding]:
    if wrong := node_name(name):
        yield error(f"{name} cannot be the name of a node: it {wrong}", "Correct node.name in the configuration.")
    else:
        yield ok(f"{name}, as node.name says")


def check_memory(context: PreflightContext) -> Iterator[CheckFinding]:
    total = memory_total(context.text("/proc/meminfo"))
    if total is None:
        yield warning("The kernel does not say how much memory there is.", "Look at /proc/meminfo.")
    elif total < LEAST_MEMORY:
        yield error(f"There is {total / GIB:.1f} GiB of memory; a node needs 1 GiB.", "Give the machine more memory.")
    elif total < GOOD_MEMORY:
        yield warning(
            f"There is {total / GIB:.1f} GiB of memory, which leaves little for pods.",
            "Give the machine 2 GiB or more.",
        )
    else:
        yield ok(f"{total / GIB:.1f} GiB")


def memory_total(meminfo: str) -> int | None:
    """Bytes of memory, out of /proc/meminfo."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def check_cpu(context: PreflightContext) -> Iterator[CheckFinding]:
    count = count_cpus(context.text("/sys/devices/system/cpu/online"))
    if count < 1:
        yield error("The kernel does not say that any processor is on.", "Look at /sys/devices/system/cpu/online.")
    elif count < GOOD_CPUS:
        yield warning(
            "There is one processor; the node's own services may leave little of it.", "Give it two or more."
        )
    else:
        yield ok(f"{count} processors")


def count_cpus(online: str) -> int:
    """How many processors a list such as `0-3,6` names."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", online)
    return sum(int(last or first) - int(first) + 1 for first, last in spans)


PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Programs, and the package of Debian and Ubuntu that has each.
REQUIRED_PROGRAMS = {
    "mount": "mount",
    "umount": "mount",
    "swapoff": "mount",
    "iptables": "iptables",
    "ip": "iproute2",
    "modprobe": "kmod",
    "getent": "libc-bin",
    "systemctl": "systemd",
    "journalctl": "systemd",
}
RECOMMENDED_PROGRAMS = {
    "conntrack": ("conntrack", "kube-proxy clears stale connections with it"),
    "socat": ("socat", "some runtimes forward ports with it"),
    "ethtool": ("ethtool", "network plugins set up links with it"),
}


def check_programs(context: PreflightContext) -> Iterator[CheckFinding]:
    missing = [name for name in REQUIRED_PROGRAMS if not _found(context, name)]
    if missing:
        packages = sorted({REQUIRED_PROGRAMS[name] for name in missing})
        yield error(f"The machine lacks {', '.join(missing)}.", f"`sudo apt-get install -y {' '.join(packages)}`")
    lacking = [name for name in RECOMMENDED_PROGRAMS if not _found(context, name)]
    if lacking:
        why = "; ".join(f"{name} ({RECOMMENDED_PROGRAMS[name][1]})" for name in lacking)
        packages = [RECOMMENDED_PROGRAMS[name][0] for name in lacking]
        yield warning(f"The machine lacks {why}.", f"`sudo apt-get install -y {' '.join(packages)}`")


def _found(context: PreflightContext, name: str) -> bool:
    return any(context.exists(f"{folder}/{name}") for folder in PROGRAM_DIRECTORIES)
