"""A user with an `az login` joins a machine with sudo; no secret of the user is written to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import network, node_agent
from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.components.resource_provider import CLUSTER_ID, RESOURCE_GROUP_ID
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.machines.container import SHARED_FOLDERS
from aks_flex_lab.node_agent import PYTHONS
from aks_flex_lab.pools import LabPools, pool_id
from aks_flex_lab.tools import catalog
from aks_flex_node.azure.roles import CLUSTER_USER, FLEX_NODE_AGENT
from tests.agents import differences, install_agent
from tests.lab_azure import arc_machine, azure_settings, roles_of
from tests.lab_machines import temporary_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult

OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
ADMIN = "0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8"
HOME = "/home/alice"
# The environment in which az trusts a private cloud. sudo passes none of it.
SHELL = f"HOME={HOME} USER=alice REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Iterator[EdgeMachine]:
    """Yields a machine with az, configured for the lab's cloud, and a user with full sudo permission."""
    (tool,) = [each for each in catalog.PYTHON_TOOLS if each.python == PYTHONS[DebianRelease.BOOKWORM]]
    folder = lab.toolbox.folder(tool.name, tool.version)
    with temporary_machine(lab, "op-1", lent=(folder,)) as machine:
        install_agent(machine)
        machine.run("ln", "-s", f"{SHARED_FOLDERS}/{folder.name}/az", "/usr/local/bin/az")
        machine.run("useradd", "--create-home", "alice")
        machine.run("sh", "-c", "echo 'alice ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/alice")
        register = ("cloud", "register", "--name", "Lab", "--endpoint-resource-manager", network.MANAGEMENT_URL)
        alice(machine, "az", *register)
        alice(machine, "az", "cloud", "set", "--name", "Lab")
        alice(machine, "sudo", "true")
        yield machine


def alice(machine: EdgeMachine, *words: str, check: bool = True) -> CommandResult:
    """Runs a command as the user alice."""
    shell = ("env", f"--chdir={HOME}", *SHELL.split(), "AZURE_CORE_INSTANCE_DISCOVERY=false", *words)
    return machine.run("runuser", "-u", "alice", "--", *shell, check=check, timeout=240)


def sign_in(lab: Lab, machine: EdgeMachine, role: str, scope: str) -> EntraPrincipal:
    """Signs in to az as alice, with a new principal."""
    principal = lab.azure.directory.service_principal("alice", "secret-of-alice")
    lab.azure.assignments.put(scope, role, principal.object_id)
    words = ("--username", principal.client_id, "--password", principal.secret, "--tenant", TENANT_ID)
    alice(machine, "az", "account", "clear")
    alice(machine, "az", "login", "--service-principal", *words)
    return principal


def configuration(lab: Lab) -> dict[str, Any]:
    """Returns a configuration with the cluster, its cloud and a bootstrap token. Azure provides the rest."""
    azure = azure_settings(
        lab,
        subscriptionId=SUBSCRIPTION_ID,
        targetCluster={"resourceId": CLUSTER_ID},
        bootstrapToken={"token": lab.cluster.bootstrap_token()},
    )
    complete = node_agent.configuration(lab)
    versions = {name: complete[name] for name in ("containerd", "runc", "cni", "npd")}
    return {"azure": azure, **versions}


def owners(machine: EdgeMachine) -> set[str]:
    return set(machine.run("find", f"{HOME}/.azure", "-printf", "%u\n").out.split())


def test_bootstrap_with_sudo_uses_az_login_of_calling_user(lab: Lab, machine: EdgeMachine) -> None:
    bootstrap = ("sudo", "aks-flex-node", "bootstrap")
    alice(machine, "az", "account", "clear")
    node_agent.write_configuration(machine, configuration(lab))
    before = machine.snapshot()

    stranger = alice(machine, *bootstrap, check=False)
    assert "azure-cli-not-signed-in" in stranger.err
    assert "`az login` as alice" in stranger.err

    principal = sign_in(lab, machine, READER, CLUSTER_ID)
    refused = alice(machine, *bootstrap, check=False)
    assert "arm-request-rejected" in refused.err
    assert f'--role "Azure Kubernetes Service Cluster Admin Role" --scope {CLUSTER_ID}' in " ".join(
        refused.err.split()
    )

    lab.azure.assignments.put(CLUSTER_ID, ADMIN, principal.object_id)
    alice(machine, *bootstrap)
    node = lab.cluster.get("node", machine.name)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{catalog.find_tool('kubernetes').version}"
    assert owners(machine) == {"alice"}

    alice(machine, "sudo", "aks-flex-node", "unbootstrap", "--yes")
    assert owners(machine) == {"alice"}
    left = [each for each in differences(before, machine) if HOME not in each]
    assert left == []


def test_pool_join_with_sudo_uses_az_login_of_calling_user(lab: Lab, machine: EdgeMachine) -> None:
    pools, pool = LabPools(lab), pool_id("people")
    pools.put("people", {"orchestratorVersion": catalog.find_tool("kubernetes").version})
    npd = configuration(lab)["npd"]
    node_agent.write_configuration(machine, {"azure": azure_settings(lab), "npd": npd})
    before = machine.snapshot()
    agent = ("sudo", "aks-flex-node", "agent", "--no-input", "--aks-pool", pool)

    principal = sign_in(lab, machine, READER, CLUSTER_ID)
    refused = alice(machine, *agent, check=False)
    assert "aks-pool-role-missing" in refused.err
    assert f'--role "{FLEX_NODE_AGENT.name}" --scope {pool}' in " ".join(refused.err.split())

    lab.azure.assignments.put(pool, FLEX_NODE_AGENT.id, principal.object_id)
    done = alice(machine, *agent)
    assert "has no Azure identity" in done.err
    assert lab.cluster.get("node", machine.name)
    assert pools.machines("people") == []
    alice(machine, "sudo", "aks-flex-node", "unbootstrap", "--yes")
    assert [each for each in differences(before, machine) if HOME not in each] == []
    pools.delete("people")


def test_arc_register_with_sudo_uses_az_login_of_calling_user(lab: Lab, machine: EdgeMachine) -> None:
    document = configuration(lab)
    package = {"keyFingerprints": [lab.azcmagent_repository.fingerprint]}
    document["azure"] |= {
        "resourceGroup": RESOURCE_GROUP_ID.rpartition("/")[2],
        "location": "westeurope",
        "arc": {"enabled": True, "autoRoleAssignment": True, "package": package},
    }
    node_agent.write_configuration(machine, document)
    sign_in(lab, machine, OWNER, RESOURCE_GROUP_ID)

    alice(machine, "sudo", "aks-flex-node", "arc", "register")
    there = arc_machine(lab, machine)
    assert there
    principal = there["identity"]["principalId"]
    assert roles_of(lab, principal) == [CLUSTER_USER.id]

    alice(machine, "sudo", "aks-flex-node", "arc", "unregister", "--yes")
    assert arc_machine(lab, machine) is None
    assert roles_of(lab, principal) == []
    assert owners(machine) == {"alice"}
