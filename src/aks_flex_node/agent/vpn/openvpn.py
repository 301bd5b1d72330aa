"""The OpenVPN client on this machine: its configuration, its state through the management socket, and the diagnosis
of a tunnel that does not connect.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
import socket
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.vpn import LINK, MANAGEMENT, NAME
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK
from aks_flex_node.agent.vpn.virtual_network import ipv4_ranges
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aks_flex_node.agent.vpn.client_profile import ClientProfile
    from aks_flex_node.host.host import Host


CONNECTED = "CONNECTED"
MANAGEMENT_SECONDS = 2.0
STATE_LINE = re.compile(r"^(\d+),([A-Z_]+),([^,]*),([^,]*)", re.MULTILINE)


@frozen
class TunnelState:
    """The state that the client reports."""

    state: str  # CONNECTED, WAIT, RECONNECTING …
    since: float  # Unix time
    address: str = ""  # assigned by the gateway

    @property
    def is_up(self) -> bool:
        return self.state == CONNECTED


def read_state(path: str = MANAGEMENT) -> TunnelState | None:
    """Reads the state of the client. Returns None if it does not run."""
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
    """Parses the response of the management interface to `state`."""
    found = STATE_LINE.search(text.replace("\r", ""))
    return TunnelState(found[2], float(found[1]), found[4]) if found else None


def read_log(host: Host) -> str:
    """Returns the log of the client since its last start."""
    invocation = host.unit(NAME).invocation
    which = (f"_SYSTEMD_INVOCATION_ID={invocation}",) if invocation else ("-u", NAME)
    return host.query("journalctl", *which, "-n", "100", "-o", "cat", "--no-pager").out


AZURE_DNS = "168.63.129.16/32"  # not reachable by VPN clients
# The server must not change other routes or the DNS servers.
IGNORED_PUSH_OPTIONS = (
    *("redirect-gateway", "redirect-private", "route ", "route-ipv6", "dhcp-option", "dns ", "block-"),
    *("ifconfig-ipv6", "setenv"),
)


def client_configuration(profile: ClientProfile, pair: str, networks: Iterable[str], up: str = "") -> bytes:
    """Returns the client configuration. `pair` is the file with key and certificate, `up` is a script to run when the
    tunnel is up.
    """
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
        # Reconnect automatically after an outage of any length.
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
    """Returns routes for the networks, without nested ranges and without the default route."""
    found = {each for each in ipv4_ranges(networks) if each.prefixlen > 0}
    return sorted(ipaddress.collapse_addresses(found))


def select_name_servers(
    configured: Sequence[str], of_network: Sequence[str], of_profile: Sequence[str]
) -> tuple[str, ...]:
    """Returns the DNS servers behind the VPN: the configured ones, else those of the network, else those of the
    profile.
    """
    found = configured or of_network or of_profile
    return tuple(str(each.network_address) for each in ipv4_ranges(found) if str(each) != AZURE_DNS)


def up_script(servers: Sequence[str], domains: Sequence[str]) -> bytes:
    """Returns a script that configures systemd-resolved for these domains. The settings are removed with the link."""
    lines = [
        "#!/bin/sh",
        f"# {MANAGED_MARK}",
        f'resolvectl dns "$dev" {" ".join(servers)}',
        f'resolvectl domain "$dev" {" ".join(shlex.quote(f"~{each}") for each in domains)}',
        "exit 0",
    ]
    return ("\n".join(lines) + "\n").encode()


def diagnose(output: str) -> FlexError:
    """Returns the error for the first matching pattern, with the log line of OpenVPN."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "MANAGEMENT: " not in line]
    for pattern, error in LOG_PATTERNS:
        if found := next((line for line in reversed(lines) if re.search(pattern, line)), ""):
            return error(_short(found))
    return MachineError(
        "vpn-not-connected",
        f"The VPN does not connect: {_short(lines[-1]) if lines else 'OpenVPN logged nothing'}.",
        f"Check `journalctl -u {NAME} -n 50`.",
        retryable=True,
    )


def _short(line: str) -> str:
    """Removes the timestamp, which the journal already has."""
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line).rstrip(".")[:200]


def refused_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-connection-rejected",
        f"The VPN does not connect: the gateway rejects this machine ({reason}).",
        "Run `aks-flex-node bootstrap-vpn` again. It adds this machine's certificate to the gateway.",
        retryable=True,
    )


def gateway_untrusted_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-gateway-untrusted",
        f"The VPN does not connect: the certificate of the gateway does not match its profile ({reason}).",
        "Check the clock with `date`: a wrong clock is the usual cause. Otherwise run `aks-flex-node "
        "bootstrap-vpn` again.",
        retryable=True,
    )


def no_tunnel_device_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-tun-device-missing",
        f"The VPN does not connect: OpenVPN cannot open a tunnel device ({reason}).",
        "Load the driver with `modprobe tun`. In a container, the host must provide /dev/net/tun.",
    )


def gateway_unreachable_error(reason: str) -> FlexError:
    return MachineError(
        "vpn-gateway-unreachable",
        f"The VPN does not connect: the gateway cannot be reached ({reason}).",
        "Check that this machine can reach the gateway's public address at TCP port 443, and that no firewall "
        "blocks it.",
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
    # A gateway closes the connection without an error if it does not know the certificate.
    (r"TLS Error|TLS handshake failed|TLS key negotiation failed|Connection reset", refused_error),
)
