"""Roles and permissions: grants from the settings and, optionally, Azure role assignments.

Role assignments are cached for the time that Azure is unreachable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.errors import FlexError
from aks_flex_rp.auth.auth_settings import Role
from aks_flex_rp.bounded_memory import BoundedCache
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
    ROTATE_KEY = "rotateKey"  # only the node itself
    REVOKE_KEY = "revokeKey"
    AUDIT = "audit"
    READ_POOL = "readPool"
    WRITE_POOL = "writePool"
    DELETE_POOL = "deletePool"
    APPLY_POOL = "applyPool"
    READ_ENROLMENT = "readEnrolment"
    WRITE_ENROLMENT = "writeEnrolment"  # create and revoke, approve and reject machines
    RELEASE = "release"  # a node for re-imaging
    READ_ROLLOUT = "readRollout"
    WRITE_ROLLOUT = "writeRollout"  # create, pause, resume, abort, reverse, approve and delete; allow a revision
    WRITE_TRUSTED = "writeTrusted"  # set properties that decide what a node trusts, see `nodes.write_permissions`


PERMISSIONS: Mapping[Role, frozenset[Operation]] = {
    Role.OWNER: frozenset(Operation) - {Operation.ROTATE_KEY},
    Role.CONTRIBUTOR: frozenset(Operation)
    - {Operation.LIST_CREDENTIALS, Operation.WRITE_TRUSTED, Operation.ROTATE_KEY},
    Role.READER: frozenset(
        {
            *(Operation.READ, Operation.LIST, Operation.AUDIT),
            *(Operation.READ_POOL, Operation.READ_ENROLMENT, Operation.READ_ROLLOUT),
        }
    ),
}
NODE_OPERATIONS = frozenset(
    {
        Operation.READ,
        Operation.REPORT_STATUS,
        Operation.LIST_CREDENTIALS,
        Operation.REGENERATE_TOKEN,
        Operation.ROTATE_KEY,
    }
)

Segments = tuple[str, ...]


class Roles:
    def __init__(self, grants: Iterable[RoleGrant], assignments: AzureAssignments | None = None) -> None:
        self._assignments = assignments
        # by tenant and principal: the same application has the same ID in several tenants
        self._grants: dict[tuple[str, str], list[tuple[Segments, frozenset[Operation]]]] = {}
        for grant in grants:
            entry = (segments(grant.scope), PERMISSIONS[grant.role])
            self._grants.setdefault((grant.tenant_id or "", grant.principal.lower()), []).append(entry)

    def allows_now(
        self, caller: Caller, operation: Operation, cluster: ClusterId, node_identity: str = ""
    ) -> bool | None:
        """Decides without a request to Azure. Returns None if Azure must be queried, which `allows` does."""
        if caller.kind in {CallerKind.KEY, CallerKind.NODE_KEY}:
            # A node key acts only as its node, which the authorizer decides.
            return caller.kind is CallerKind.KEY and operation is not Operation.ROTATE_KEY
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
        """Returns whether the caller may perform the operation on the cluster, or on the node with this identity.

        With `ask=False`, Azure is not queried, so that requests for invented clusters cause no calls to Azure.
        """
        now = self.allows_now(caller, operation, cluster, node_identity)
        if now is not None or self._assignments is None or not ask:
            return bool(now)
        return permitted(await self._assignments.roles(caller, cluster), operation)

    def _granted(self, caller: Caller, operation: Operation, cluster: ClusterId) -> bool:
        if not caller.tenant:
            return False
        grants = [grant for each in caller.ids for grant in self._grants.get((caller.tenant, each), ())]
        if not grants:
            return False
        where = segments(cluster.key)
        return any(operation in operations and covers(scope, where) for scope, operations in grants)


def permitted(roles: Iterable[Role], operation: Operation) -> bool:
    return any(operation in PERMISSIONS[role] for role in roles)


def segments(scope: str) -> Segments:
    return tuple(scope.lower().strip("/").split("/")) if scope.strip("/") else ()


def covers(scope: Segments, where: Segments) -> bool:
    """Returns whether the scope contains `where`. Compares whole segments: `/a` does not contain `/ab`."""
    return where[: len(scope)] == scope


ASSIGNMENTS_API_VERSION = "2022-04-01"
FRESH_SECONDS = 300.0
LAST_KNOWN_SECONDS = 3600.0  # lifetime of the last response while Azure is unreachable
RETRY_SECONDS = 15.0  # between retries while Azure is unreachable
MAX_CACHED_ROLES = 20_000

# Built-in roles of Azure by their IDs, which are the same in every tenant.
DEFINITIONS: Mapping[str, Role] = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": Role.OWNER,
    "b24988ac-6180-42a0-ab88-20f7382dd24c": Role.CONTRIBUTOR,
    "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8": Role.CONTRIBUTOR,  # Azure Kubernetes Service Contributor Role
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": Role.READER,
}
MANAGEMENT_GROUPS = ("providers", "microsoft.management", "managementgroups")

log = logging.getLogger(__name__)


class ArmLister(Protocol):
    """The part of `azure.arm` that is used here."""

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class CachedRoles:
    roles: frozenset[Role]
    read_at: float  # when Azure was last queried
    answered: float  # when Azure last answered

    def is_fresh(self, now: float) -> bool:
        max_age = FRESH_SECONDS if self.read_at == self.answered else RETRY_SECONDS
        return now - self.read_at < max_age


class AzureAssignments:
    """Reads role assignments from Azure and caches them. Must be used from one event loop only."""

    def __init__(self, arm: ArmLister, tenant: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`tenant` is the tenant of the subscriptions: callers of other tenants have no assignments there. An object
        ID alone does not name a caller, because another tenant, such as that of a private cloud, may choose the same.
        """
        self._arm = arm
        self._tenant = tenant.lower()
        self._clock = clock
        self._answers: BoundedCache[tuple[str, str], CachedRoles] = BoundedCache(MAX_CACHED_ROLES)
        self._pending: dict[tuple[str, str], asyncio.Task[frozenset[Role]]] = {}

    def known(self, caller: Caller, cluster: ClusterId) -> frozenset[Role] | None:
        if not caller.tenant or caller.tenant != self._tenant:
            return frozenset()
        found = self._answers.get((caller.id, cluster.key))
        return found.roles if found and found.is_fresh(self._clock()) else None

    async def roles(self, caller: Caller, cluster: ClusterId) -> frozenset[Role]:
        found = self.known(caller, cluster)
        if found is not None:
            return found
        key = (caller.id, cluster.key)
        if key not in self._pending:
            self._pending[key] = asyncio.get_running_loop().create_task(self._query(caller, cluster))
            self._pending[key].add_done_callback(lambda _: self._pending.pop(key, None))
        return await asyncio.shield(self._pending[key])

    async def _query(self, caller: Caller, cluster: ClusterId) -> frozenset[Role]:
        key, read_at = (caller.id, cluster.key), self._clock()
        who = caller.id.replace("'", "''")
        query = {"$filter": f"assignedTo('{who}')"}
        path = f"{cluster}/providers/Microsoft.Authorization/roleAssignments"
        try:
            found = await asyncio.to_thread(lambda: self._arm.list(path, ASSIGNMENTS_API_VERSION, **query))
            answer = CachedRoles(effective_roles(found, cluster), read_at, read_at)
        except FlexError as error:
            log.warning("Cannot read the role assignments on %s: %s", cluster, error)
            answer = self._last_known(key, read_at)
        self._answers[key] = answer
        return answer.roles

    def _last_known(self, key: tuple[str, str], now: float) -> CachedRoles:
        """Returns the last response of Azure for a limited time, then no roles."""
        last = self._answers.get(key)
        if last is None or now - last.answered > LAST_KNOWN_SECONDS:
            return CachedRoles(frozenset(), now, float("-inf"))
        return CachedRoles(last.roles, now, last.answered)


def effective_roles(assignments: Iterable[Mapping[str, Any]], cluster: ClusterId) -> frozenset[Role]:
    """Returns the roles that apply to the cluster. Azure also lists assignments on child resources, which do not.

    An assignment with a condition counts as none: what the condition permits cannot be evaluated here.
    """
    where = segments(cluster.key)
    roles = set()
    for each in assignments:
        properties = each.get("properties") or {}
        role = DEFINITIONS.get(str(properties.get("roleDefinitionId", "")).rpartition("/")[2].lower())
        scope = str(properties.get("scope") or "")
        if not role or not scope or not _applies(segments(scope), where):
            continue
        if properties.get("condition"):
            log.warning("The role assignment %s has a condition, and gives no role here.", each.get("id", scope))
            continue
        roles.add(role)
    return frozenset(roles)


def _applies(scope: Segments, where: Segments) -> bool:
    # A management group is listed only if it contains the subscription, which its ID does not show.
    return covers(scope, where) or scope[:3] == MANAGEMENT_GROUPS
