"""What tests of machines and nodes use of the lab's Azure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from aks_flex_lab.arm.hybrid_compute import ArcMachines
from aks_flex_lab.components.resource_provider import RESOURCE_GROUP_ID
from aks_flex_lab.entra.directory import TENANT_ID

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.snapshots import Snapshot

# Backups that dpkg and useradd keep next to their files.
COPIES = ("/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/var/lib/dpkg/status-old")


def azure_settings(lab: Lab, **settings: Any) -> dict[str, Any]:
    """Returns settings of the agent by which it connects to the lab's Azure."""
    return {
        "resourceManager": network.MANAGEMENT_URL,
        "caCertData": base64.b64encode(lab.authority.certificate.read_bytes()).decode(),
        "tenantId": TENANT_ID,
        **settings,
    }


def arc_machine(lab: Lab, machine: EdgeMachine) -> dict[str, Any] | None:
    """Returns the resource of a machine that is connected to Azure Arc."""
    return ArcMachines(lab.azure.state).find(
        f"{RESOURCE_GROUP_ID}/providers/Microsoft.HybridCompute/machines/{machine.name}"
    )


def roles_of(lab: Lab, principal: str) -> list[str]:
    """Returns the IDs of the roles of a principal, sorted."""
    given = [each["properties"] for each in lab.azure.assignments.all()]
    return sorted(each["roleDefinitionId"].rpartition("/")[2] for each in given if each["principalId"] == principal)


def sort_packages(machine: EdgeMachine) -> None:
    """Has dpkg write its file of packages, which debootstrap wrote in another order."""
    machine.run("sh", "-c", "echo tar install | dpkg --set-selections")


def differences_but_copies(before: Snapshot, machine: EdgeMachine) -> list[str]:
    """Returns what differs from a snapshot, without the backups of a package that was installed and removed."""
    return [str(one) for one in machine.differences(before) if one.key not in COPIES]
