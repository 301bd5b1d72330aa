"""Addresses that must not be used twice: a packet for one of them would go to the wrong place. Pure."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Network = ipaddress.IPv4Network
GATEWAY_BITS = 27  # the smallest subnet that Azure advises for a gateway


@dataclass(frozen=True)
class Used:
    """A range of addresses, and what has it."""

    what: str
    network: Network


def parsed(key: str, text: str) -> Network:
    """A range as a person wrote it."""
    try:
        return Network(text)
    except ValueError as error:
        raise ConfigError(
            "vpn-range-malformed",
            f"{key} is {text!r}, which is no range of IPv4 addresses: {error}.",
            "Write it as 192.168.100.0/24: the first address, and how many bits of it are common to all.",
        ) from error


def ranges(what: str, texts: Iterable[Any]) -> list[Used]:
    """Those of version 4; the VPN carries no others."""
    found = []
    for text in texts:
        try:
            found.append(Used(what, Network(str(text), strict=False)))
        except ValueError:
            continue
    return found


def on_host(addresses: str, routes: str, besides: frozenset[str]) -> list[Used]:
    """The networks that a machine is in or has a route to, by what `ip -j addr` and `ip -j route` say."""
    found: dict[Network, Used] = {}
    for link in _list(addresses):
        if link.get("ifname") in besides or "LOOPBACK" in (link.get("flags") or ()):
            continue
        for one in link.get("addr_info") or ():
            if one.get("family") == "inet":
                network = Network(f"{one.get('local')}/{one.get('prefixlen', 32)}", strict=False)
                found.setdefault(network, Used(f"this machine's network {network} ({link.get('ifname')})", network))
    for route in _list(routes):
        target = str(route.get("dst", "default"))
        if target != "default" and route.get("dev") not in besides:
            for used in ranges(f"this machine's route to {target} ({route.get('dev')})", [target]):
                found.setdefault(used.network, used)
    return list(found.values())


def _list(text: str) -> list[dict[str, Any]]:
    try:
        told = json.loads(text or "[]")
    except ValueError:
        return []
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def check(pool: Network, beyond: Sequence[Used], cluster: Sequence[Used], here: Sequence[Used]) -> None:
    """Refuse before anything is made. `beyond` is what the VPN leads to, `here` what this machine is in."""
    if taken := list(_shared(pool, (*here, *beyond, *cluster))):
        raise ConfigError(
            "vpn-pool-overlaps",
            f"azure.vpn.p2sGatewayCIDR is {pool}, and that overlaps {'; '.join(taken)}.",
            "Choose addresses for VPN clients that nobody else has, for example 172.31.255.0/24.",
        )
    # A route to all of one's own network through the tunnel would cut the machine off.
    for used in beyond:
        if taken := list(_shared(used.network, here)):
            raise MachineError(
                "vpn-network-overlaps",
                f"{used.what} has {used.network}, and that overlaps {'; '.join(taken)}.",
                "The same addresses cannot be here and behind a VPN: give this site or the network in Azure others.",
            )


def is_taken(text: str, here: Iterable[Used]) -> bool:
    return any(one.network.overlaps(other.network) for one in ranges("", [text]) for other in here)


def _shared(network: Network, others: Iterable[Used]) -> Iterator[str]:
    return (
        f"{one.what} {one.network}" if str(one.network) not in one.what else one.what
        for one in others
        if one.network.overlaps(network)
    )


def free_subnet(space: Iterable[Any], taken: Iterable[Any]) -> Network | None:
    """A free part of a network for its gateway, from the end, where nobody else will look for room."""
    used = [one.network for one in ranges("", taken)]
    for whole in (one.network for one in ranges("", space)):
        free = [piece for piece in _without(whole, used) if piece.prefixlen <= GATEWAY_BITS]
        if free:
            last = max(free, key=lambda piece: int(piece.broadcast_address))
            size = 1 << (32 - GATEWAY_BITS)
            return Network((int(last.broadcast_address) - size + 1, GATEWAY_BITS))
    return None


def _without(whole: Network, used: Sequence[Network]) -> list[Network]:
    """What is left of a range."""
    pieces = [whole]
    for other in used:
        inside = [piece for piece in pieces if piece.overlaps(other)]
        pieces = [piece for piece in pieces if piece not in inside]
        for piece in inside:
            if other.subnet_of(piece):
                pieces += piece.address_exclude(other)
    return pieces


def cluster_ranges(properties: Mapping[str, Any]) -> list[Used]:
    """Pods and services of a cluster, as its document says them."""
    profile = properties.get("networkProfile") or {}
    pods = [profile.get("podCidr"), *(profile.get("podCidrs") or ())]
    services = [profile.get("serviceCidr"), *(profile.get("serviceCidrs") or ())]
    found = [
        *ranges("the cluster's pods", filter(None, pods)),
        *ranges("the cluster's services", filter(None, services)),
    ]
    return list(dict.fromkeys(found))
