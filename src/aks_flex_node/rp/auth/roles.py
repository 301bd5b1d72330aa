"""Who may do what: permissions as data, and one question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_node.rp.arm.ids import ClusterId
    from aks_flex_node.rp.auth.settings import Role, RoleGrant
    from aks_flex_node.rp.callers import Caller

Operation = Literal["read", "list", "write", "delete", "regenerateToken", "reportStatus", "listCredentials", "audit"]
OPERATIONS: frozenset[Operation] = frozenset(
    {"read", "list", "write", "delete", "regenerateToken", "reportStatus", "listCredentials", "audit"}
)

PERMISSIONS: Mapping[Role, frozenset[Operation]] = {
    "owner": OPERATIONS,
    "contributor": OPERATIONS - {"listCredentials"},
    "reader": frozenset({"read", "list", "audit"}),
}
NODE: frozenset[Operation] = frozenset({"read", "reportStatus", "listCredentials", "regenerateToken"})

Segments = tuple[str, ...]


class Assignments(Protocol):
    """Roles that somebody else gives away."""

    def known(self, caller: Caller, cluster: ClusterId) -> frozenset[Role] | None: ...

    async def roles(self, caller: Caller, cluster: ClusterId) -> frozenset[Role]: ...


class Roles:
    def __init__(self, grants: Iterable[RoleGrant], assignments: Assignments | None = None) -> None:
        self._assignments = assignments
        self._grants: dict[str, list[tuple[Segments, frozenset[Operation]]]] = {}
        for grant in grants:
            entry = (segments(grant.scope), PERMISSIONS[grant.role])
            self._grants.setdefault(grant.principal.lower(), []).append(entry)

    def allows_now(
        self, caller: Caller, operation: Operation, cluster: ClusterId, node_identity: str = ""
    ) -> bool | None:
        """Without asking anybody; None when Azure has to be asked, which `allows` does."""
        if caller.kind == "Key":
            return True
        if operation in NODE and caller.is_node(node_identity):
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
