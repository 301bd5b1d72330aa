"""Check of the programs that a node calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.findings import Finding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.situations import Situation

PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Programs, and the package of Debian and Ubuntu that has each.
NEEDED = {
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
USEFUL = {
    "conntrack": ("conntrack", "kube-proxy clears stale connections with it"),
    "socat": ("socat", "some runtimes forward ports with it"),
    "ethtool": ("ethtool", "network plugins set up links with it"),
}


def programs(situation: Situation) -> Iterator[Finding]:
    missing = [name for name in NEEDED if not _found(situation, name)]
    if missing:
        packages = sorted({NEEDED[name] for name in missing})
        yield error(f"The machine lacks {', '.join(missing)}.", f"`sudo apt-get install -y {' '.join(packages)}`")
    lacking = [name for name in USEFUL if not _found(situation, name)]
    if lacking:
        why = "; ".join(f"{name} ({USEFUL[name][1]})" for name in lacking)
        packages = [USEFUL[name][0] for name in lacking]
        yield warning(f"The machine lacks {why}.", f"`sudo apt-get install -y {' '.join(packages)}`")


def _found(situation: Situation, name: str) -> bool:
    return any(situation.exists(f"{folder}/{name}") for folder in PATH)
