"""The node's bridge network steps back when the cluster's network plugin has installed its configuration."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.components import cni
from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.host.actions import Remove, Run
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import desired

SPEC = desired(cni, pod_cidr="198.19.1.0/24")
ALLOCATIONS = "/var/lib/cni/networks/aks-flex-node"
CONTAINER = "0123abcd" * 8
POD = {
    f"{ALLOCATIONS}/198.19.1.2": f"{CONTAINER}\r\neth0",
    f"{ALLOCATIONS}/last_reserved_ip.0": "198.19.1.2",
    f"{ALLOCATIONS}/lock": "",
    f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{CONTAINER}/init.pid": "4711",
}
NETWORK = '{"name": "podnet", "plugins": [{"type": "ptp"}]}'
PLUGIN = {"/etc/cni/net.d/10-podnet.conflist": NETWORK}
PODMAN = "/etc/cni/net.d/87-podman-bridge.conflist"


def steps(files: dict[str, str]) -> list[Run | Remove]:
    links = '[{"ifname": "flex0"}]' if files.keys() & POD.keys() else "[]"
    answers: dict[tuple[str, ...], CommandResult] = {
        ("ip", "-j", "link", "show", "type", "bridge"): CommandResult(0, links),
        ("dpkg-query", "--search", PODMAN): CommandResult(0, f"podman: {PODMAN}"),
    }
    facts = cni.observe(RecordedHost(files, answers), SPEC, OwnedResources())
    return [
        one
        for one in cni.plan(SPEC, facts)
        if isinstance(one, Run) or (isinstance(one, Remove) and one.path.startswith(ALLOCATIONS))
    ]


def test_pods_on_the_bridge_are_restarted_when_a_plugin_is_installed() -> None:
    kill, forget, bridge = steps({**POD, **PLUGIN})

    assert isinstance(kill, Run)
    assert kill.argv[-2:] == ("4711", CONTAINER)
    assert "198.19.1.2" in kill.why
    assert forget == Remove(f"{ALLOCATIONS}/198.19.1.2")
    assert isinstance(bridge, Run)
    assert bridge.argv == ("ip", "link", "delete", "flex0")
    assert kill.subject == bridge.subject == "flex0"


def test_address_of_a_pod_that_has_exited_is_only_forgotten() -> None:
    gone = {path: text for path, text in POD.items() if not path.endswith("init.pid")}

    forget, bridge = steps({**gone, **PLUGIN})

    assert isinstance(forget, Remove)
    assert isinstance(bridge, Run)


@pytest.mark.parametrize("address", [" \n", "\0" * 64, "../../../../../tmp/x", CONTAINER[:-1]])
def test_damaged_address_file_is_only_removed(address: str) -> None:
    """Attack or power loss: the file does not name a container."""
    forget, bridge = steps({**POD, **PLUGIN, f"{ALLOCATIONS}/198.19.1.2": address})

    assert forget == Remove(f"{ALLOCATIONS}/198.19.1.2")
    assert isinstance(bridge, Run)


@pytest.mark.parametrize("process", ["", "not a number", "-1", "\u00b2"])
def test_damaged_process_file_kills_nothing(process: str) -> None:
    damaged = {path: process if path.endswith("init.pid") else text for path, text in POD.items()}
    assert [one for one in steps({**damaged, **PLUGIN}) if isinstance(one, Run)] == [
        Run(("ip", "link", "delete", "flex0"), "remove network interface flex0", about="flex0")
    ]


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"/etc/cni/net.d/99-z-later.conflist": "{}"},
        {"/etc/cni/net.d/10-plugin.conflist.new": "{}"},
        {"/etc/cni/net.d/10-plugin.conflist": '{"plugins": [{"type"'},
        {"/etc/cni/net.d/10-plugin.conflist": "{}"},
        {"/etc/cni/net.d/00-multus.conf": '{"delegates": [{"name": "aks-flex-node"}]}'},
        {PODMAN: NETWORK},
    ],
    ids=[
        *("no plugin", "a later file", "an incomplete file", "a half-written file", "an empty network"),
        *("a plugin that includes the bridge", "a network of a package"),
    ],
)
def test_pods_stay_on_the_bridge_while_it_is_their_network(files: dict[str, str]) -> None:
    assert steps({**POD, **files}) == []


def test_node_without_pods_on_the_bridge_needs_nothing() -> None:
    assert steps(PLUGIN) == []
