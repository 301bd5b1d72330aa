"""Keeps the lab's routers informed about pods, as a cloud's route controller does: `python -m …pod_routes`.

It watches the Nodes of the cluster and adds the way to the pod CIDR of each to the wide area network and to the
router of the node's site. Pods of different sites, and the API server, reach a pod without address translation.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.components.control_plane import watch_api
from aks_flex_lab.errors import ComponentError
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.network import EdgeSite, LabNetwork
from aks_flex_lab.processes import run
from aks_flex_lab.supervisor import LabComponent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.layout import LabLayout

POD_ROUTES = "pod-routes"
PROTOCOL = "74"  # marks the routes of this program, so that it removes only its own
WATCH_SECONDS = 300
RETRY_SECONDS = 2

Routes = dict[str, str]  # the gateway of each pod CIDR


def pod_routes_component(layout: LabLayout) -> LabComponent:
    argv = (sys.executable, "-m", "aks_flex_lab.components.pod_routes", f"--lab={layout.name}")
    return LabComponent(POD_ROUTES, argv, "-", lambda: True)


@dataclass(frozen=True)
class NodeRoute:
    """The pod CIDR of a node, and the address of the node."""

    cidr: str
    address: str


def node_route(node: Mapping[str, Any]) -> NodeRoute | None:
    """Returns the route to the pods of a Node; None before it has a pod CIDR and an address."""
    cidr = node.get("spec", {}).get("podCIDR")
    addresses = node.get("status", {}).get("addresses", [])
    internal = [each["address"] for each in addresses if each["type"] == "InternalIP"]
    return NodeRoute(cidr, internal[0]) if cidr and internal else None


def router_tables(sites: Iterable[EdgeSite], nodes: Iterable[NodeRoute]) -> tuple[Routes, dict[str, Routes]]:
    """Returns the routes of the wide area network, and those of each site."""
    wan: Routes = {}
    known = list(sites)
    below: dict[str, Routes] = {site.name: {} for site in known}
    for node in nodes:
        for site in known:
            if ipaddress.ip_address(node.address) in ipaddress.ip_network(site.subnet):
                wan[node.cidr] = site.uplink
                below[site.name][node.cidr] = node.address
    return wan, below


def apply_routes(router: NetworkNamespace, desired: Routes) -> None:
    shown = run("ip", "-n", router.name, "-json", "route", "show", "proto", PROTOCOL).out
    present = {each["dst"]: each["gateway"] for each in json.loads(shown or "[]")}
    router.ip(
        *(f"route del {cidr} proto {PROTOCOL}" for cidr in present if cidr not in desired),
        *(
            f"route replace {cidr} via {gateway} proto {PROTOCOL}"
            for cidr, gateway in desired.items()
            if present.get(cidr) != gateway
        ),
    )


@dataclass(frozen=True)
class RouteController:
    layout: LabLayout

    def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, ComponentError):
                self._follow_nodes()
            time.sleep(RETRY_SECONDS)

    def _follow_nodes(self) -> None:
        """Follows the Nodes until the watch ends, which begins with all that exist."""
        nodes: dict[str, NodeRoute] = {}
        for event in watch_api(self.layout, "/api/v1/nodes?watch=1", WATCH_SECONDS):
            node = event["object"]
            route = None if event["type"] == "DELETED" else node_route(node)
            before = dict(nodes)
            nodes.pop(node["metadata"]["name"], None)
            if route:
                nodes[node["metadata"]["name"]] = route
            if nodes != before:
                lab_network = LabNetwork(self.layout)
                sites = lab_network.sites()
                wan, below = router_tables(sites, nodes.values())
                apply_routes(lab_network.wan, wan)
                for site in sites:
                    apply_routes(lab_network.site_namespace(site), below[site.name])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lab", required=True)
    RouteController(lab_layout(parser.parse_args().lab)).run()


if __name__ == "__main__":
    main()
