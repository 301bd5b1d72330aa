"""Why a tunnel does not come up: what OpenVPN says, what that means, and what to do about it. Pure."""

from __future__ import annotations

import re

from aks_flex_node.agent.components.vpn import NAME
from aks_flex_node.errors import FlexError, MachineError


def cause(said: str) -> FlexError:
    """The first meaning that fits, with OpenVPN's own words."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "MANAGEMENT: " not in line]
    for pattern, error in MEANINGS:
        if found := next((line for line in reversed(lines) if re.search(pattern, line)), ""):
            return error(_short(found))
    return unknown(_short(lines[-1]) if lines else "OpenVPN said nothing")


def _short(line: str) -> str:
    """Without the moment at its begin, which the journal has already."""
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line).rstrip(".")[:200]


def locked_out(words: str) -> FlexError:
    return MachineError(
        "vpn-refused",
        f"The VPN does not come up: the gateway does not let this machine in ({words}).",
        "Run `aks-flex-node bootstrap-vpn` again: it sees to it that the gateway knows this machine's certificate.",
        again=True,
    )


def untrusted(words: str) -> FlexError:
    return MachineError(
        "vpn-gateway-untrusted",
        f"The VPN does not come up: the gateway shows another certificate than its profile promises ({words}).",
        "Look at `date`: a clock that is wrong is the usual cause. Else run `aks-flex-node bootstrap-vpn` again.",
        again=True,
    )


def no_device(words: str) -> FlexError:
    return MachineError(
        "vpn-no-tunnel-device",
        f"The VPN does not come up: this machine gives OpenVPN no tunnel device ({words}).",
        "Load it with `modprobe tun`; in a container, its host must give it /dev/net/tun.",
    )


def unreachable(words: str) -> FlexError:
    return MachineError(
        "vpn-gateway-unreachable",
        f"The VPN does not come up: the gateway cannot be reached ({words}).",
        "Check that this machine can reach the gateway's public address at TCP 443: no firewall may be in between.",
        again=True,
    )


def unknown(words: str) -> FlexError:
    return MachineError(
        "vpn-not-connected",
        f"The VPN does not come up: {words}.",
        f"Look at `journalctl -u {NAME} -n 50`.",
        again=True,
    )


MEANINGS = (
    (r"AUTH_FAILED|auth-failure", locked_out),
    (r"VERIFY (KU |EKU |X509NAME )?ERROR|certificate verify failed|certificate is not yet valid", untrusted),
    (r"Cannot (open TUN|ioctl TUNSETIFF)|/dev/net/tun", no_device),
    (r"Cannot resolve|Connection refused|No route to host|Network is unreachable|timed out", unreachable),
    # A gateway that does not know a certificate breaks the connection off without a word.
    (r"TLS Error|TLS handshake failed|TLS key negotiation failed|Connection reset", locked_out),
)
