"""The principals of the lab's tenant and the identities of its machines, stored in files that the server rereads."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


TENANT_ID = "f1e0f1e0-0000-4000-8000-000000000001"
DOMAIN = "flex.internal"  # domain name of the tenant

LIST_FIELDS = ("groups", "older_secrets", "certificates", "redirect_uris")

PrincipalKind = Literal["servicePrincipal", "managedIdentity", "user"]


@dataclass(frozen=True)
class FederatedCredential:
    """Tokens of another issuer that a principal accepts instead of a secret: issuer, subject and key."""

    issuer: str
    subject: str
    certificate: str  # PEM of the issuer's public key
    audience: str = "api://AzureADTokenExchange"


@dataclass(frozen=True)
class EntraPrincipal:
    kind: PrincipalKind
    name: str  # for a user, the user name
    object_id: str
    client_id: str = ""  # for a service principal or a managed identity
    secret: str = field(default="", repr=False)  # or a user's password
    older_secrets: tuple[str, ...] = field(
        default=(), repr=False
    )  # older secrets that are still valid during a rotation
    secret_expires: float = 0.0  # Unix time; 0 for never
    enabled: bool = True
    resource_id: str = ""  # for a managed identity
    groups: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()  # PEM of the certificates of a service principal
    federations: tuple[FederatedCredential, ...] = ()
    redirect_uris: tuple[str, ...] = ()  # redirect URIs of this application

    def has_id(self, text: str) -> bool:
        return text.lower() in {each.lower() for each in (self.object_id, self.client_id, self.resource_id) if each}


class EntraDirectory:
    """The principals in a state directory."""

    def __init__(self, state: Path, tenant: str = TENANT_ID) -> None:
        self.tenant = tenant
        self._file = state / "principals.json"
        self._lock = state / "principals.lock"
        self._mark = (0, 0)
        self._principals: tuple[EntraPrincipal, ...] = ()

    def all(self) -> tuple[EntraPrincipal, ...]:
        """Returns all principals; reads the file again only when it has changed."""
        if not self._file.exists():
            return ()
        found = self._file.stat()
        mark = (found.st_mtime_ns, found.st_ino)
        if mark != self._mark:
            self._principals = msgspec.json.decode(self._file.read_bytes(), type=tuple[EntraPrincipal, ...])
            self._mark = mark
        return self._principals

    def find(self, text: str, *kinds: PrincipalKind) -> EntraPrincipal | None:
        """Returns the principal with this object ID, client ID, resource ID or user name."""
        for each in self.all():
            named = each.kind == "user" and each.name.lower() == text.lower()
            if (not kinds or each.kind in kinds) and (named or each.has_id(text)):
                return each
        return None

    def has_tenant(self, text: str) -> bool:
        return text.lower() in {self.tenant, DOMAIN, "common", "organizations"}

    def service_principal(
        self, name: str, secret: str, groups: tuple[str, ...] = (), redirect_uris: tuple[str, ...] = ()
    ) -> EntraPrincipal:
        made = EntraPrincipal("servicePrincipal", name, new_id(), client_id=new_id(), secret=secret, groups=groups)
        return self._add(replace(made, redirect_uris=redirect_uris))

    def managed_identity(self, name: str, resource_id: str) -> EntraPrincipal:
        return self._add(
            EntraPrincipal("managedIdentity", name, new_id(), client_id=new_id(), resource_id=resource_id)
        )

    def user(self, name: str, password: str, groups: tuple[str, ...] = ()) -> EntraPrincipal:
        return self._add(EntraPrincipal("user", name, new_id(), secret=password, groups=groups))

    def change(self, principal: EntraPrincipal, **changes: object) -> EntraPrincipal:
        """Changes attributes of a principal, for example its secret, its expiry or whether it is enabled."""
        changed = replace(principal, **changes)  # type: ignore[arg-type] # the names are fields of the class
        self._write(lambda all_: [changed if each.object_id == changed.object_id else each for each in all_])
        return changed

    def remove(self, principal: EntraPrincipal) -> None:
        self._write(lambda all_: [each for each in all_ if each.object_id != principal.object_id])

    def _add(self, principal: EntraPrincipal) -> EntraPrincipal:
        self._write(lambda all_: [*all_, principal])
        return principal

    def _write(self, changed: Callable[[tuple[EntraPrincipal, ...]], list[EntraPrincipal]]) -> None:
        with file_lock(self._lock, "the lab's directory", wait=True):
            write_atomically(self._file, msgspec.json.encode(changed(self.all())), 0o600)


def new_id() -> str:
    return str(uuid.uuid4())


class MachineIdentities:
    """The managed identities of machines, in a file that can change while the service runs."""

    def __init__(self, state: Path) -> None:
        self._file = state / "machine-identities.json"
        self._lock = state / "machine-identities.lock"

    def identities_of(self, address: str) -> list[str]:
        """Returns the object IDs of the identities of the machine with this address."""
        return self._read().get(address, [])

    def set(self, address: str, identities: list[str]) -> None:
        """Replaces the identities of a machine."""
        if not identities and not self.identities_of(address):
            return
        with file_lock(self._lock, "the machines' identities", wait=True):
            assigned = {**self._read(), address: identities}
            nonempty = {where: ids for where, ids in assigned.items() if ids}
            write_atomically(self._file, json.dumps(nonempty, indent=1))

    def addresses(self) -> list[str]:
        return list(self._read())

    def _read(self) -> dict[str, list[str]]:
        if not self._file.exists():
            return {}
        document: dict[str, list[str]] = json.loads(self._file.read_text())
        return document
