"""The OpenVPN client on this machine: its configuration, its state through the management socket, and the
diagnosis of a tunnel that does not come up.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.vpn import LINK, MANAGEMENT, NAME
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK
from aks_flex_node.agent.vpn.virtual_network import used_ranges
from aks_flex_node.errors import FlexError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aks_flex_node.agent.vpn.client_profile import ClientProfile
    from aks_flex_node.host.host import Host


CONNECTED = "CONNECTED"
MANAGEMENT_SECONDS = 2.0
STATE_LINE = re.compile(r"^(\d+),([A-Z_]+),([^,]*),([^,]*),([^,]*)", re.MULTILINE)


@dataclass(frozen=True)
class TunnelState:
    """What the client says of itself."""

    state: str  # CONNECTED, WAIT, RECONNECTING …
    since: float  # unix time
    address: str = ""  # that the gateway gave us
    gateway: str = ""

    @property
    def is_up(self) -> bool:
        return self.state == CONNECTED


def read_state(path: str = MANAGEMENT) -> TunnelState | None:
    """Ask the client; None when none runs."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(MANAGEMENT_SECONDS)
        line.connect(path)
        line.sendall(b"state\n")
        received = b""
        while chunk := line.recv(4096):
            received += chunk
            if b"END" in received:
                break
        return parse_state(received.decode(errors="replace"))
    return None


def parse_state(text: str) -> TunnelState | None:
    """What the client's management interface says to `state`."""
    found = STATE_LINE.search(text.replace("\r", ""))
    return TunnelState(found[2], float(found[1]), found[4], found[5]) if found else None


@dataclass(frozen=True)
class TunnelWaiter:
    """How long to wait, and how to look."""

    read_state: Callable[[], TunnelState | None] = read_state
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    tick: float = 0.5

    def wait_until(self, true: Callable[[], bool], seconds: float) -> bool:
        end = self.clock() + seconds
        while not true():
            if self.clock() > end:
                return False
            self.sleep(self.tick)
        return True

    def wait_until_up(self, seconds: float) -> bool:
        def is_up() -> bool:
            found = self.read_state()
            return found is not None and found.is_up

        return self.wait_until(is_up, seconds)


def read_log(host: Host) -> str:
    """What the client said since it was last started."""
    invocation = host.unit(NAME).invocation
    which = (f"_SYSTEMD_INVOCATION_ID={invocation}",) if invocation else ("-u", NAME)
    return host.query("journalctl", *which, "-n", "100", "-o", "cat", "--no-pager").out


AZURE_DNS = "168.63.129.16/32"  # answers only inside of a network, and never to VPN clients
# A server has no say in where other packets go, nor in whom we ask for names.
IGNORED_PUSH_OPTIONS = (
    *("redirect-gateway", "redirect-private", "route ", "route-ipv6", "dhcp-option", "dns ", "block-"),
    *("ifconfig-ipv6", "setenv"),
)


def client_configuration(profile: ClientProfile, pair: str, networks: Iterable[str], up: str = "") -> bytes:
    """`pair` is the file with our key and certificate; `up` a script to run when the tunnel is there."""
    name, kind = profile.server_name
    lines = [
        f"# {MANAGED_MARK}",
        "client",
        f"dev {LINK}",
        "dev-type tun",
        f"proto {profile.protocol}",
        *(f"remote {host} {port}" for host, port in profile.remotes),
        "remote-cert-tls server",
        *([f"verify-x509-name {name} {kind}"] if name else []),
        *(f"{key} {value}" for key, value in sorted(profile.options.items())),
        f"cert {pair}",
        f"key {pair}",
        "nobind",
        "auth-nocache",
        "persist-key",
        "persist-tun",
        # However long the gateway or the line is away, the tunnel comes back by itself.
        "resolv-retry infinite",
        "connect-retry 2 60",
        "connect-timeout 20",
        "keepalive 10 60",
        "route-nopull",
        *(f'pull-filter ignore "{each}"' for each in IGNORED_PUSH_OPTIONS),
        *(f"route {each.network_address} {each.netmask}" for each in routes(networks)),
        f"management {MANAGEMENT} unix",
        *(["script-security 2", f"up {up}"] if up else ["script-security 1"]),
        "verb 3",
        *(f"<{block}>\n{content}</{block}>" for block, content in sorted(profile.blocks.items())),
    ]
    return ("\n".join(lines) + "\n").encode()


def routes(networks: Iterable[str]) -> list[ipaddress.IPv4Network]:
    """One for each range; none for what lies in another, and none for everything."""
    found = {one.network for one in used_ranges("", networks) if one.network.prefixlen > 0}
    return sorted(ipaddress.collapse_addresses(found))


def select_name_servers(
    configured: Sequence[str], of_network: Sequence[str], of_profile: Sequence[str]
) -> tuple[str, ...]:
    """Whom to ask behind the VPN: as configured, else as the network has it."""
    found = configured or of_network or of_profile
    return tuple(str(one.network.network_address) for one in used_ranges("", found) if str(one.network) != AZURE_DNS)


def up_script(servers: Sequence[str], domains: Sequence[str]) -> bytes:
    """Tells systemd-resolved whom to ask for just these names. It goes with the link, and so does what it says."""
    lines = [
        "#!/bin/sh",
        f"# {MANAGED_MARK}",
        f'resolvectl dns "$dev" {" ".join(servers)}',
        f'resolvectl domain "$dev" {" ".join(shlex.quote(f"~{each}") for each in domains)}',
        "exit 0",
    ]
    return ("\n".join(lines) + "\n").encode()


def diagnose(output: str) -> FlexError:
    """The first meaning that fits, with OpenVPN's own words."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "MANAGEMENT: " not in line]
    for pattern, error in LOG_PATTERNS:
        if found := next((line for line in reversed(lines) if re.search(pattern, line)), ""):
            return error(_short(found))
    return not_connected_error(_short(lines[-1]) if lines else "OpenVPN said nothing")


def _short(line: str) -> str:
    """Without the moment at its begin, which the journal has already."""
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line).rstrip(".")[:200]


def refused_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-connection-rejected",
        f"The VPN does not come up: the gateway does not let this machine in ({reason}).",
        "Run `aks-flex-node bootstrap-vpn` again: it sees to it that the gateway knows this machine's certificate.",
        retryable=True,
    )


def gateway_untrusted_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-gateway-untrusted",
        f"The VPN does not come up: the gateway shows another certificate than its profile promises ({reason}).",
        "Look at `date`: a clock that is wrong is the usual cause. Else run `aks-flex-node bootstrap-vpn` again.",
        retryable=True,
    )


def no_tunnel_device_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-tun-device-missing",
        f"The VPN does not come up: this machine gives OpenVPN no tunnel device ({reason}).",
        "Load it with `modprobe tun`; in a container, its host must give it /dev/net/tun.",
    )


def gateway_unreachable_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-gateway-unreachable",
        f"The VPN does not come up: the gateway cannot be reached ({reason}).",
        "Check that this machine can reach the gateway's public address at TCP 443: no firewall may be in between.",
        retryable=True,
    )


def not_connected_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-not-connected",
        f"The VPN does not come up: {reason}.",
        f"Look at `journalctl -u {NAME} -n 50`.",
        retryable=True,
    )


LOG_PATTERNS = (
    (r"AUTH_FAILED|auth-failure", refused_error),
    (
        r"VERIFY (KU |EKU |X509NAME )?ERROR|certificate verify failed|certificate is not yet valid",
        gateway_untrusted_error,
    ),
    (r"Cannot (open TUN|ioctl TUNSETIFF)|/dev/net/tun", no_tunnel_device_error),
    (
        r"Cannot resolve|Connection refused|No route to host|Network is unreachable|timed out",
        gateway_unreachable_error,
    ),
    # A gateway that does not know a certificate breaks the connection off without a word.
    (r"TLS Error|TLS handshake failed|TLS key negotiation failed|Connection reset", refused_error),
)
