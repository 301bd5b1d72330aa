"""Checks of the host: root, operating system, architecture, systemd, host name, memory, CPUs, required programs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, error, ok, warning
from aks_flex_node.api.kubernetes_rules import node_name
from aks_flex_node.host.system import parse_memory_total

if TYPE_CHECKING:
    from collections.abc import Iterator


SUPPORTED_RELEASES = {"debian": ("12", "13"), "ubuntu": ("22.04", "24.04")}
ARCHITECTURES = ("amd64", "arm64")
UNSET_HOSTNAMES = ("", "localhost", "localhost.localdomain", "(none)")
GIB = 1 << 30
# The kernel reserves some memory, so a machine with 1 GiB reports a little less.
LEAST_MEMORY, GOOD_MEMORY = int(0.9 * GIB), int(1.8 * GIB)
GOOD_CPUS = 2


def check_root(context: PreflightContext) -> Iterator[CheckFinding]:
    if context.uid != 0:
        yield error("This command must run as root.", "Run the same command again with `sudo`.")


def check_operating_system(context: PreflightContext) -> Iterator[CheckFinding]:
    machine = context.machine
    name = f"{machine.system or 'an unknown operating system'} {machine.release}".strip()
    if machine.release in SUPPORTED_RELEASES.get(machine.system, ()):
        yield ok(name)
        return
    supported = ", ".join(
        f"{system.capitalize()} {' and '.join(releases)}" for system, releases in SUPPORTED_RELEASES.items()
    )
    yield warning(f"This is {name}, which is not supported.", f"Use a supported operating system: {supported}.")


def check_architecture(context: PreflightContext) -> Iterator[CheckFinding]:
    arch = context.machine.arch
    if arch in ARCHITECTURES:
        yield ok(arch)
    else:
        yield error(
            f"The programs of a node are not published for {arch}.",
            f"Use a machine with one of these architectures: {', '.join(ARCHITECTURES)}.",
        )


def check_systemd(context: PreflightContext) -> Iterator[CheckFinding]:
    if not context.machine.systemd:
        first = context.text("/proc/1/comm").strip() or "another init system"
        yield error(
            f"The init process of this machine is {first}, but the node's services need systemd.",
            "Use a machine or a container that boots with systemd.",
        )


def check_hostname(context: PreflightContext) -> Iterator[CheckFinding]:
    config, hostname = context.config, context.machine.hostname
    if config.node.name:
        yield from _configured(config.node.name)
    elif hostname.lower() in UNSET_HOSTNAMES:
        yield error(
            f"The host name of this machine is not set ({hostname or 'empty'}). Nodes are identified by it.",
            "Set it with `sudo hostnamectl set-hostname edge-1`, or set `node.name` in the configuration.",
        )
    elif problem := node_name(hostname.lower()):
        yield error(
            f"The host name {hostname} cannot be used as the node name: it {problem}",
            "Change it with `sudo hostnamectl set-hostname edge-1`, or set `node.name` in the configuration.",
        )
    elif hostname != hostname.lower():
        yield ok(
            f"The node will be named {hostname.lower()}, because Kubernetes does not allow upper case as in "
            f"{hostname}."
        )
    else:
        yield ok(hostname)


def _configured(name: str) -> Iterator[CheckFinding]:
    if problem := node_name(name):
        yield error(
            f"{name} cannot be used as the node name: it {problem}", "Correct `node.name` in the configuration."
        )
    else:
        yield ok(f"{name}, set by node.name")


def check_memory(context: PreflightContext) -> Iterator[CheckFinding]:
    total = parse_memory_total(context.text("/proc/meminfo"))
    if total is None:
        yield warning("The size of the memory cannot be read.", "Check /proc/meminfo.")
    elif total < LEAST_MEMORY:
        yield error(
            f"The machine has {total / GIB:.1f} GiB of memory, but a node needs 1 GiB.", "Add memory to the machine."
        )
    elif total < GOOD_MEMORY:
        yield warning(
            f"The machine has {total / GIB:.1f} GiB of memory, which leaves little for pods.",
            "Use 2 GiB or more.",
        )
    else:
        yield ok(f"{total / GIB:.1f} GiB")


def check_cpu(context: PreflightContext) -> Iterator[CheckFinding]:
    spans = re.findall(r"(\d+)(?:-(\d+))?", context.text("/sys/devices/system/cpu/online"))
    count = sum(int(last or first) - int(first) + 1 for first, last in spans)
    if count < 1:
        yield error("The number of CPUs cannot be read.", "Check /sys/devices/system/cpu/online.")
    elif count < GOOD_CPUS:
        yield warning(
            "The machine has one CPU, of which the node's services may leave little for pods.",
            "Use two or more CPUs.",
        )
    else:
        yield ok(f"{count} CPUs")


PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Programs and their packages on Debian and Ubuntu.
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
    "conntrack": ("conntrack", "kube-proxy uses it to clear stale connections"),
    "socat": ("socat", "some runtimes use it to forward ports"),
    "ethtool": ("ethtool", "network plugins use it to configure links"),
}


def check_programs(context: PreflightContext) -> Iterator[CheckFinding]:
    missing = [name for name in REQUIRED_PROGRAMS if not _found(context, name)]
    if missing:
        packages = sorted({REQUIRED_PROGRAMS[name] for name in missing})
        yield error(
            f"Required programs are missing: {', '.join(missing)}.",
            f"Run `sudo apt-get install -y {' '.join(packages)}`.",
        )
    recommended = [name for name in RECOMMENDED_PROGRAMS if not _found(context, name)]
    if recommended:
        details = "; ".join(f"{name} ({RECOMMENDED_PROGRAMS[name][1]})" for name in recommended)
        packages = [RECOMMENDED_PROGRAMS[name][0] for name in recommended]
        yield warning(
            f"Recommended programs are missing: {details}.", f"Run `sudo apt-get install -y {' '.join(packages)}`."
        )


def _found(context: PreflightContext, name: str) -> bool:
    return any(context.exists(f"{folder}/{name}") for folder in PROGRAM_DIRECTORIES)
