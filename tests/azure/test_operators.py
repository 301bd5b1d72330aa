"""A person with an `az login` of their own makes their machine a node: sudo, and no secret of theirs in any file."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.azure.role_assignments import NODE_ROLES
from aks_flex_node.lab import agents, network
from aks_flex_node.lab.agents.parcels import PYTHONS
from aks_flex_node.lab.arm.hybrid import Machines
from aks_flex_node.lab.arm.resources import SUBSCRIPTION
from aks_flex_node.lab.entra.directory import TENANT
from aks_flex_node.lab.machines.bases import System
from aks_flex_node.lab.machines.machine import LENT
from aks_flex_node.lab.parts.provider import CLUSTER, GROUP
from aks_flex_node.lab.tools import catalog
from tests.agents import differences
from tests.waiting import until_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.lab.entra.directory import Principal
    from aks_flex_node.lab.lab import Lab
    from aks_flex_node.lab.machines.machine import Machine
    from aks_flex_node.lab.processes import Result

OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
ADMIN = "0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8"
HOME = "/home/alice"
# What a person's shell has where az is to believe a private cloud. sudo lets none of it through.
SHELL = f"HOME={HOME} USER=alice REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Iterator[Machine]:
    """With az, which knows the lab's cloud, and with a user who may do everything by sudo."""
    (tool,) = [each for each in catalog.PYTHON_TOOLS if each.python == PYTHONS[System.BOOKWORM]]
    folder = lab.toolbox.folder(tool.name, tool.version)
    with lab.alone():
        machine = lab.inventory.add("op-1", System.BOOKWORM, "site-1", lent=(folder,))
    until_named(machine, "api.flex.internal")
    agents.install(machine)
    machine.run("ln", "-s", f"{LENT}/{folder.name}/az", "/usr/local/bin/az")
    machine.run("useradd", "--create-home", "alice")
    machine.run("sh", "-c", "echo 'alice ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/alice")
    alice(machine, "az", "cloud", "register", "--name", "Lab", "--endpoint-resource-manager", network.MANAGEMENT_URL)
    alice(machine, "az", "cloud", "set", "--name", "Lab")
    alice(machine, "sudo", "true")
    yield machine
    with lab.alone():
        lab.inventory.remove(machine)
    lab.cluster.run("delete", "node", machine.name, "--ignore-not-found", "--wait=false")


def alice(machine: Machine, *words: str, check: bool = True) -> Result:
    """As alice types it."""
    shell = ("env", f"--chdir={HOME}", *SHELL.split(), "AZURE_CORE_INSTANCE_DISCOVERY=false", *words)
    return machine.run("runuser", "-u", "alice", "--", *shell, check=check, timeout=240)


def sign_in(lab: Lab, machine: Machine, role: str, scope: str) -> Principal:
    """Somebody new signs in as alice."""
    principal = lab.azure.directory.service_principal("alice", "secret-of-alice")
    lab.azure.assignments.put(scope, role, principal.object_id)
    words = ("--username", principal.client_id, "--password", principal.secret, "--tenant", TENANT)
    alice(machine, "az", "account", "clear")
    alice(machine, "az", "login", "--service-principal", *words)
    return principal


def configuration(lab: Lab) -> dict[str, Any]:
    """It names the cluster, its cloud, and a token for the node. What is missing, Azure knows."""
    authority = base64.b64encode(lab.authority.certificate.read_bytes()).decode()
    azure = {
        "subscriptionId": SUBSCRIPTION,
        "tenantId": TENANT,
        "resourceManager": network.MANAGEMENT_URL,
        "caCertData": authority,
        "targetCluster": {"resourceId": CLUSTER},
        "bootstrapToken": {"token": lab.cluster.bootstrap_token()},
    }
    complete = agents.configuration(lab)
    versions = {name: complete[name] for name in ("containerd", "runc", "cni", "npd")}
    return {"azure": azure, **versions}


def owners(machine: Machine) -> set[str]:
    return set(machine.run("find", f"{HOME}/.azure", "-printf", "%u\n").out.split())


def test_who_is_signed_in_with_az_asks_azure_behind_sudo(lab: Lab, machine: Machine) -> None:
    bootstrap = ("sudo", "aks-flex-node", "bootstrap")
    alice(machine, "az", "account", "clear")
    agents.give(machine, configuration(lab))
    before = machine.snapshot()

    stranger = alice(machine, *bootstrap, check=False)
    assert "azure-cli-signed-out" in stranger.err
    assert "`az login` as alice" in stranger.err

    principal = sign_in(lab, machine, READER, CLUSTER)
    refused = alice(machine, *bootstrap, check=False)
    assert "arm-refused" in refused.err
    assert f'--role "Azure Kubernetes Service Cluster Admin Role" --scope {CLUSTER}' in " ".join(refused.err.split())

    lab.azure.assignments.put(CLUSTER, ADMIN, principal.object_id)
    alice(machine, *bootstrap)
    node = lab.cluster.get("node", machine.name)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{catalog.find('kubernetes').version}"
    assert owners(machine) == {"alice"}

    alice(machine, "sudo", "aks-flex-node", "unbootstrap", "--yes")
    assert owners(machine) == {"alice"}
    left = [each for each in differences(before, machine) if HOME not in each]
    assert left == []


def test_who_is_signed_in_with_az_registers_the_machine_with_arc(lab: Lab, machine: Machine) -> None:
    document = configuration(lab)
    package = {"keyFingerprints": [lab.arc.fingerprint]}
    document["azure"] |= {
        "resourceGroup": GROUP.rpartition("/")[2],
        "location": "westeurope",
        "arc": {"enabled": True, "autoRoleAssignment": True, "package": package},
    }
    agents.give(machine, document)
    sign_in(lab, machine, OWNER, GROUP)

    alice(machine, "sudo", "aks-flex-node", "arc", "register")
    there = Machines(lab.azure.state).find(f"{GROUP}/providers/Microsoft.HybridCompute/machines/{machine.name}")
    assert there
    principal = there["identity"]["principalId"]

    def roles() -> list[str]:
        given = [each["properties"] for each in lab.azure.assignments.all()]
        return sorted(one["roleDefinitionId"].rpartition("/")[2] for one in given if one["principalId"] == principal)

    assert roles() == sorted(role.id for role in NODE_ROLES)

    alice(machine, "sudo", "aks-flex-node", "arc", "unregister", "--yes")
    assert Machines(lab.azure.state).find(there["id"]) is None
    assert roles() == []
    assert owners(machine) == {"alice"}
