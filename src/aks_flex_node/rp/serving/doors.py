"""The order in which every request of ARM is let in: its version, who it is from, how much, and whether it may."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.ids import ClusterId, cluster_id
from aks_flex_node.rp.auth.refusals import Unauthenticated
from aks_flex_node.rp.auth.roles import NODE
from aks_flex_node.rp.nodes.around import Request

if TYPE_CHECKING:
    from aks_flex_node.rp.auth.limits import Kind, Limits
    from aks_flex_node.rp.auth.roles import Operation, Roles
    from aks_flex_node.rp.auth.tokens import Tokens
    from aks_flex_node.rp.callers import Caller
    from aks_flex_node.rp.nodes.around import Workshop
    from aks_flex_node.rp.serving.cards import Cards, Place

WRITES = frozenset({"write", "delete", "regenerateToken", "reportStatus"})
ACTIONS: dict[str, Operation] = {
    "regeneratetoken": "regenerateToken",
    "listconfigurl": "regenerateToken",  # by a name that templates can call
    "reportstatus": "reportStatus",
    "listcredentials": "listCredentials",
}
_BELOW = re.compile(r"(?P<cluster>/.*?)/flexnodeconfig(?:/(?P<node>[^/]*)(?:/(?P<action>[^/]*))?)?/?", re.IGNORECASE)
_NODE = re.compile(r"(?=.{1,63}\Z)[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*")


@dataclass(frozen=True)
class Target:
    """What an ARM path names."""

    cluster: ClusterId
    node: str = ""
    action: Operation | None = None

    @property
    def id(self) -> str:
        return self.cluster.node(self.node) if self.node else f"{self.cluster}/flexNodeConfig"


def target(path: str) -> Target:
    """Raises when the path names nothing of ours, or by a name that nothing of ours can have."""
    found = _BELOW.fullmatch(path)
    cluster = cluster_id(found["cluster"]) if found else None
    if found is None or cluster is None:
        raise errors.not_here()
    node, action = found["node"] or "", found["action"]
    if node and not _NODE.fullmatch(node):
        message = (
            f"'{node[:80]}' is no name of a node: up to 63 letters, digits, '-' and '.', with a letter or digit at "
            "both ends of each part."
        )
        raise errors.ArmError(400, "InvalidResourceName", message, "nodeName")
    if action and action.lower() not in ACTIONS:
        raise errors.not_here()
    return Target(cluster, node, ACTIONS[action.lower()] if action else None)


@dataclass(frozen=True)
class Doors:
    tokens: Tokens
    roles: Roles
    limits: Limits
    cards: Cards
    shop: Workshop

    async def caller(self, authorization: str) -> Caller:
        try:
            return await self.tokens.caller(authorization)
        except Unauthenticated as refused:
            headers = {"WWW-Authenticate": refused.challenge}
            raise errors.ArmError(401, refused.code, refused.message, headers=headers) from None

    async def admit(
        self, operation: Operation, target: Target, caller: Caller, request_id: str, source: str
    ) -> Request:
        """Whether the caller may do this, asked before anybody looks whether there is anything to do it to."""
        identity = await self.identity(operation, target)
        self.limit(caller, target, identity, operation)
        request = Request(caller, request_id, source)
        known = await self.shop.clusters.find(target.cluster.key)
        if not await self.roles.allows(caller, operation, target.cluster, identity, ask=known is not None):
            if self.limits.take(f"{caller.id} denied", "write") == 0:  # who floods us does not flood the audit
                event = request.event(self.shop.now(), operation, target.id)
                await self.shop.store.record(replace(event, outcome="denied"))
            raise errors.forbidden(caller, action_name(operation), target.id)
        return request

    async def may_see_secrets(self, caller: Caller, target: Target) -> bool:
        identity = await self.identity("listCredentials", target)
        return await self.roles.allows(caller, "listCredentials", target.cluster, identity)

    async def identity(self, operation: Operation, target: Target) -> str:
        """Whose token speaks for the node: to be read, from memory; for all else, as it is in the store."""
        if not target.node or operation not in NODE:
            return ""  # what no node may do is not asked about
        place = (target.cluster.key, target.node.lower())
        if operation == "read":
            return (await self.cards.card(place)).identity
        return (await self.shop.store.trace(*place)).identity

    def limit(self, caller: Caller, target: Target, identity: str, operation: Operation) -> None:
        own = caller.is_node(identity)
        place = (target.cluster.key, target.node.lower()) if own else None
        if wait := self.over_limit(caller, place, "write" if operation in WRITES else "read"):
            raise errors.too_many(wait)

    def over_limit(self, caller: Caller, own: Place | None, kind: Kind) -> float:
        """Seconds to wait, or 0. Nodes that share one identity do not take each other's share."""
        return self.limits.take(f"{caller.id} {own[0]}/{own[1]}" if own else caller.id, kind)


def action_name(operation: str) -> str:
    """As Azure names it in roles and refusals."""
    kind = "Microsoft.ContainerService/managedClusters/flexNodeConfig"
    if operation in {"read", "list"}:
        return f"{kind}/read"
    return f"{kind}/{operation}" if operation in {"write", "delete"} else f"{kind}/{operation}/action"
