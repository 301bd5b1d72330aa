"""Azure identities with which nodes join the lab's cluster: resource properties and lab settings for each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_lab.components.resource_provider import LOCATION, OWNER_ROLE_ID, RESOURCE_GROUP_ID

if TYPE_CHECKING:
    from tests.managed_node import ManagedLabNode

EXEC = {"useAzureAuth": True, "method": "exec"}
CERTIFICATE = {"useAzureAuth": True, "method": "certificate"}


def by_managed_identity(node: ManagedLabNode) -> None:
    """Makes the machine a VM of the lab's Azure with a managed identity."""
    azure = node.lab.azure
    identity = azure.directory.managed_identity(node.name, f"/subscriptions/lab/identities/{node.name}")
    azure.metadata.assign_identities(node.machine, identity)
    managed = {"clientId": identity.client_id}
    node.properties["azureAuth"] = {"method": "managedIdentity", "managedIdentity": managed}


def by_arc(node: ManagedLabNode) -> list[str]:
    """Configures Arc for the machine; returns the arguments with which a join registers it."""
    arc = {"resourceGroup": "lab", "location": LOCATION, "autoRoleAssignment": True}
    node.properties["azureAuth"] = {"method": "arc", "arc": arc}
    return [
        *as_operator(node),
        "--set",
        f"azure.arc.package.keyFingerprints={json.dumps([node.lab.azcmagent_repository.fingerprint])}",
    ]


def as_operator(node: ManagedLabNode) -> list[str]:
    """Returns the arguments that give a join an operator's permissions in the lab's Azure."""
    lab, secret, file = node.lab, f"secret-of-the-operator-of-{node.name}", "/root/operator-secret"
    principal = lab.azure.directory.service_principal(f"operator-{node.name}", secret)
    lab.azure.assignments.put(RESOURCE_GROUP_ID, OWNER_ROLE_ID, principal.object_id)
    node.machine.run("sh", "-c", f"umask 077; cat >{file}", input=secret)
    settings = {
        "azure.servicePrincipal.clientId": principal.client_id,
        "azure.servicePrincipal.clientSecretFile": file,
    }
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
