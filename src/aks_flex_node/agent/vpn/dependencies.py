"""External dependencies of the VPN code, replaceable in tests: Azure, the running client, DNS, clocks. Also checks
the reachability of the API server through the tunnel and manages its name in /etc/hosts.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.vpn import HOSTS, HOSTS_MARK, vpn_dir, without_managed_lines
from aks_flex_node.agent.http.download_options import parse_ip_address
from aks_flex_node.agent.identity.azure_sign_in import open_arm
from aks_flex_node.agent.vpn import client_profile, openvpn, virtual_network
from aks_flex_node.agent.vpn.client_certificate import ClientCertificate, make_client_certificate
from aks_flex_node.agent.vpn.virtual_network import IPv4Range, VirtualNetwork
from aks_flex_node.azure.operations import OperationTimeout
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import EditFile
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.vpn.openvpn import TunnelState
    from aks_flex_node.azure.arm import ArmClient
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


A, IN, POINTER = 1, 1, 0xC0
DNS_SECONDS = 2.0
CHECK_SECONDS = 0.5


def with_hosts_entry(hosts: bytes, name: str, address: str) -> bytes:
    """Returns /etc/hosts with the managed line first, so that it takes precedence. Other lines are unchanged."""
    return f"{address} {name} {HOSTS_MARK}\n".encode() + without_managed_lines(hosts)


def query_address(server: str, name: str) -> str:
    """Resolves a name with a DNS server. Returns an empty string on failure."""
    number = secrets.randbelow(1 << 16)
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(DNS_SECONDS)
        line.connect((server, 53))
        line.send(encode_query(number, name))
        return decode_answer(number, line.recv(4096))
    return ""


def encode_query(number: int, name: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part for part in name.rstrip(".").encode("idna").split(b"."))
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", A, IN)


def decode_answer(number: int, packet: bytes) -> str:
    """Returns the first address in a DNS response. Aliases are skipped, because the response contains their
    addresses.
    """
    try:
        identifier, flags, questions, answers = struct.unpack_from(">4H", packet)
        if identifier != number or flags & 0x800F != 0x8000:
            return ""
        at = 12
        for _ in range(questions):
            at = _after_name(packet, at) + 4
        for _ in range(answers):
            at = _after_name(packet, at)
            kind, _, _, length = struct.unpack_from(">2HIH", packet, at)
            at += 10
            if kind == A and length == 4:
                return str(ipaddress.IPv4Address(packet[at : at + 4]))
            at += length
    except (struct.error, IndexError, ValueError):
        return ""
    return ""


def _after_name(packet: bytes, at: int) -> int:
    while packet[at]:
        if packet[at] & POINTER == POINTER:
            return at + 2
        at += packet[at] + 1
    return at + 1


def accepts_connections(name: str, port: int) -> bool:
    """Returns whether the host accepts TCP connections on the port."""
    try:
        socket.create_connection((name, port), 5).close()
    except OSError:
        return False
    return True


@frozen
class VpnEnvironment:
    operator_client: Callable[[NodeConfig], AbstractContextManager[ArmClient]] = partial(open_arm, operator=True)
    download: Callable[[NodeConfig, str], bytes] = client_profile.download_profile
    make_certificate: Callable[[str], ClientCertificate] = make_client_certificate
    read_tunnel: Callable[[], TunnelState | None] = openvpn.read_state
    resolve: Callable[[str, str], str] = query_address
    accepts_connections: Callable[[str, int], bool] = accepts_connections
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time

    @property
    def operation_timeout(self) -> OperationTimeout:
        return OperationTimeout(sleep=self.sleep, now=self.now, clock=self.clock)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        end = self.clock() + seconds
        while not condition():
            if self.clock() > end:
                return False
            self.sleep(CHECK_SECONDS)
        return True

    def wait_until_up(self, seconds: float) -> bool:
        """Waits for the tunnel."""

        def is_up() -> bool:
            found = self.read_tunnel()
            return found is not None and found.is_up

        return self.wait_until(is_up, seconds)


ANSWER_SECONDS = 60.0
NAME_SECONDS = 10.0


@frozen
class ApiServerReachability:
    host: Host
    config: NodeConfig
    environment: VpnEnvironment
    network: VirtualNetwork

    def update_hosts(self, arm: ArmClient, servers: Sequence[str]) -> None:
        """Maps the API server's name to its private address in /etc/hosts, if DNS on this machine does not."""
        name, _ = virtual_network.api_server_address(self.config, self.network.cluster)
        if parse_ip_address(name) or self.host.stat(f"{vpn_dir(self.config)}/up"):
            return self._write(without_managed_lines)  # a line of an earlier run would take precedence over DNS
        address = self._resolve(name, servers) or virtual_network.private_zone_address(
            arm, self.config, self.network.cluster, name
        )
        if not address:
            return None  # the existing entry may still be correct
        # An address outside of the routed networks is public, so DNS resolves it.
        if any(one.network.overlaps(IPv4Range(address)) for one in self.network.routed_ranges):
            return self._write(lambda hosts: with_hosts_entry(hosts, name, address))
        return self._write(without_managed_lines)

    def _write(self, edit: Callable[[bytes], bytes]) -> None:
        hosts, entry = self.host.read(HOSTS) or b"", self.host.stat(HOSTS)
        content = edit(hosts)
        if content != hosts:
            self.host.apply(EditFile(HOSTS, content, entry.mode if entry else 0o644))

    def _resolve(self, name: str, servers: Sequence[str]) -> str:
        """Resolves a name with the DNS servers behind the tunnel. Waits until they are reachable."""
        found: list[str] = []

        def try_resolve() -> bool:
            found.extend(filter(None, (self.environment.resolve(server, name) for server in servers)))
            return bool(found) or not servers

        self.environment.wait_until(try_resolve, NAME_SECONDS)
        return found[0] if found else ""

    def check(self) -> None:
        name, port = virtual_network.api_server_address(self.config, self.network.cluster)
        if name and not self.environment.wait_until(
            partial(self.environment.accepts_connections, name, port), ANSWER_SECONDS
        ):
            raise ClusterError(
                "vpn-api-server-unreachable",
                f"The VPN is connected, but {name}:{port} is not reachable through it.",
                f"Check with `getent hosts {name}` that the name resolves to its private address (else set "
                "`azure.vpn.dnsServers`), and that no network security group in Azure blocks traffic from the VPN "
                "to the API server.",
                retryable=True,
            )
