"""The routes to pods in the lab's routers."""

from __future__ import annotations

from typing import Any

from aks_flex_lab.components.pod_routes import NodeRoute, node_route, router_tables
from aks_flex_lab.network import EdgeSite

FACTORY, SHOP = EdgeSite("factory", 10), EdgeSite("shop", 11)


def node(cidr: str = "", *addresses: tuple[str, str]) -> dict[str, Any]:
    status = {"addresses": [{"type": kind, "address": address} for kind, address in addresses]}
    return {"metadata": {"name": "edge-1"}, "spec": {"podCIDR": cidr} if cidr else {}, "status": status}


def test_node_has_a_route_when_it_has_a_pod_cidr_and_an_address() -> None:
    addresses = (("Hostname", "edge-1"), ("InternalIP", "198.18.10.10"))
    assert node_route(node("198.19.1.0/24", *addresses)) == NodeRoute("198.19.1.0/24", "198.18.10.10")
    assert node_route(node("", *addresses)) is None
    assert node_route(node("198.19.1.0/24", ("Hostname", "edge-1"))) is None


def test_wide_area_network_routes_to_the_site_and_the_site_to_its_node() -> None:
    nodes = [NodeRoute("198.19.1.0/24", "198.18.10.10"), NodeRoute("198.19.2.0/24", "198.18.11.12")]

    wan, sites = router_tables([FACTORY, SHOP], nodes)

    assert wan == {"198.19.1.0/24": "198.18.1.10", "198.19.2.0/24": "198.18.1.11"}
    assert sites == {"factory": {"198.19.1.0/24": "198.18.10.10"}, "shop": {"198.19.2.0/24": "198.18.11.12"}}
