"""Plans the removal of what the network of pods left: links, routes, chains, CNI files, kernel settings.

kube-proxy and network plugins run as pods, and remove nothing when their node leaves. A configuration that stays
would take precedence over the network of the next join, and may contain credentials of the cluster. What existed
before the join is in the ledger and is kept. A rebuilt ledger does not have it, except the chains.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.cni import BRIDGE, NETWORK, PLUGINS
from aks_flex_node.agent.preflight.conflict_checks import POD_NETWORK_LINKS
from aks_flex_node.host.actions import Action, Remove, RemoveTree, Run, SetSysctl
from aks_flex_node.host.host import EntryKind, Host
from aks_flex_node.host.system import sysctl_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aks_flex_node.settings.models import NodeConfig

# Chains of the kubelet, kube-proxy and CNI plugins. Other programs use the same prefixes, for example CNI-podman.
CHAIN = re.compile(
    r"CNI-(?:[0-9a-f]{24}|FORWARD|ADMIN|HOSTPORT-\S+|DN-\S+|SN-\S+|ISOLATION-\S+)"
    r"|KUBE-(?:[A-Z]+(?:-[A-Z]+)*|(?:SEP|SVC|SVL|EXT|FW|XLB)-[A-Z0-9]+)"
)
FAMILIES = ("iptables", "ip6tables")
ROUTE_COMMANDS = {"ip": ("ip", "-j", "route", "show"), "ip6": ("ip", "-j", "-6", "route", "show")}
PROXY_TABLE = "kube-proxy"  # of nftables
# What kube-proxy sets by default, and nothing else changes back.
PROXY_SETTINGS = {
    "net.ipv4.conf.all.route_localnet": "1",
    "net.netfilter.nf_conntrack_tcp_timeout_established": "86400",
    "net.netfilter.nf_conntrack_tcp_timeout_close_wait": "3600",
}
LOCK = "/run/xtables.lock"  # of iptables; the kubelet creates it for kube-proxy
DPKG_SEARCH = ("dpkg-query", "--search")
NO_PACKAGE = 1  # its exit code if no package has the file
# Marks of routes that no network plugin adds, but the kernel, the configuration of the network, or a routing daemon.
OTHER_PROTOCOLS = frozenset("kernel static dhcp ra redirect zebra bgp ospf isis rip eigrp babel keepalived".split())
NODES_BITS = 8  # routes to the pods of other nodes are to networks that differ from this node's in these bits only
ROUTES = 500  # of a machine with more, a router, none is recorded, and none removed
OWN_NAMES = frozenset((NETWORK, *PLUGINS))  # the component removes them, and restores what was there

Found = dict[str, list[str]]


def existing_names(host: Host, config: NodeConfig) -> Found:
    """Returns what exists before the join, by kind, so that unbootstrap keeps it."""
    if not host.live:
        return {}
    chains = {family: sorted(set(_chains(host.query(f"{family}-save").out))) for family in FAMILIES}
    settings = {key: host.read(sysctl_path(key)) for key in PROXY_SETTINGS}
    routes = [str(route["dst"]) for family in ROUTE_COMMANDS for route in _routes(host, family)]
    return {
        **{family: names for family, names in chains.items() if names},
        "links": _links(host),
        **({"routes": routes} if len(routes) <= ROUTES else {}),
        "nftables": _proxy_tables(host),
        "files": [path for path in (*_network_files(host, _directories(config)), LOCK) if host.stat(path)],
        "directories": list(_directories(config)),
        "settings": [f"{key}={value.decode().strip()}" for key, value in settings.items() if value is not None],
    }


def network_removal(
    host: Host, config: NodeConfig, found: Mapping[str, Sequence[str]], pod_cidr: str
) -> Iterator[Action]:
    """Removes the chains of pods, and what appeared since the join."""
    if "routes" in found:
        yield from _route_removal(host, found["routes"], pod_cidr)  # before the links, with which they disappear
    if "links" in found:
        yield from _link_removal(host, found["links"])
    saved = {family: host.query(f"{family}-save").out for family in FAMILIES}
    scripts = {family: chain_removal_script(saved[family], found.get(family, ())) for family in FAMILIES}
    for family, script in scripts.items():
        if script:
            yield Run((f"{family}-restore", "--noflush"), f"remove pod chains from {family}", script.encode())
    if "files" not in found:
        return  # a rebuilt ledger does not say what existed
    if any(scripts.values()) and LOCK not in found["files"]:
        yield Remove(LOCK)  # not without chains: any other program may create it again at any time
    for table in _proxy_tables(host):
        if table not in found.get("nftables", ()):
            yield Run(("nft", "delete", "table", *table.split()), f"remove table {table} from nftables")
    yield from _setting_removal(host, found.get("settings", ()))
    directories = [one for one in _directories(config) if one in found.get("directories", ())]
    yield from _file_removal(host, directories, found["files"])


def bridge_removal(host: Host) -> Iterator[Action]:
    """Removes the agent's own bridge."""
    if BRIDGE in _links(host):
        yield link_removal(BRIDGE)


def link_removal(name: str) -> Action:
    return Run(("ip", "link", "delete", name), f"remove network interface {name}", about=name)


def _link_removal(host: Host, found: Sequence[str]) -> Iterator[Action]:
    removed: set[str] = set()
    for name in _links(host):
        if name == BRIDGE or name in found:
            continue
        if _base_link(host, name) not in removed:  # the other end of a pair disappears with the first one
            yield link_removal(name)
        removed.add(name)


def _base_link(host: Host, name: str) -> str:
    """Returns the link that a link is on, or the other end of a pair."""
    shown = json.loads(host.query("ip", "-j", "link", "show").out or "[]")
    return next((str(link.get("link", "")) for link in shown if link.get("ifname") == name), "")


def _links(host: Host) -> list[str]:
    shown = json.loads(host.query("ip", "-j", "link", "show").out or "[]")
    return [name for link in shown if (name := str(link.get("ifname", ""))) in POD_NETWORK_LINKS]


def _routes(host: Host, family: str) -> list[dict[str, Any]]:
    return [route for route in json.loads(host.query(*ROUTE_COMMANDS[family]).out or "[]") if "dst" in route]


def _route_removal(host: Host, found: Sequence[str], pod_cidr: str) -> Iterator[Action]:
    """Removes routes to the pods of other nodes. Routes of the network's configuration, and to others, are kept."""
    try:
        own = ipaddress.ip_network(pod_cidr, strict=False)
    except ValueError:  # it is not known, or damaged
        return
    family = "ip6" if own.version == 6 else "ip"
    for route in _routes(host, family):
        destination, gateway = str(route["dst"]), str(route.get("gateway", ""))
        of_plugin = route.get("protocol") not in OTHER_PROTOCOLS
        if gateway and of_plugin and destination not in found and _is_of_a_node(destination, own):
            delete = ("ip", *(("-6",) if family == "ip6" else ()), "route", "delete", destination)
            yield Run((*delete, "via", gateway), f"remove the route to pods {destination}", about=destination)


def _is_of_a_node(destination: str, own: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    """Returns whether a destination can be the pod CIDR of another node of the cluster."""
    try:
        network = ipaddress.ip_network(destination)
    except ValueError:  # for example "default"
        return False
    around = own.supernet(prefixlen_diff=min(NODES_BITS, own.prefixlen))
    return network.version == own.version and network.prefixlen == own.prefixlen and network.subnet_of(around)  # type: ignore[arg-type]


def _setting_removal(host: Host, found: Sequence[str]) -> Iterator[Action]:
    for key, _, before in (one.partition("=") for one in found):
        present = (host.read(sysctl_path(key)) or b"").decode().strip() if key in PROXY_SETTINGS else ""
        if before and present != before and present == PROXY_SETTINGS.get(key):
            yield SetSysctl(key, before)


def _directories(config: NodeConfig) -> tuple[str, str]:
    return config.paths.cni.conf_dir, config.paths.cni.bin_dir


def _network_files(host: Host, directories: Sequence[str]) -> list[str]:
    """Returns the CNI configurations and programs that are not the agent's."""
    return [f"{folder}/{name}" for folder in directories for name in host.list_dir(folder) if name not in OWN_NAMES]


def _file_removal(host: Host, directories: Sequence[str], found: Sequence[str]) -> Iterator[Action]:
    for path in _network_files(host, directories):
        entry = host.stat(path)
        renamed = any(path.startswith(f"{one}.") for one in found)  # as Cilium does with configurations that it finds
        if entry is None or path in found or renamed or host.query(*DPKG_SEARCH, path).code != NO_PACKAGE:
            continue  # for example the network of podman, when its package was installed later
        yield RemoveTree(path) if entry.kind is EntryKind.DIRECTORY else Remove(path)


def _proxy_tables(host: Host) -> list[str]:
    """Returns the family and name of the tables of kube-proxy in nftables."""
    shown = host.query("nft", "list", "tables").out
    return [line.removeprefix("table ") for line in shown.splitlines() if line.split()[2:] == [PROXY_TABLE]]


def _chains(saved: str) -> list[str]:
    return [one[1] for one in re.finditer(r"(?m)^:(\S+) ", saved) if CHAIN.fullmatch(one[1])]


def chain_removal_script(saved: str, found: Sequence[str] = ()) -> str:
    """Returns input for `iptables-restore --noflush` that removes only the chains of the kubelet and CNI plugins."""
    script: list[str] = []
    for table in re.split(r"(?m)^(?=\*)", saved):
        name = table.partition("\n")[0]
        chains = [chain for chain in _chains(table) if chain not in found]
        rules = [line for line in table.splitlines() if line.startswith("-A ") and _jumps_to(line, chains)]
        if not chains:
            continue
        script += [name, *(f":{chain} - [0:0]" for chain in chains)]
        script += [f"-D {rule.removeprefix('-A ')}" for rule in rules]
        script += [*(f"-X {chain}" for chain in chains), "COMMIT"]
    return "".join(f"{line}\n" for line in script)


def _jumps_to(rule: str, chains: list[str]) -> bool:
    """Returns whether a rule of another chain jumps to one of these chains."""
    arguments = rule.split()
    target = next((arguments[at + 1] for at, flag in enumerate(arguments[:-1]) if flag in {"-j", "-g"}), "")
    return target in chains and arguments[1] not in chains
