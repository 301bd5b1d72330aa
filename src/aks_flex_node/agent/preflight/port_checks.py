"""Check of the TCP ports that a node listens on."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import CheckFinding, error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.preflight.check import PreflightContext

LISTENING = "0A"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - nobody listens here
LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class NodePort:
    """A port of ours."""

    number: int
    who: str
    address: str = LOCAL
    remedy: str = ""  # how to move it
    needed: bool = True


@dataclass(frozen=True)
class PortListener:
    address: str
    port: int
    inode: str


@dataclass(frozen=True)
class PortOwner:
    """The process that holds a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def node_ports(config: NodeConfig) -> Iterator[NodePort]:
    """The ports that the node's services will take."""
    extra = config.node.kubelet.extra_config
    yield NodePort(_number(extra.get("port"), 10250), "the kubelet", EVERYWHERE[0])
    yield NodePort(_number(extra.get("healthzPort"), 10248), "the kubelet's own health")
    address, _, number = config.containerd.metrics_address.rpartition(":")
    if number.isdigit():
        moved = "Or set containerd.metricsAddress to another port, or to nothing."
        yield NodePort(int(number), "containerd's metrics", address.strip("[]") or EVERYWHERE[0], moved)
    if config.npd.enabled:
        yield NodePort(20256, "node-problem-detector's health", needed=False)
        yield NodePort(20257, "node-problem-detector's metrics", needed=False)
    yield NodePort(10249, "kube-proxy's metrics, if the cluster runs it here", EVERYWHERE[0], needed=False)
    yield NodePort(10256, "kube-proxy's health, if the cluster runs it here", EVERYWHERE[0], needed=False)


def _number(given: object, otherwise: int) -> int:
    return given if isinstance(given, int) else otherwise


def check_ports(context: PreflightContext) -> Iterator[CheckFinding]:
    there = [*listeners(context.text("/proc/net/tcp")), *listeners(context.text("/proc/net/tcp6"))]
    mine = list(node_ports(context.config))
    wrong = [finding for port in mine for finding in _judge(context, port, there)]
    yield from wrong
    if not wrong:
        numbers = ", ".join(str(port.number) for port in mine)
        yield ok(f"{numbers} are free, or held by this node" if context.joined else f"{numbers} are free")


def _judge(context: PreflightContext, port: NodePort, there: list[PortListener]) -> Iterator[CheckFinding]:
    taken = next((listener for listener in there if conflicts(port, listener)), None)
    holder = find_owner(context, taken.inode) if taken else None
    if taken and not _ours(context, port, holder):
        yield _taken(port, holder)


def _taken(port: NodePort, holder: PortOwner | None) -> CheckFinding:
    message = f"Port {port.number} is taken by {holder or 'another process'}; it is for {port.who}."
    find = f"`sudo ss -ltnp 'sport = :{port.number}'` shows who holds it; stop that, or give it another port."
    return (error if port.needed else warning)(message, f"{find} {port.remedy}".rstrip())


def _ours(context: PreflightContext, port: NodePort, holder: PortOwner | None) -> bool:
    """Whether it is one of our services, or in a node that works one of the cluster's pods, that listens there."""
    if context.joined and (holder is None or not port.needed):
        return True
    pids = {context.host.unit(name).pid for name in context.owned_services}
    return holder is not None and holder.pid in pids


def conflicts(port: NodePort, listener: PortListener) -> bool:
    if port.number != listener.port:
        return False
    return port.address in EVERYWHERE or listener.address in (*EVERYWHERE, port.address)


def listeners(table: str) -> list[PortListener]:
    """Who listens, out of /proc/net/tcp or tcp6."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return [
        PortListener(parse_proc_address(row[1].split(":")[0]), int(row[1].split(":")[1], 16), row[9])
        for row in rows
        if len(row) > 9 and row[3] == LISTENING
    ]


def parse_proc_address(text: str) -> str:
    """The kernel writes an address as numbers of 32 bits in the machine's own order."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def find_owner(context: PreflightContext, inode: str) -> PortOwner | None:
    """The process that has this socket, as far as we may see."""
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
