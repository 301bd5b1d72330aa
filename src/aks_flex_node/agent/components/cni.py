"""The CNI component: plugins, and a bridge network for the pods of this node until the cluster installs its own.

The network uses the pod CIDR that the cluster assigned to this node. Its file sorts last in the directory, and
containerd uses the first one, so the configuration of the cluster's network plugin takes precedence.

Pods that started before the plugin was there stay on the bridge. The plugin does not know them: it may assign their
addresses to other pods, and its rules do not apply to them. They are restarted when the plugin's configuration
appears, and the bridge is removed.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import ArtifactFile
from aks_flex_node.agent.components.artifact_urls import release
from aks_flex_node.agent.reconcile import observer, planner
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, File, ProgramTree, RuntimePath, Spec, Symlink
from aks_flex_node.host.actions import Action, Remove, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.ledger import OwnedResources
    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig

NETWORK = "99-aks-flex-node.conflist"
NETWORK_NAME = "aks-flex-node"
BRIDGE = "flex0"
CONFIGURATIONS = (".conf", ".conflist", ".json")
TASKS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"  # a directory for each container that runs
CONTAINER_ID = re.compile(rb"[0-9a-f]{64}")
# The kubelet restarts a pod whose sandbox has exited, and containerd attaches it to the network that is first now.
# The process may have exited since it was observed, and another one may have its ID: its control group tells.
KILL = ("sh", "-c", 'if grep -qs -- "$2" "/proc/$1/cgroup"; then kill -KILL "$1" || true; fi', "sh")
PLUGINS = (
    "bandwidth bridge dhcp dummy firewall host-device host-local ipvlan loopback macvlan portmap ptp sbr static tap"
    " tuning vlan vrf"
).split()


def desired(config: NodeConfig, machine: Machine) -> Spec:
    version, paths = config.cni.version, config.paths
    directory = f"{paths.install_dir}/cni/{version}"
    files = (ArtifactFile(name, f"bin/{name}") for name in PLUGINS)
    networks = (File(f"{paths.cni.conf_dir}/{NETWORK}", network(machine.pod_cidr), watch_directory=True),)
    return Spec(
        (
            Directory(f"{paths.install_dir}/cni", ours=True),
            Directory(paths.cni.bin_dir),
            RuntimePath(paths.cni.lib_dir, is_directory=True),
            ProgramTree(directory, "cni", version, (release("cni", config.cni, machine.arch, "vav", *files),)),
            # One link per plugin, because the cluster's network plugin installs programs in the same directory.
            *(Symlink(f"{paths.cni.bin_dir}/{name}", f"{directory}/bin/{name}") for name in PLUGINS),
            *(networks if config.cni.bridge and machine.pod_cidr else ()),
        )
    )


def observe(host: Host, spec: Spec, owned: OwnedResources) -> Facts:
    """Observes also the pods on the bridge, while the configuration of another network takes precedence."""
    facts = observer.observe(host, spec, owned)
    if not host.live or not _is_replaced(host, spec):
        return facts
    folder = next(f"{one.path}/networks/{NETWORK_NAME}" for one in spec.resources if isinstance(one, RuntimePath))
    sandboxes = {path: host.read(path) for name in host.list_dir(folder) if (path := _address_file(folder, name))}
    processes = [_process_file(sandbox) for sandbox in sandboxes.values()]
    # Not in /sys, where a container may see the bridges of another machine.
    shown = host.query("ip", "-j", "link", "show", "type", "bridge").out
    return replace(
        facts,
        contents={**facts.contents, **sandboxes, **{path: host.read(path) for path in processes}},
        bridges=tuple(str(link.get("ifname", "")) for link in json.loads(shown or "[]")),
    )


def _is_replaced(host: Host, spec: Spec) -> bool:
    """Returns whether containerd uses another network: its configuration sorts first, and does not include this one.

    A plugin that adds networks to pods, as Multus does, includes the configuration that it found.
    """
    own = next((one.path for one in spec.resources if isinstance(one, File)), "")
    folder, _, own_name = own.rpartition("/")
    names = [name for name in host.list_dir(folder) if name.endswith(CONFIGURATIONS) and name < own_name]
    contents = {f"{folder}/{name}": host.read(f"{folder}/{name}") or b"" for name in names}
    if not own or any(NETWORK_NAME.encode() in content for content in contents.values()):
        return False
    return any(
        _is_network(content) and not host.query("dpkg-query", "--search", path).ok
        for path, content in contents.items()
    )


def _is_network(content: bytes) -> bool:
    """Returns whether a configuration is complete: its plugin may be writing it."""
    try:
        document = json.loads(content)
    except ValueError:
        return False
    return isinstance(document, dict) and bool(document.get("plugins") or document.get("type"))


def _address_file(folder: str, name: str) -> str:
    """Returns the file in which the IPAM plugin records who has an address; empty for its other files."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return ""
    return f"{folder}/{name}"


def _container_id(sandbox: bytes | None) -> str:
    """Returns the container ID in an address file, its first word; empty if the file is damaged."""
    found = CONTAINER_ID.match(sandbox or b"")
    return found[0].decode() if found else ""


def _process_file(sandbox: bytes | None) -> str:
    """Returns the file with the process ID of a sandbox."""
    return f"{TASKS}/{_container_id(sandbox)}/init.pid"


def plan(spec: Spec, facts: Facts) -> Iterator[Action]:
    yield from planner.plan(spec, facts)
    for path, sandbox in facts.contents.items():
        if f"/networks/{NETWORK_NAME}/" not in path:
            continue
        container = _container_id(sandbox)
        process = (facts.contents.get(_process_file(sandbox)) or b"").decode(errors="replace").strip()
        if container and process.isdecimal() and process.isascii():
            why = f"restart the pod with address {path.rpartition('/')[2]}, which is not on the cluster's network"
            yield Run((*KILL, process, container), why, about=BRIDGE)
        yield Remove(path)
    if BRIDGE in facts.bridges:
        yield Run(("ip", "link", "delete", BRIDGE), f"remove network interface {BRIDGE}", about=BRIDGE)


def network(cidr: str) -> bytes:
    """Renders a bridge network with masquerading for the pod CIDR."""
    everywhere = "::/0" if cidr and ipaddress.ip_network(cidr).version == 6 else "0.0.0.0/0"
    ranges = [[{"subnet": cidr}]]
    plugins = [
        {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": everywhere}]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall"},
    ]
    document = {"cniVersion": "1.0.0", "name": NETWORK_NAME, "plugins": plugins}
    return (json.dumps(document, indent=2) + "\n").encode()


def subnet(content: bytes | None) -> str:
    """Returns the pod CIDR in a network file of the agent; empty when there is none."""
    try:
        return str(json.loads(content or b"")["plugins"][0]["ipam"]["ranges"][0][0]["subnet"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


COMPONENT = Component(
    "cni", "CNI plugins and the node's network", desired, observe=observe, plan=plan, reapply_after_join=True
)
