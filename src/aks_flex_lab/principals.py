"""Creates principals in the lab's Entra ID: service principals and managed identities, with their roles."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from aks_flex_lab.arm.role_assignments import BUILT_IN_ROLES, RoleDefinition
from aks_flex_lab.components.resource_provider import CLUSTER_ID, RESOURCE_GROUP_ID
from aks_flex_lab.errors import UsageError, did_you_mean
from aks_flex_lab.files import write_atomically
from aks_flex_node import x509_builder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aks_flex_lab.components.azure import AzureComponent
    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.machines.machine import EdgeMachine

LIFETIME = timedelta(days=365)
SCOPES = {"cluster": CLUSTER_ID, "group": RESOURCE_GROUP_ID}


def find_role(text: str) -> RoleDefinition:
    """Returns the built-in role of a name or GUID, or raises UsageError."""
    for role in BUILT_IN_ROLES:
        if text.lower() in {role.id, role.name.lower()}:
            return role
    raise UsageError(
        "role-unknown",
        f"The lab's Azure has no role {text!r}.",
        did_you_mean(text, [role.name for role in BUILT_IN_ROLES]),
    )


@dataclass(frozen=True)
class LabPrincipals:
    azure: AzureComponent

    def with_secret(self, name: str, file: Path) -> EntraPrincipal:
        """Creates a service principal, and writes its secret to a file with mode 0600."""
        secret = secrets.token_urlsafe(24)
        write_atomically(file, secret, 0o600)
        return self.azure.directory.service_principal(name, secret)

    def with_certificate(self, name: str, file: Path) -> EntraPrincipal:
        """Creates a service principal, and writes its certificate with the private key to a file with mode 0600."""
        key = rsa.generate_private_key(65537, 2048)
        subject = x509_builder.distinguished_name(name)
        period = x509_builder.validity_period(LIFETIME, timedelta(hours=1))
        builder = x509_builder.leaf_builder(subject, subject, key.public_key(), period, key_encipherment=False)
        certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, form, plain).decode()
        write_atomically(file, private + certificate, 0o600)
        made = self.azure.directory.service_principal(name, "")
        return self.azure.directory.change(made, certificates=(certificate,))

    def of_machine(self, name: str, machine: EdgeMachine) -> EntraPrincipal:
        """Creates a managed identity, and gives it to a machine in addition to those that it has."""
        resource = f"{RESOURCE_GROUP_ID}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{name}"
        made = self.azure.directory.managed_identity(name, resource)
        known = self.azure.metadata.machine_identities.identities_of(machine.record.address)
        earlier = [each for one in known if (each := self.azure.directory.find(one))]
        self.azure.metadata.assign_identities(machine, *earlier, made)
        return made

    def assign(self, principal: EntraPrincipal, roles: Iterable[RoleDefinition], scope: str) -> None:
        """Assigns roles to a principal at a scope."""
        for role in roles:
            self.azure.assignments.put(scope, role.id, principal.object_id)
