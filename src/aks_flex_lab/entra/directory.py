"""The principals of the lab's tenant and the identities of its machines, kept in files that the server rereads."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


TENANT_ID = "f1e0f1e0-0000-4000-8000-000000000001"
DOMAIN = "flex.internal"  # the tenant's other name
TOKEN_SECONDS = 3600.0

LISTS = ("groups", "older_secrets", "certificates", "redirect_uris")

PrincipalKind = Literal["servicePrincipal", "managedIdentity", "user"]


@dataclass(frozen=True)
class FederatedCredential:
    """Somebody else's tokens that are as good as a secret: whose, for whom, and by which key they are signed."""

    issuer: str
    subject: str
    certificate: str  # PEM, with the issuer's key
    audience: str = "api://AzureADTokenExchange"


@dataclass(frozen=True)
class EntraPrincipal:
    kind: PrincipalKind
    name: str  # for a user, what they sign in with
    object_id: str
    client_id: str = ""  # of a service principal or a managed identity
    secret: str = field(default="", repr=False)  # or a user's password
    older_secrets: tuple[str, ...] = field(default=(), repr=False)  # that are still valid while a new one is brought
    secret_expires: float = 0.0  # unix time; 0 for never
    enabled: bool = True
    resource_id: str = ""  # of a managed identity
    groups: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()  # PEM, by which a service principal may show who it is
    federations: tuple[FederatedCredential, ...] = ()
    redirect_uris: tuple[str, ...] = ()  # where people who sign in to this application may be sent
    token_seconds: float = TOKEN_SECONDS

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
        """As the file is now; read again only when it has changed."""
        if not self._file.exists():
            return ()
        found = self._file.stat()
        mark = (found.st_mtime_ns, found.st_ino)
        if mark != self._mark:
            documents = json.loads(self._file.read_text())
            self._principals = tuple(_principal(each) for each in documents)
            self._mark = mark
        return self._principals

    def find(self, text: str, *kinds: PrincipalKind) -> EntraPrincipal | None:
        """By object id, client id or resource id; a user by name, too."""
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
        """Another secret, an expired one, a disabled principal: whatever a test or a person wants to see."""
        changed = replace(principal, **changes)  # type: ignore[arg-type] # the names are the class's own
        self._write(lambda all_: [changed if each.object_id == changed.object_id else each for each in all_])
        return changed

    def remove(self, principal: EntraPrincipal) -> None:
        self._write(lambda all_: [each for each in all_ if each.object_id != principal.object_id])

    def _add(self, principal: EntraPrincipal) -> EntraPrincipal:
        self._write(lambda all_: [*all_, principal])
        return principal

    def _write(self, changed: Callable[[tuple[EntraPrincipal, ...]], list[EntraPrincipal]]) -> None:
        with file_lock(self._lock, "the lab's directory", wait=True):
            documents = [asdict(each) for each in changed(self.all())]
            write_atomically(self._file, json.dumps(documents, indent=1), 0o600)


def _principal(document: dict[str, Any]) -> EntraPrincipal:
    lists = {name: tuple(document.get(name, ())) for name in LISTS}
    federations = tuple(FederatedCredential(**each) for each in document.get("federations", ()))
    return EntraPrincipal(**{**document, **lists, "federations": federations})


def new_id() -> str:
    return str(uuid.uuid4())


class MachineIdentities:
    """In a file, so that it changes while the service runs."""

    def __init__(self, state: Path) -> None:
        self._file = state / "machine-identities.json"
        self._lock = state / "machine-identities.lock"

    def identities_of(self, address: str) -> list[str]:
        """The object ids of the identities of the machine with that address."""
        return self._read().get(address, [])

    def set(self, address: str, identities: list[str]) -> None:
        """These are all that it has from now on."""
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
