"""Joins machines through a flex node pool of the lab's AKS: by its ID with an identity, and by bootstrap data as `az`
prints it. Each leaves the machine unchanged.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import node_agent
from aks_flex_lab.arm.flex_pools.model import FlexPoolStore, PoolTimings
from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.components.resource_provider import LOCATION, OWNER_ROLE_ID, RESOURCE_GROUP_ID
from aks_flex_lab.pools import LabPools, pool_id
from aks_flex_lab.versions import NodeVersions
from aks_flex_node.azure.roles import FLEX_NODE_AGENT
from tests.agents import differences, flex, install_agent
from tests.lab_azure import COPIES, arc_machine, azure_settings, roles_of, sort_packages
from tests.remedies.catalogue import advice
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

POOL = "edge"
CONTRIBUTOR_ROLE = "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8"
STORED = "/var/lib/aks-flex-node/current-config.json"
LOCKED = 7  # exit code
READS = "Reading the bootstrap data"
AKS_LABELS = {
    "kubernetes.azure.com/agentpool": POOL,
    "kubernetes.azure.com/managed": "false",
    "kubernetes.azure.com/mode": "user",
    "kubernetes.azure.com/nodepool-type": "FlexNodes",
}
OWN, BASE, SECRET = "/root/own.json", "/root/base-config.json", "/root/secret"


@pytest.fixture(scope="module")
def pools(lab: Lab) -> Iterator[LabPools]:
    """Yields the lab's flex node pools, with one for these tests."""
    found = LabPools(lab)
    settings = {"orchestratorVersion": NodeVersions().kubernetes, "maxPods": 60, "nodeLabels": {"site": "north"}}
    found.put(POOL, {**settings, "nodeTaints": ["edge=yes:PreferNoSchedule"]})
    yield found
    for machine in found.machines(POOL):
        found.delete_machines(POOL, [machine["name"]])
    found.delete(POOL)


def prepare(lab: Lab, machine: EdgeMachine, **azure: Any) -> None:
    """Installs the agent, and writes a file with an identity and with the endpoints of the lab's Azure."""
    install_agent(machine)
    document = {"azure": azure_settings(lab, **azure), "npd": {"version": NodeVersions().npd}}
    node_agent.write_configuration(machine, document, OWN)


def names(pools: LabPools) -> list[str]:
    return [each["name"] for each in pools.machines(POOL)]


def stored(machine: EdgeMachine) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(machine.run("cat", STORED).out)
    return document


def leave(machine: EdgeMachine) -> str:
    done = flex(machine, "unbootstrap", "--yes")
    return f"{done.out}{done.err}"


def expired_data(lab: Lab, pools: LabPools) -> dict[str, Any]:
    """Returns bootstrap data whose token has expired."""
    store = FlexPoolStore(lab.azure.state)
    store.set_timings(PoolTimings(token_seconds=-60))
    try:
        return pools.bootstrap_data(POOL)
    finally:
        store.set_timings(PoolTimings())


def printed_options(text: str, action: str) -> dict[str, str]:
    """Returns the options of the `az aks nodepool` command that a text contains. They must select the pool."""
    found = re.search(rf"az aks nodepool {action} ([^`>\n]+)", text)
    assert found, text
    words = shlex.split(found[1])
    options = dict(zip(words[::2], words[1::2], strict=True))
    named = [options.pop(f"--{name}") for name in ("subscription", "resource-group", "cluster-name", "name")]
    subscription, group, _, cluster, pool = pool_id(POOL).split("/")[2::2]
    assert named == [subscription, group, cluster, pool]
    return options


@pytest.mark.promise
@pytest.mark.remedy("aks-pool-changed")
def test_service_principal_joins_a_pool_by_its_id(lab: Lab, pools: LabPools, add_machine: Add) -> None:
    machine, other = add_machine("pool-sp"), add_machine("pool-other")
    principal = lab.azure.directory.service_principal("pool-sp", "right")
    lab.azure.assignments.put(pool_id(POOL), FLEX_NODE_AGENT.id, principal.object_id)
    for each in (machine, other):
        each.run("sh", "-c", f"umask 077; printf right >{SECRET}")
        prepare(lab, each, servicePrincipal={"clientId": principal.client_id, "clientSecretFile": SECRET})
    before, before_other = machine.snapshot(), other.snapshot()

    joined = flex(machine, "agent", "--aks-pool", pool_id(POOL), "--config", OWN, "--set", "node.labels.rack=7")
    assert READS in joined.err
    node = lab.cluster.get("node", machine.name)
    assert node
    assert node["metadata"]["labels"].items() >= {"site": "north", "rack": "7", **AKS_LABELS}.items()
    assert node["status"]["allocatable"]["pods"] == "60"
    registered = pools.machine(POOL, machine.name)["properties"]
    assert registered["provisioningState"] == "Succeeded"
    assert registered["kubernetes"]["nodeLabels"].items() >= {"site": "north", "rack": "7"}.items()

    document = stored(machine)
    assert document["configVersion"] == registered["eTag"]
    assert "bootstrapToken" not in document["config"]["azure"]
    token = re.search(r"[a-z0-9]{6}\.[a-z0-9]{16}", machine.run("cat", "/var/lib/kubelet/bootstrap-kubeconfig").out)
    assert token
    found = machine.run("grep", "-rlF", token[0], "/etc", "/var", "/run", "/root", "/opt", check=False).out.split()
    assert found == ["/var/lib/kubelet/bootstrap-kubeconfig"]

    # Another machine with this name is refused, and is not changed.
    words = ("agent", "--aks-pool", pool_id(POOL), "--config", OWN, "--set", f"node.name={machine.name}")
    refused = flex(other, *words, check=False)
    assert "machine-on-another-host" in refused.err
    assert differences(before_other, other) == []

    # A node changes neither its pool nor its Machine.
    moved = flex(machine, "agent", "--aks-pool", pool_id("elsewhere"), "--config", OWN, check=False)
    assert "aks-pool-changed" in moved.err
    advice("aks-pool-changed", "Run the command with the node's own pool.")
    renamed = ("--aks-pool", pool_id(POOL), "--config", OWN, "--set", "aks.machineName=another")
    assert "machine-changed" in flex(machine, "agent", *renamed, check=False).err

    # The same command again needs neither a new token nor a new registration.
    again = flex(machine, "agent", "--aks-pool", pool_id(POOL), "--config", OWN, "--set", "node.labels.rack=7")
    assert READS not in again.err
    assert pools.machine(POOL, machine.name)["properties"]["eTag"] == registered["eTag"]
    assert flex(machine, "verify", check=False).ok

    # The role of a node does not delete Machines, so the command for an administrator is printed.
    options = printed_options(leave(machine), "delete-machines")
    assert machine.name in names(pools)
    pools.delete_machines(POOL, [options.pop("--machine-names")])
    assert options == {}
    until(lambda: lab.cluster.get("node", machine.name) is None, "AKS deletes the Node of the deleted Machine")
    assert left_over(before, machine) == []


def left_over(before: Any, machine: EdgeMachine) -> list[str]:
    """Returns what differs from a snapshot, except for the files that the test itself wrote."""
    return [
        one for one in differences(before, machine) if not any(f"'{file}'" in one for file in (OWN, BASE, SECRET))
    ]


def test_identity_replaces_an_expired_token_and_deletes_its_machine(
    lab: Lab, pools: LabPools, add_machine: Add
) -> None:
    machine = add_machine("pool-vm")
    identity = lab.azure.directory.managed_identity("pool-vm", "/subscriptions/lab/identities/pool-vm")
    lab.azure.metadata.assign_identities(machine, identity)
    lab.azure.assignments.put(pool_id(POOL), CONTRIBUTOR_ROLE, identity.object_id)
    prepare(lab, machine, managedIdentity={})
    node_agent.write_configuration(machine, expired_data(lab, pools), BASE)
    before = machine.snapshot()

    joined = flex(machine, "agent", "--config", BASE, "--config", OWN)
    assert READS in joined.err
    assert machine.name in names(pools)
    said = leave(machine)
    assert "az aks nodepool delete-machines" not in said
    assert "kubectl delete node" not in said
    assert machine.name not in names(pools)
    until(lambda: lab.cluster.get("node", machine.name) is None, "AKS deletes the Node of the deleted Machine")
    assert left_over(before, machine) == []


def test_printed_bootstrap_data_joins_a_machine_without_an_identity(
    lab: Lab, pools: LabPools, add_machine: Add
) -> None:
    machine = add_machine("pool-file")
    prepare(lab, machine)
    before = machine.snapshot()
    node_agent.write_configuration(machine, expired_data(lab, pools), BASE)
    refused = flex(machine, "agent", "--config", BASE, "--config", OWN, check=False)
    assert "The API server rejects the bootstrap token" in refused.err
    assert printed_options(refused.err, "get-bootstrap-data") == {}
    assert "> base-config.json`" in refused.err
    assert left_over(before, machine) == []

    # The command of the message writes new data.
    node_agent.write_configuration(machine, pools.bootstrap_data(POOL), BASE)
    done = flex(machine, "agent", "--config", BASE, "--config", OWN)
    assert "has no Azure identity" in done.err
    assert machine.name not in names(pools)
    node = lab.cluster.get("node", machine.name)
    assert node
    assert node["metadata"]["labels"].items() >= {"site": "north", **AKS_LABELS}.items()
    document = stored(machine)
    assert "bootstrapToken" not in document["config"]["azure"]
    assert document["config"]["azure"]["targetAgentPoolName"] == POOL
    leave(machine)
    assert left_over(before, machine) == []


def test_arc_machine_joins_a_pool_and_gets_its_role(lab: Lab, pools: LabPools, add_machine: Add) -> None:
    machine = add_machine("pool-arc")
    operator = lab.azure.directory.service_principal("pool-operator", "right")
    lab.azure.assignments.put(RESOURCE_GROUP_ID, OWNER_ROLE_ID, operator.object_id)
    machine.run("sh", "-c", f"umask 077; printf right >{SECRET}")
    sort_packages(machine)
    package = {"keyFingerprints": [lab.azcmagent_repository.fingerprint]}
    group = RESOURCE_GROUP_ID.rpartition("/")[2]
    arc = {"resourceGroup": group, "location": LOCATION, "autoRoleAssignment": True, "package": package}
    prepare(lab, machine, subscriptionId=SUBSCRIPTION_ID, arc=arc)
    before = machine.snapshot()

    principal = {"clientId": operator.client_id, "clientSecretFile": SECRET}
    words = [f"--set=azure.servicePrincipal.{key}={value}" for key, value in principal.items()]
    flex(machine, "agent", "--aks-pool", pool_id(POOL), "--config", OWN, *words)
    document = stored(machine)
    assert "servicePrincipal" not in document["config"]["azure"]
    assert document["configVersion"] == pools.machine(POOL, machine.name)["properties"]["eTag"]
    connected = arc_machine(lab, machine)
    assert connected
    assert roles_of(lab, connected["identity"]["principalId"]) == [FLEX_NODE_AGENT.id]
    said = leave(machine)
    assert printed_options(said, "delete-machines") == {"--machine-names": machine.name}
    assert [one for one in left_over(before, machine) if not any(copy in one for copy in COPIES)] == []


@pytest.mark.long
def test_killed_pool_join_is_completed_by_the_next_run(lab: Lab, pools: LabPools, add_machine: Add) -> None:
    machine = add_machine("pool-kill")
    principal = lab.azure.directory.service_principal("pool-kill", "right")
    lab.azure.assignments.put(pool_id(POOL), CONTRIBUTOR_ROLE, principal.object_id)
    machine.run("sh", "-c", f"umask 077; printf right >{SECRET}")
    prepare(lab, machine, servicePrincipal={"clientId": principal.client_id, "clientSecretFile": SECRET})
    before = machine.snapshot()
    words = ("agent", "--aks-pool", pool_id(POOL), "--config", OWN)
    for seconds in (2, 4, 6, 8):
        machine.run("timeout", "-s", "KILL", str(seconds), "aks-flex-node", *words, check=False, timeout=60)
    flex(machine, *words)
    assert stored(machine)["configVersion"] == pools.machine(POOL, machine.name)["properties"]["eTag"]
    assert flex(machine, "verify", check=False).ok
    machine.run("timeout", "-s", "KILL", "3", "aks-flex-node", "unbootstrap", "--yes", check=False, timeout=60)

    def has_left() -> bool:
        done = flex(machine, "unbootstrap", "--yes", check=False)
        assert done.code in {0, LOCKED}, done.err  # a job of the daemon may repair what the killed run has removed
        return done.ok

    until(has_left, "the machine leaves")
    assert machine.name not in names(pools)
    assert left_over(before, machine) == []
