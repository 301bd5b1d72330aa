"""Tests of overlapping address ranges: reported before anything is created."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.agent.vpn.virtual_network import (
    IPv4Range,
    check_overlaps,
    cluster_ranges,
    free_subnet,
    host_ranges,
    used_ranges,
)
from aks_flex_node.errors import ConfigError, MachineError

POOL = IPv4Range("192.168.100.0/24")
BEYOND = used_ranges("the network in Azure", ["10.1.0.0/16"])
CLUSTER = cluster_ranges(
    {"networkProfile": {"podCidr": "10.244.0.0/16", "serviceCidrs": ["10.0.0.0/16", "fd00::/64"]}}
)
ADDRESSES = json.dumps(
    [
        {
            "ifname": "lo",
            "flags": ["LOOPBACK"],
            "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}],
        },
        {"ifname": "eth0", "addr_info": [{"family": "inet", "local": "192.168.1.7", "prefixlen": 24}]},
        {"ifname": "flexvpn0", "addr_info": [{"family": "inet", "local": "192.168.100.2", "prefixlen": 24}]},
    ]
)
ROUTES = json.dumps([{"dst": "default", "dev": "eth0"}, {"dst": "172.20.0.0/16", "dev": "eth0"}])
OURS = frozenset({"flexvpn0"})


def test_host_ranges_are_addresses_and_routes_without_the_tunnel() -> None:
    found = host_ranges(ADDRESSES, ROUTES, OURS)
    assert [str(one.network) for one in found] == ["192.168.1.0/24", "172.20.0.0/16"]


@pytest.mark.parametrize("text", ["", "no json", "{}", "[1]"])
def test_host_ranges_are_empty_for_unreadable_output(text: str) -> None:
    assert host_ranges(text, text, OURS) == []


def test_client_pool_without_overlap_is_accepted() -> None:
    check_overlaps(POOL, BEYOND, CLUSTER, host_ranges(ADDRESSES, ROUTES, OURS))


@pytest.mark.parametrize(
    ("pool", "who"),
    [
        ("192.168.1.128/25", r"this machine's network 192\.168\.1\.0/24 \(eth0\)"),
        ("172.20.5.0/24", r"this machine's route to 172\.20\.0\.0/16"),
        ("10.1.7.0/24", r"the network in Azure 10\.1\.0\.0/16"),
        ("10.244.9.0/24", r"the cluster's pods 10\.244\.0\.0/16"),
        ("10.0.0.0/24", r"the cluster's services 10\.0\.0\.0/16"),
    ],
)
def test_overlapping_client_pool_is_refused_with_the_conflicting_network(pool: str, who: str) -> None:
    with pytest.raises(ConfigError, match=who) as caught:
        check_overlaps(IPv4Range(pool), BEYOND, CLUSTER, host_ranges(ADDRESSES, ROUTES, OURS))
    assert caught.value.name == "vpn-pool-overlaps"


def test_cluster_network_overlapping_a_local_network_is_refused() -> None:
    with pytest.raises(MachineError, match=r"192\.168\.0\.0/16.*192\.168\.1\.0/24") as caught:
        check_overlaps(
            IPv4Range("172.31.0.0/24"),
            used_ranges("it", ["192.168.0.0/16"]),
            [],
            host_ranges(ADDRESSES, ROUTES, OURS),
        )
    assert caught.value.name == "vpn-network-overlaps"


@pytest.mark.parametrize(
    ("space", "taken", "free"),
    [
        (["10.1.0.0/24"], ["10.1.0.0/25"], "10.1.0.224/27"),
        (["10.1.0.0/24"], ["10.1.0.0/25", "10.1.0.192/26"], "10.1.0.160/27"),
        (["10.1.0.0/25", "10.2.0.0/16"], ["10.1.0.0/25"], "10.2.255.224/27"),
        (["10.1.0.0/24"], ["10.1.0.0/24"], None),
        (["10.1.0.0/28"], [], None),
        (["10.0.0.0/8"], ["10.128.0.0/9"], "10.127.255.224/27"),
    ],
)
def test_free_subnet_is_found_from_the_end_of_the_address_space(
    space: list[str], taken: list[str], free: str | None
) -> None:
    found = free_subnet(space, taken)
    assert (str(found) if found else None) == free
