"""Roles and permissions: grants from the settings and, optionally, Azure role assignments, cached for when Azure is
unreachable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.errors import FlexError
from aks_flex_rp.auth.auth_settings import Role
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.auth.auth_settings import RoleGrant
    from aks_flex_rp.callers import Caller


class Operation(TextEnum):
    READ = "read"
    LIST = "list"
    WRITE = "write"
    DELETE = "delete"
    REGENERATE_TOKEN = "regenerateToken"  # noqa: S105
    REPORT_STATUS = "reportStatus"
    LIST_CREDENTIALS = "listCredentials"
    AUDIT = "audit"


PERMISSIONS: Mapping[Role, frozenset[Operation]] = {
    Role.OWNER: frozenset(Operation),
    Role.CONTRIBUTOR: frozenset(Operation) - {Operation.LIST_CREDENTIALS},
    Role.READER: frozenset({Operation.READ, Operation.LIST, Operation.AUDIT}),
}
NODE_OPERATIONS = frozenset(
    {Operation.READ, Operation.REPORT_STATUS, Operation.LIST_CREDENTIALS, Operation.REGENERATE_TOKEN}
)

Segments = tuple[str, ...]


class RoleAssignments(Protocol):
    """Roles that somebody else gives away."""

    def known(self, caller: Caller, cluster: ClusterId) -> frozenset[Role] | None: ...

    async def roles(self, caller: Caller, cluster: ClusterId) -> frozenset[Role]: ...


class Roles:
    def __init__(self, grants: Iterable[RoleGrant], assignments: RoleAssignments | None = None) -> None:
        self._assignments = assignments
        self._grants: dict[str, list[tuple[Segments, frozenset[Operation]]]] = {}
        for grant in grants:
            entry = (segments(grant.scope), PERMISSIONS[grant.role])
            self._grants.setdefault(grant.principal.lower(), []).append(entry)

    def allows_now(
        self, caller: Caller, operation: Operation, cluster: ClusterId, node_identity: str = ""
    ) -> bool | None:
        """Without asking anybody; None when Azure has to be asked, which `allows` does."""
        if caller.kind is CallerKind.KEY:
            return True
        if operation in NODE_OPERATIONS and caller.is_node(node_identity):
            return True
        if self._granted(caller, operation, cluster):
            return True
        if self._assignments is None:
            return False
        roles = self._assignments.known(caller, cluster)
        return None if roles is None else permitted(roles, operation)

    async def allows(
        self, caller: Caller, operation: Operation, cluster: ClusterId, node_identity: str = "", *, ask: bool = True
    ) -> bool:
        """Whether the caller may do this to the cluster's nodes, or to the one whose identity is given.

        Without `ask`, Azure is not asked: nobody is to make us do that about clusters that they made up.
        """
        now = self.allows_now(caller, operation, cluster, node_identity)
        if now is not None or self._assignments is None or not ask:
            return bool(now)
        return permitted(await self._assignments.roles(caller, cluster), operation)

    def _granted(self, caller: Caller, operation: Operation, cluster: ClusterId) -> bool:
        mine = [grant for each in caller.ids & self._grants.keys() for grant in self._grants[each]]
        if not mine:
            return False
        where = segments(cluster.key)
        return any(operation in operations and covers(scope, where) for scope, operations in mine)


def permitted(roles: Iterable[Role], operation: Operation) -> bool:
    return any(operation in PERMISSIONS[role] for role in roles)


def segments(scope: str) -> Segments:
    return tuple(scope.lower().strip("/").split("/")) if scope.strip("/") else ()


def covers(scope: Segments, where: Segments) -> bool:
    """Whether a scope is the place itself or above it. By whole segments: `/a` is not above `/ab`."""
    return where[: len(scope)] == scope


ASSIGNMENTS_API_VERSION = "2022-04-01"
FRESH_SECONDS = 300.0
LAST_KNOWN_SECONDS = 3600.0  # for which an answer stands when Azure cannot be asked again
PATIENCE_SECONDS = 15.0  # between two questions that Azure does not answer
MAX_CACHED_ROLES = 20_000

# Azure's built-in roles by their ids, which are the same in every tenant.
DEFINITIONS: Mapping[str, Role] = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": Role.OWNER,
    "b24988ac-6180-42a0-ab88-20f7382dd24c": Role.CONTRIBUTOR,
    "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8": Role.CONTRIBUTOR,  # Azure Kubernetes Service Contributor Role
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": Role.READER,
}
MANAGEMENT_GROUPS = ("providers", "microsoft.management", "managementgroups")

log = logging.getLogger(__name__)


class ArmLister(Protocol):
    """What is asked of `azure.arm`."""

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class CachedRoles:
    roles: frozenset[Role]
    read_at: float  # when Azure was last queried
    answered: float  # when Azure last answered

    def is_fresh(self, now: float) -> bool:
        patience = FRESH_SECONDS if self.read_at == self.answered else PATIENCE_SECONDS
        return now - self.read_at < patience


class AzureAssignments:
    """Belongs to one event loop."""

    def __init__(self, arm: ArmLister, clock: Callable[[], float] = time.monotonic) -> None:
        self._arm = arm
        self._clock = clock
        self._answers: dict[tuple[str, str], CachedRoles] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[frozenset[Role]]] = {}

    def known(self, caller: Caller, cluster: ClusterId) -> frozenset[Role] | None:
        found = self._answers.get((caller.id, cluster.key))
        return found.roles if found and found.is_fresh(self._clock()) else None

    async def roles(self, caller: Caller, cluster: ClusterId) -> frozenset[Role]:
        found = self.known(caller, cluster)
        if found is not None:
            return found
        key = (caller.id, cluster.key)
        if key not in self._asking:
            self._asking[key] = asyncio.get_running_loop().create_task(self._ask(caller, cluster))
            self._asking[key].add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(self._asking[key])

    async def _ask(self, caller: Caller, cluster: ClusterId) -> frozenset[Role]:
        key, read_at = (caller.id, cluster.key), self._clock()
        who = caller.id.replace("'", "''")
        query = {"$filter": f"assignedTo('{who}')"}
        path = f"{cluster}/providers/Microsoft.Authorization/roleAssignments"
        try:
            found = await asyncio.to_thread(lambda: self._arm.list(path, ASSIGNMENTS_API_VERSION, **query))
            answer = CachedRoles(effective_roles(found, cluster), read_at, read_at)
        except FlexError as error:
            log.warning("role assignments on %s cannot be read: %s", cluster, error)
            answer = self._last_known(key, read_at)
        self._remember(key, answer)
        return answer.roles

    def _last_known(self, key: tuple[str, str], now: float) -> CachedRoles:
        """What Azure said last, for a while; then nothing, which is a no."""
        last = self._answers.get(key)
        if last is None or now - last.answered > LAST_KNOWN_SECONDS:
            return CachedRoles(frozenset(), now, float("-inf"))
        return CachedRoles(last.roles, now, last.answered)

    def _remember(self, key: tuple[str, str], answer: CachedRoles) -> None:
        self._answers.pop(key, None)
        while len(self._answers) >= MAX_CACHED_ROLES:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = answer


def effective_roles(assignments: Iterable[Mapping[str, Any]], cluster: ClusterId) -> frozenset[Role]:
    """The roles that hold for the cluster. Azure also lists what holds below it alone, which is not enough."""
    where = segments(cluster.key)
    roles = set()
    for each in assignments:
        properties = each.get("properties") or {}
        role = DEFINITIONS.get(str(properties.get("roleDefinitionId", "")).rpartition("/")[2].lower())
        scope = str(properties.get("scope") or "")
        if role and scope and _holds(segments(scope), where):
            roles.add(role)
    return frozenset(roles)


def _holds(scope: Segments, where: Segments) -> bool:
    # A management group is listed because the subscription is in it; its id does not say so.
    return covers(scope, where) or scope[:3] == MANAGEMENT_GROUPS
