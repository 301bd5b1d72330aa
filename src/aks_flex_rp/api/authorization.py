"""Parses ARM paths and authorizes requests: authentication, keys of nodes, rate limit, role check. A request after
that, and links to the next page of its response.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity, parse_machine_header
from aks_flex_rp.api.http_messages import json_response
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import NODE_TYPE, POOL_TYPE, ClusterId, parse_cluster_id
from aks_flex_rp.auth.auth_errors import TooManyFailures, Unauthenticated
from aks_flex_rp.auth.node_assertions import KnownNode
from aks_flex_rp.auth.rate_limit import RateLimiter
from aks_flex_rp.auth.roles import NODE_OPERATIONS, Operation
from aks_flex_rp.auth.token_verifier import TokenVerifier
from aks_flex_rp.bounded_memory import BoundedCache, Throttle
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.node_conditions import condition, with_condition
from aks_flex_rp.node_keys import KeyUse
from aks_flex_rp.nodes import identity_ownership, queries
from aks_flex_rp.nodes.context import RequestContext
from aks_flex_rp.nodes.identity_ownership import REMEDY, IdentityOwnership
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.store.model import AuditAction, Conflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_rp.api.poll_cache import PollCache, PollState
    from aks_flex_rp.auth.admin_key import AdminKey
    from aks_flex_rp.auth.node_assertions import SignedAssertion
    from aks_flex_rp.auth.rate_limit import RateKind
    from aks_flex_rp.auth.roles import Roles
    from aks_flex_rp.callers import Caller, NodeRef
    from aks_flex_rp.nodes.context import ClusterInfo, ClusterOperations, NodeContext
    from aks_flex_rp.settings import ServiceSettings
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import LastKnownNode

    Handlers = dict[Operation, Callable[["AuthorizedRequest"], Awaitable[Response]]]


SHARED_CONDITION = "IdentityShared"
WARN_SECONDS = 600.0  # between warnings of one node
MAX_REMEMBERED = 20_000  # refusals

log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """The cached states of both nodes at the time of the answer. The cache drops the state of a node that changes."""

    state: PollState
    owner: NodeRef
    owner_state: PollState


class SharedIdentities:
    """Nodes that have the identity of another node, and so no rights by it. They are shown to operators.

    Such a node polls for as long as it exists. So an answer is remembered until one of the two nodes changes, and the
    warning and the condition are repeated only every ten minutes.
    """

    def __init__(self, store: Store, poll_cache: PollCache, clock: Callable[[], float] = time.time) -> None:
        self._store, self._poll_cache, self._clock = store, poll_cache, clock
        self._ownership = IdentityOwnership(store)
        self._refusals: BoundedCache[tuple[NodeRef, str], Refusal] = BoundedCache(MAX_REMEMBERED)
        self._warnings = Throttle(WARN_SECONDS, clock, MAX_REMEMBERED)

    async def acts_as(self, caller: Caller, node_ref: NodeRef, identity: str) -> bool:
        """Returns whether the caller, whose IDs match the node's identity, may act as this node."""
        state = await self._poll_cache.state(node_ref)
        if self._is_refused(caller, node_ref, state):
            return False
        owner = await self._ownership.owner(caller, *node_ref, identity)
        if owner == node_ref:
            self._poll_cache.forget_owner(node_ref, caller.identity)
            return True
        if owner:
            owner_state = await self._poll_cache.state(owner)
            if owner_state.etag and caller.is_node(owner_state.identity):  # it has not changed meanwhile
                self._refusals[node_ref, caller.identity] = Refusal(state, owner, owner_state)
            if not self._warnings.wait((node_ref, owner)):
                await self._warn(caller, node_ref, owner)
        return False

    def _is_refused(self, caller: Caller, node_ref: NodeRef, state: PollState) -> bool:
        known = self._refusals.get((node_ref, caller.identity))
        return (
            known is not None and known.state is state and self._poll_cache.cached(known.owner) is known.owner_state
        )

    async def _warn(self, caller: Caller, node_ref: NodeRef, owner: NodeRef) -> None:
        (cluster, node), (owner_cluster, owner_node) = node_ref, owner
        log.warning(
            "%s (%s) may not act as node %s of %s: it is the identity of node %s of %s.",
            *(caller.name, caller.id, node, cluster, owner_node, owner_cluster),
        )
        found = await self._store.node(*node_ref)
        if found is None:
            return
        where = f"node {owner_node}" if owner_cluster == cluster else "a node of another cluster"
        # The node's own conditions replace it as soon as it may report again.
        message = f"The identity of this node signed in as {where}, so this node is not managed. {REMEDY}"
        shared = condition(SHARED_CONDITION, "SignedInAsAnotherNode", message, self._clock())
        status = with_condition(found.status, shared)
        with suppress(Conflict):  # the next warning shows it
            await self._store.report(cluster, node, status, found.last_seen, before=found.status)


WRITE_OPERATIONS = frozenset(
    {
        *(Operation.WRITE, Operation.DELETE, Operation.REGENERATE_TOKEN, Operation.REPORT_STATUS),
        *(Operation.ROTATE_KEY, Operation.REVOKE_KEY),
        *(Operation.WRITE_POOL, Operation.DELETE_POOL, Operation.APPLY_POOL),
        *(Operation.WRITE_ENROLMENT, Operation.RELEASE, Operation.WRITE_ROLLOUT),
    }
)
OWNER_WRITES = frozenset({Operation.WRITE, Operation.WRITE_POOL, Operation.APPLY_POOL, Operation.WRITE_ROLLOUT})
BLOCKED_OPERATIONS = frozenset({Operation.REGENERATE_TOKEN, Operation.LIST_CREDENTIALS, Operation.ROTATE_KEY})
ACTIONS: dict[str, Operation] = {
    "regeneratetoken": Operation.REGENERATE_TOKEN,
    "listconfigurl": Operation.REGENERATE_TOKEN,  # an alias that ARM templates can call with the list*() functions
    "reportstatus": Operation.REPORT_STATUS,
    "listcredentials": Operation.LIST_CREDENTIALS,
    "rotatekey": Operation.ROTATE_KEY,
    "revokekey": Operation.REVOKE_KEY,
    "release": Operation.RELEASE,
}
MAX_FOUND = 200_000  # entries
_BELOW = re.compile(r"(?P<cluster>/.*?)/flexnodeconfig(?:/(?P<node>[^/]*)(?:/(?P<action>[^/]*))?)?/?", re.IGNORECASE)
_POOLS = re.compile(
    r"(?P<cluster>/.*?)/flexnodepools"
    r"(?:/(?P<pool>[^/]+)(?:/(?:(?P<action>apply)|(?P<revisions>revisions)(?:/(?P<number>[0-9]{1,15}))?"
    r"|(?P<enrolments>enrolments)(?:/(?P<enrolment>[a-z0-9]{1,32})(?:/(?P<part>revoke|listmachines|approve|reject))?)?"
    r"|(?P<allow>allowrevision)"
    r"|(?P<rollouts>rollouts)(?:/(?P<rollout>[A-Za-z0-9-]{1,64})"
    r"(?:/(?P<order>pause|resume|abort|reverse|approve|listnodes))?)?))?)?/?",
    re.IGNORECASE,
)
_POOL = re.compile(r"[a-z][a-z0-9]{0,11}", re.IGNORECASE)
_NODE = re.compile(r"(?=.{1,63}\Z)[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*")


@dataclass(frozen=True)
class PoolTarget:
    """The pools of a cluster, or one of them, and what below it a path identifies."""

    name: str = ""  # empty for the list; in lower case, as AKS names its pools
    collection: str = ""  # below the pool: revisions, enrolments or rollouts
    item: str = ""  # of the collection: its number or key
    part: str = ""  # of an enrolment or roll-out: its machines or nodes, or an action

    @property
    def path(self) -> str:
        """Returns the part of the ID below the pools."""
        below = () if self.collection == "revisions" else (self.collection, self.item)
        return "/".join(filter(None, (self.name, *below)))


@dataclass(frozen=True)
class ArmTarget:
    """The cluster and node, or pools, that an ARM path identifies, and the action."""

    cluster: ClusterId
    node: str = ""
    action: Operation | None = None
    pool: PoolTarget | None = None

    @property
    def node_ref(self) -> NodeRef:
        return self.cluster.key, self.node.lower()

    @property
    def id(self) -> str:
        if self.pool:
            return self.cluster.pool(self.pool.path).rstrip("/")
        return self.cluster.node(self.node) if self.node else f"{self.cluster}/flexNodeConfig"


def parse_target(path: str) -> ArmTarget:
    """Parses an ARM path. Raises ArmError if it identifies no supported resource, or contains an invalid name."""
    if pools := _POOLS.fullmatch(path):
        return _pool_target(pools)
    found = _BELOW.fullmatch(path)
    cluster = parse_cluster_id(found["cluster"]) if found else None
    if found is None or cluster is None:
        raise errors.unknown_path()
    node, action = found["node"] or "", found["action"]
    if node and not _NODE.fullmatch(node):
        message = (
            f"'{node[:80]}' is not a valid node name. Use up to 63 letters, digits, '-' and '.', with a letter or "
            "digit at both ends of each part."
        )
        raise errors.ArmError(400, "InvalidResourceName", message, "nodeName")
    if action and action.lower() not in ACTIONS:
        raise errors.unknown_path()
    return ArmTarget(cluster, node, ACTIONS[action.lower()] if action else None)


def _pool_target(found: re.Match[str]) -> ArmTarget:
    cluster, name = parse_cluster_id(found["cluster"]), found["pool"] or ""
    if cluster is None:
        raise errors.unknown_path()
    if name and not _POOL.fullmatch(name):
        message = f"'{name[:80]}' is not a valid pool name. Use a letter, then up to 11 lowercase letters and digits."
        raise errors.ArmError(400, "InvalidResourceName", message, "poolName")
    action = Operation.APPLY_POOL if found["action"] else Operation.WRITE_ROLLOUT if found["allow"] else None
    part = (found["part"] or found["order"] or "").lower()
    item = (found["number"] or found["enrolment"] or found["rollout"] or "").lower()
    collection = next((each for each in ("revisions", "enrolments", "rollouts") if found[each]), "")
    return ArmTarget(cluster, action=action, pool=PoolTarget(name.lower(), collection, item, part))


@dataclass(frozen=True)
class NodeKeyLookup:
    """Finds the keys of the node that an assertion names: in memory for nodes that are heard from, else in the store.

    Every client can sign an assertion with a key of its own. So a lookup in the store that finds nothing counts
    against the address of the client, and an address with too many of them causes no other one. Failed requests with
    URLs from the same address do not count. Keys that were found before are looked up in any case, so that a client
    does not stop the nodes that share its address.
    """

    clusters: ClusterOperations
    poll_cache: PollCache
    limits: RateLimiter
    audiences: dict[str, str] = field(default_factory=dict)  # of clusters that were found, by their keys
    found: BoundedCache[str, None] = field(default_factory=lambda: BoundedCache(MAX_FOUND))  # thumbprints of nodes

    async def find(self, assertion: SignedAssertion) -> KnownNode | None:
        """Returns what verifies an assertion. The keys of a deleted node are still known.

        Raises TooManyFailures if the store would have to be read for an address that has failed too often.
        """
        cached = self.poll_cache.cached(assertion.node)
        key, address = assertion.thumbprint, f"node keys {assertion.source}"
        is_same = self.audiences.get(assertion.node[0]) == assertion.audience
        if cached and is_same and key in cached.keys.known:
            return KnownNode(assertion.audience, cached.keys)
        if key not in self.found and (wait := self.limits.wait(address, "read")):
            raise TooManyFailures(wait)
        node = await self._read(assertion)
        self.found.pop(key, None)  # only now: the store may fail
        if node is None or key not in node.keys.known:
            self.limits.acquire(address, "read")
            return node
        self.found[key] = None
        return node

    async def _read(self, assertion: SignedAssertion) -> KnownNode | None:
        key = assertion.node[0]
        cluster = await self.clusters.find(key)
        if cluster is None or not cluster.key_audience:
            self.audiences.pop(key, None)
            return None
        self.audiences[key] = cluster.key_audience
        if cluster.key_audience != assertion.audience:
            return None
        return KnownNode(cluster.key_audience, (await self.poll_cache.refresh(assertion.node)).keys)


@dataclass(frozen=True)
class Authorizer:
    verifier: TokenVerifier
    roles: Roles
    limits: RateLimiter
    poll_cache: PollCache
    context: NodeContext
    identities: SharedIdentities

    async def caller(self, authorization: str, source: str) -> Caller:
        try:
            return await self.verifier.caller(authorization, source)
        except TooManyFailures as refused:
            raise errors.too_many_requests(refused.seconds) from None
        except Unauthenticated as refused:
            headers = {"WWW-Authenticate": refused.challenge}
            raise errors.ArmError(401, refused.code, refused.message, headers=headers) from None

    async def admit(
        self, operation: Operation, target: ArmTarget, caller: Caller, request_id: str, source: str
    ) -> RequestContext:
        """Authorizes the caller for the operation.

        This happens before the resource is looked up, so that existence leaks nothing.
        """
        key_use = await self._key_use(caller, operation, target)
        identity = await self.node_identity(operation, target)
        own = key_use is not None or await self._acts_as_node(caller, operation, target, identity)
        shared, identity = caller.is_node(identity) and not own, identity if own else ""
        self.check_limit(caller, target, operation, own=own)
        request = RequestContext(
            caller,
            request_id,
            source,
            acts_as_node=own,
            key_use=key_use,
            may_see=lambda cluster: self.may_read(caller, cluster),
        )
        if key_use is not None:
            return request
        known = await self.context.clusters.find(target.cluster.key)
        if not await self.roles.allows(caller, operation, target.cluster, identity, ask=known is not None):
            if (
                self.limits.acquire(f"{caller.id} denied", "write") == 0
            ):  # limits the audit events that one unauthorized caller can cause
                event = request.event(self.context.now(), AuditAction(operation.value), target.id)
                await self.context.store.record(event.denied())
            if shared:
                raise identity_ownership.refused(target.node)
            raise errors.forbidden(caller, azure_action(operation), target.id)
        if operation in OWNER_WRITES:
            trusted = await self.roles.allows(caller, Operation.WRITE_TRUSTED, target.cluster, ask=known is not None)
            return replace(request, is_owner=trusted)
        return request

    async def _key_use(self, caller: Caller, operation: Operation, target: ArmTarget) -> KeyUse | None:
        """Returns what the node key of the caller is to the node, or None if the caller may not act as the node by
        such a key. Raises ArmError for a key that was the node's. A former key may only read, to learn its fate.
        """
        is_node = caller.kind is CallerKind.NODE_KEY and caller.node == target.node_ref
        if not is_node or operation not in NODE_OPERATIONS:
            return None
        use = (await self._known_node(operation, target)).keys.use_of(caller.id)
        if use is KeyUse.REVOKED:
            raise errors.key_revoked(target.node)
        if use is KeyUse.FORMER and operation is not Operation.READ:
            raise errors.key_replaced(target.node)
        return None if use is KeyUse.UNKNOWN else use

    async def _acts_as_node(self, caller: Caller, operation: Operation, target: ArmTarget, identity: str) -> bool:
        """Returns whether the caller is the node, and no other node has its identity."""
        if not caller.is_node(identity):
            return False
        state = await self.poll_cache.state(target.node_ref)
        if state.keys.is_revoked or (operation in BLOCKED_OPERATIONS and state.keys.blocks(identity)):
            raise errors.key_revoked(target.node)  # of the machine, so its Azure identity may do nothing, either
        if caller.identity in state.owned or (operation is Operation.READ and not state.etag):
            return True  # the former identity of a deleted node may learn that the node is deleted
        return await self.identities.acts_as(caller, target.node_ref, identity)

    async def may_read(self, caller: Caller, cluster: str) -> bool:
        """Returns whether the caller may read the nodes of a cluster that the service knows."""
        known = await self.context.clusters.find(cluster)
        return known is not None and await self.roles.allows(caller, Operation.READ, known.id)

    async def may_see_secrets(self, caller: Caller, target: ArmTarget, *, own: bool) -> bool:
        if own and caller.kind is CallerKind.NODE_KEY:
            return True
        identity = await self.node_identity(Operation.LIST_CREDENTIALS, target) if own else ""
        return await self.roles.allows(caller, Operation.LIST_CREDENTIALS, target.cluster, identity)

    async def check_may_replace(self, caller: Caller, target: ArmTarget) -> None:
        """Raises ArmError unless the caller may move the node to another machine, which the node itself may not."""
        if not await self.roles.allows(caller, Operation.REGENERATE_TOKEN, target.cluster, ""):
            raise errors.forbidden(caller, azure_action(Operation.REGENERATE_TOKEN), target.id)

    async def node_identity(self, operation: Operation, target: ArmTarget) -> str:
        """Returns the identity that may act as the node."""
        if not target.node or operation not in NODE_OPERATIONS:
            return ""  # operations that no node may perform need no lookup
        return (await self._known_node(operation, target)).identity

    async def _known_node(self, operation: Operation, target: ArmTarget) -> PollState | LastKnownNode:
        """Returns what is known of a node: from the cache for reads, from the store for everything else."""
        if operation is Operation.READ:
            return await self.poll_cache.state(target.node_ref)
        return await self.context.store.last_known_node(*target.node_ref)

    def check_limit(self, caller: Caller, target: ArmTarget, operation: Operation, *, own: bool) -> None:
        node_ref = target.node_ref if own else None
        if wait := self.retry_after(caller, node_ref, "write" if operation in WRITE_OPERATIONS else "read"):
            raise errors.too_many_requests(wait)

    def retry_after(self, caller: Caller, own: NodeRef | None, kind: RateKind) -> float:
        """Returns the seconds to wait, or 0. Requests of an identity as a node have a limit of their own."""
        return self.limits.acquire((caller.id, *own) if own else caller.id, kind)


def open_authorizer(
    settings: ServiceSettings, roles: Roles, admin_key: AdminKey, poll_cache: PollCache, context: NodeContext
) -> Authorizer:
    limits = RateLimiter(settings.limits)
    node_keys = NodeKeyLookup(context.clusters, poll_cache, limits)
    tokens = TokenVerifier(settings.auth, admin_key, find_node=node_keys.find)
    return Authorizer(tokens, roles, limits, poll_cache, context, SharedIdentities(context.store, poll_cache))


POOL_ACTIONS: dict[str, str] = {
    Operation.READ_POOL: "read",
    Operation.WRITE_POOL: "write",
    Operation.DELETE_POOL: "delete",
    Operation.APPLY_POOL: "apply/action",
    Operation.READ_ENROLMENT: "enrolments/read",
    Operation.WRITE_ENROLMENT: "enrolments/write",
    Operation.READ_ROLLOUT: "rollouts/read",
    Operation.WRITE_ROLLOUT: "rollouts/write",
}


def azure_action(operation: str) -> str:
    """Returns the name of the operation in Azure roles and error messages."""
    if operation in POOL_ACTIONS:
        return f"{POOL_TYPE}/{POOL_ACTIONS[operation]}"
    kind = NODE_TYPE
    if operation in {Operation.READ, Operation.LIST}:
        return f"{kind}/read"
    return f"{kind}/{operation}" if operation in {Operation.WRITE, Operation.DELETE} else f"{kind}/{operation}/action"


T = TypeVar("T")


@dataclass(frozen=True)
class AuthorizedRequest:
    """An authenticated and authorized request with its target."""

    http_request: Incoming
    query: Mapping[str, str]
    target: ArmTarget
    cluster: ClusterInfo
    request: RequestContext

    @property
    def preconditions(self) -> Preconditions:
        headers = self.http_request.headers
        return Preconditions(
            headers.get("if-match", ""),
            headers.get("if-none-match", ""),
            self.flag("allowDowngrade"),
            self.flag("overrideRollout"),
        )

    @property
    def machine(self) -> MachineIdentity | None:
        """The machine that sent the request, if an agent did."""
        return parse_machine_header(self.http_request.headers.get(MACHINE_HEADER, ""))

    @property
    def pool(self) -> PoolTarget:
        """The pools or the pool of a request that has such a target."""
        if self.target.pool is None:
            raise errors.unknown_path()
        return self.target.pool

    @property
    def page_query(self) -> queries.ListQuery:
        """The size and the start of a page of a list that has no filter."""
        return queries.parse_list_query(None, self.query.get("$top"), self.query.get("$skiptoken"))

    def page(self, shown: list[dict[str, Any]], found: Sequence[T], key: Callable[[T], str]) -> Response:
        """Returns the response with a page of a list. More was found than is shown if another page follows, which
        starts after the `key` of the last that is shown.
        """
        more = {}
        if len(found) > len(shown):
            after = queries.skip_token(key(found[len(shown) - 1]))
            more = {"nextLink": next_link(self.http_request, after)}
        return json_response(200, {"value": shown, **more})

    def flag(self, name: str) -> bool:
        text = self.query.get(name.lower(), "false").lower()
        if text not in {"true", "false"}:
            raise ArmError(400, "InvalidQueryParameterValue", "The value must be true or false.", name)
        return text == "true"


def next_link(incoming: Incoming, after: str) -> str:
    """Builds the link to the next page on the URL that the caller used, which ARM passes in the Referer header."""
    own = str(incoming.url)
    referrer = incoming.headers.get("referer", "")
    parts = urlsplit(referrer)
    base = referrer if parts.scheme == "https" and parts.path.lower() == incoming.url.path.lower() else own
    query = {name: value for name, value in parse_qsl(incoming.url.query) if name.lower() != "$skiptoken"}
    return f"{base.partition('?')[0]}?{urlencode({**query, '$skipToken': after}, safe='$')}"
