"""Creates the lab's network: the cloud, a wide area network and edge sites, each in its own network namespace.

    private ── cloud ── wan ── site ── machine
                            └─ site ── machine, machine

All addresses are from the range for benchmarks (198.18.0.0/15). No link connects the wide area network with the host,
so no packet can leave the lab, and several labs can use the same addresses. The cloud also has the service addresses
of the cluster, so that a pod reaches the API server and DNS without kube-proxy.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aks_flex_lab.errors import LabError
from aks_flex_lab.files import write_atomically
from aks_flex_lab.kernel.namespaces import NetworkNamespace, namespaces_with_prefix
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from aks_flex_lab.layout import LabLayout

DOMAIN = "flex.internal"
RANGE = "198.18.0.0/15"
CLOUD = "198.18.0"
WAN = "198.18.1"
DNS = f"{CLOUD}.2"
API = f"{CLOUD}.10"
REGISTRY = f"{CLOUD}.20"
MIRROR = f"{CLOUD}.30"
AZURE = f"{CLOUD}.40"
PROVIDER = f"{CLOUD}.50"
VPN = f"{CLOUD}.60"
PRIVATE = "198.18.2.0/24"  # the cluster's private network, reachable only over the VPN
PRIVATE_NODES = "198.18.2.0/25"
PRIVATE_DNS = "198.18.2.2"
PRIVATE_API = "198.18.2.10"
PRIVATE_LINK = "private"
VPN_LINK = "vpn"
PODS = "198.19.0.0/17"
SERVICES = "198.19.128.0/20"
API_SERVICE = "198.19.128.1"
DNS_SERVICE = "198.19.128.10"
API_NAME = f"api.{DOMAIN}"
API_URL = f"https://{API_NAME}:443"
PRIVATE_API_NAME = f"private-api.{DOMAIN}"  # resolved only by the DNS server of the private network
PRIVATE_API_URL = f"https://{PRIVATE_API_NAME}:443"
VPN_NAME = f"gateway.vpn.{DOMAIN}"
LOGIN_NAME = f"login.{DOMAIN}"
LOGIN_URL = f"https://{LOGIN_NAME}"
PROVIDER_NAME = f"provider.{DOMAIN}"
MANAGEMENT_NAME = f"management.{DOMAIN}"
MANAGEMENT_URL = f"https://{MANAGEMENT_NAME}"

FIRST_SITE = 10  # the number of a site is the third byte of its addresses
LAST_SITE = 250
FIRST_MACHINE = 10
LAST_MACHINE = 250
ROUTER_MAC = "02:00:c6:12:00:01"  # MAC address of every router; no link connects two of them


@dataclass(frozen=True)
class EdgeSite:
    name: str
    number: int

    @property
    def subnet(self) -> str:
        return f"198.18.{self.number}.0/24"

    @property
    def gateway(self) -> str:
        return f"198.18.{self.number}.1"

    @property
    def uplink(self) -> str:
        return f"{WAN}.{self.number}"

    def address(self, number: int) -> str:
        return f"198.18.{self.number}.{number}"

    def hardware(self, number: int) -> str:
        """The MAC address of a machine, the same at every boot."""
        return f"02:00:c6:12:{self.number:02x}:{number:02x}"


@dataclass(frozen=True)
class LabNetwork:
    """The namespaces of one lab."""

    layout: LabLayout

    @property
    def cloud(self) -> NetworkNamespace:
        return NetworkNamespace(f"{self.layout.prefix}cloud")

    @property
    def wan(self) -> NetworkNamespace:
        return NetworkNamespace(f"{self.layout.prefix}wan")

    def site_namespace(self, site: EdgeSite) -> NetworkNamespace:
        return NetworkNamespace(f"{self.layout.prefix}site-{site.name}")

    def machine_namespace(self, name: str) -> NetworkNamespace:
        return NetworkNamespace(f"{self.layout.prefix}machine-{name}")

    def up(self) -> None:
        """Creates and connects the cloud and the wide area network; completes them after an interrupted command."""
        self.cloud.make()
        _make_router(self.wan, f"{WAN}.1")
        _link(self.wan, "cloud", self.cloud, "eth0")
        self.wan.ip(
            f"addr replace {CLOUD}.1/24 dev cloud", "link set cloud up", f"route replace {SERVICES} dev cloud"
        )
        own = [
            f"addr replace {address}/24 dev eth0" for address in (DNS, API, REGISTRY, MIRROR, AZURE, PROVIDER, VPN)
        ]
        service = [f"addr replace {address}/32 dev eth0" for address in (API_SERVICE, DNS_SERVICE)]
        self.cloud.ip(*own, *service, "link set eth0 up", f"route replace default via {CLOUD}.1")
        self._private_up()
        # As kube-proxy on a node: redirects the service address and the private address to the API server.
        for address in (API_SERVICE, PRIVATE_API):
            match = ("-d", address, "-p", "tcp", "--dport", "443")
            self.cloud.add_iptables_rule("nat", "PREROUTING", *match, "-j", "DNAT", "--to-destination", f"{API}:443")
        for site in self.sites():
            self._site_up(site)

    def _private_up(self) -> None:
        """Creates the private network: addresses in the cloud to which the wide area network has no route."""
        if not self.cloud.has_link(PRIVATE_LINK):
            self.cloud.ip(f"link add {PRIVATE_LINK} type bridge")
        own = [f"addr replace {address}/24 dev {PRIVATE_LINK}" for address in (PRIVATE_DNS, PRIVATE_API)]
        self.cloud.ip(*own, f"link set {PRIVATE_LINK} up")

    def sites(self) -> list[EdgeSite]:
        return [EdgeSite(**json.loads(path.read_text())) for path in sorted(self.layout.sites.glob("*.json"))]

    def site(self, name: str) -> EdgeSite:
        """Returns the site of this name; creates it if it does not exist."""
        record = self.layout.sites / f"{name}.json"
        if record.exists():
            site = EdgeSite(**json.loads(record.read_text()))
        else:
            taken = {json.loads(path.read_text())["number"] for path in self.layout.sites.glob("*.json")}
            site = EdgeSite(name, _free_number(taken, FIRST_SITE, LAST_SITE, "sites"))
            write_atomically(record, json.dumps(asdict(site)))
        self._site_up(site)
        return site

    def _site_up(self, site: EdgeSite) -> None:
        inside, port = self.site_namespace(site), f"site{site.number}"
        _make_router(inside, site.gateway)
        _link(self.wan, port, inside, "uplink")
        self.wan.ip(f"link set {port} master br0 up")
        inside.ip(
            f"addr replace {site.uplink}/24 dev uplink",
            "link set uplink up",
            f"route replace default via {WAN}.1",
        )
        self.wan.ip(f"route replace {site.subnet} via {site.uplink}")

    def connect_machine(self, name: str, site: EdgeSite, number: int) -> NetworkNamespace:
        """Creates an empty network namespace for a machine that boots, and connects it to its site."""
        outside, inside = self.site_namespace(site), self.machine_namespace(name)
        port = machine_port(number)
        outside.remove_link(port)
        inside.remove()
        inside.make()
        outside.ip(
            f"link add {port} type veth peer name eth0 address {site.hardware(number)} netns {inside.name}",
            f"link set {port} master br0 up",
        )
        inside.ip(
            f"addr add {site.address(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {site.gateway}",
        )
        return inside

    def disconnect_machine(self, name: str) -> None:
        self.machine_namespace(name).remove()

    def connect_virtual_machine(self, site: EdgeSite, number: int) -> NetworkNamespace:
        """Creates the tap device of a virtual machine that boots, and returns the namespace in which QEMU uses it."""
        outside, port = self.site_namespace(site), machine_port(number)
        outside.remove_link(port)
        outside.ip(f"tuntap add dev {port} mode tap", f"link set {port} master br0 up")
        return outside

    def disconnect_virtual_machine(self, site: EdgeSite, number: int) -> None:
        self.site_namespace(site).remove_link(machine_port(number))

    def down(self) -> None:
        for namespace in namespaces_with_prefix(self.layout.prefix):
            namespace.remove()


def machine_port(number: int) -> str:
    """The port of a machine on the bridge of its site."""
    return f"port{number}"


def _make_router(namespace: NetworkNamespace, address: str) -> None:
    """Creates a namespace with a bridge and IP forwarding."""
    namespace.make()
    if not namespace.has_link("br0"):
        # Without a fixed MAC address, a bridge uses that of a port, which changes when that machine boots. The other
        # machines of the site then lose their connections for most of a minute.
        namespace.ip(f"link add br0 address {ROUTER_MAC} type bridge")
    namespace.ip(f"addr replace {address}/24 dev br0", "link set br0 up")
    run(*namespace.command("sysctl", "-qw", "net.ipv4.ip_forward=1"))


def _link(one: NetworkNamespace, one_end: str, other: NetworkNamespace, other_end: str) -> None:
    """Creates a veth link between two namespaces; replaces a link whose other end is missing."""
    if one.has_link(one_end) and other.has_link(other_end):
        return
    one.remove_link(one_end)
    other.remove_link(other_end)
    one.ip(f"link add {one_end} type veth peer name {other_end} netns {other.name}")


def _free_number(taken: set[int], first: int, last: int, what: str) -> int:
    for number in range(first, last + 1):
        if number not in taken:
            return number
    raise LabError(
        "lab-addresses-exhausted",
        f"This lab cannot have more {what}: the limit is {last - first + 1}.",
        "Use another site with `--site`, remove machines with `aks-flex-lab machine rm`, or start a second lab.",
    )


def free_machine_number(taken: set[int]) -> int:
    return _free_number(taken, FIRST_MACHINE, LAST_MACHINE, "machines at this site")


def parse_address(text: str) -> tuple[str, int]:
    """Parses ADDR:PORT of an option; argparse reports the error."""
    host, colon, port = text.rpartition(":")
    if not (colon and port.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDR:PORT")
    return host.strip("[]"), int(port)
