"""Check of the TCP ports that a node listens on."""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, error, ok, warning
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.settings.models import NodeConfig

LISTENING = "0A"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - this does not listen
LOCAL = "127.0.0.1"


@frozen
class NodePort:
    """A port that the node needs."""

    number: int
    who: str
    address: str = LOCAL
    remedy: str = ""  # how to change the port
    needed: bool = True


@frozen
class PortListener:
    address: str
    port: int
    inode: str


@frozen
class PortOwner:
    """The process that uses a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def node_ports(config: NodeConfig) -> Iterator[NodePort]:
    """Yields the ports that the node's services use."""
    extra = config.node.kubelet.extra_config
    yield NodePort(_number(extra.get("port"), 10250), "the kubelet", EVERYWHERE[0])
    yield NodePort(_number(extra.get("healthzPort"), 10248), "the kubelet's health endpoint")
    address, _, number = config.containerd.metrics_address.rpartition(":")
    if number.isdigit():
        moved = "Or set `containerd.metricsAddress` to another port, or to an empty string."
        yield NodePort(int(number), "containerd's metrics", address.strip("[]") or EVERYWHERE[0], moved)
    if config.npd.enabled:
        yield NodePort(20256, "node-problem-detector's health endpoint", needed=False)
        yield NodePort(20257, "node-problem-detector's metrics", needed=False)
    yield NodePort(10249, "kube-proxy's metrics, if the cluster runs it here", EVERYWHERE[0], needed=False)
    yield NodePort(10256, "kube-proxy's health endpoint, if the cluster runs it here", EVERYWHERE[0], needed=False)


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def check_ports(context: PreflightContext) -> Iterator[CheckFinding]:
    listening = [*listeners(context.text("/proc/net/tcp")), *listeners(context.text("/proc/net/tcp6"))]
    mine = list(node_ports(context.config))
    problems = [finding for port in mine for finding in _check_port(context, port, listening)]
    yield from problems
    if not problems:
        numbers = ", ".join(str(port.number) for port in mine)
        yield ok(f"{numbers} are free or used by this node" if context.joined else f"{numbers} are free")


def _check_port(context: PreflightContext, port: NodePort, listening: list[PortListener]) -> Iterator[CheckFinding]:
    taken = next((listener for listener in listening if conflicts(port, listener)), None)
    owner = find_owner(context, taken.inode) if taken else None
    if taken and not _ours(context, port, owner):
        message = f"Port {port.number} is used by {owner or 'another process'}, but {port.who} needs it."
        find = (
            f"Run `sudo ss -ltnp 'sport = :{port.number}'` to show the process. Stop it, or configure another port "
            "for it."
        )
        yield (error if port.needed else warning)(message, f"{find} {port.remedy}".rstrip())


def _ours(context: PreflightContext, port: NodePort, owner: PortOwner | None) -> bool:
    """Returns whether the port is used by a service of the agent or, on a joined node, by a pod of the cluster."""
    if context.joined and (owner is None or not port.needed):
        return True
    pids = {context.host.unit(name).pid for name in context.owned_services}
    return owner is not None and owner.pid in pids


def conflicts(port: NodePort, listener: PortListener) -> bool:
    if port.number != listener.port:
        return False
    return port.address in EVERYWHERE or listener.address in (*EVERYWHERE, port.address)


def listeners(table: str) -> list[PortListener]:
    """Parses the listening sockets from /proc/net/tcp or tcp6."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return [
        PortListener(parse_proc_address(row[1].split(":")[0]), int(row[1].split(":")[1], 16), row[9])
        for row in rows
        if len(row) > 9 and row[3] == LISTENING
    ]


def parse_proc_address(text: str) -> str:
    """Parses an address of /proc/net, which is written as 32-bit numbers in host byte order."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def find_owner(context: PreflightContext, inode: str) -> PortOwner | None:
    """Returns the process that owns a socket, if it is visible."""
    for pid in filter(str.isdigit, context.names("/proc")):
        for handle in context.names(f"/proc/{pid}/fd"):
            if link_target(context, f"/proc/{pid}/fd/{handle}") == f"socket:[{inode}]":
                return PortOwner(int(pid), context.text(f"/proc/{pid}/comm").strip() or "?")
    return None


def link_target(context: PreflightContext, path: str) -> str:
    try:
        entry = context.host.stat(path)
    except OSError:
        return ""
    return entry.target if entry else ""
