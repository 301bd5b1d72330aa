"""ASGI middleware that answers the polls of nodes with 304.

A poll is `GET .../flexNodeConfig/{node}` with If-None-Match, held for as long as `Prefer: wait` requests. Every
other response, errors included, is left to the application behind this middleware.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from aks_flex_node.api.contract import API_VERSION
from aks_flex_node.api.machine_identity import MACHINE_HEADER
from aks_flex_rp.api.http_messages import respond_to_cancelled
from aks_flex_rp.arm.ids import ClusterId, parse_cluster_id
from aks_flex_rp.auth.auth_errors import TenantUnreachable, TooManyFailures, Unauthenticated
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.bounded_memory import BoundedCache
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.store.model import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.api.authorization import Authorizer
    from aks_flex_rp.api.metrics import Metrics
    from aks_flex_rp.api.poll_cache import PollState
    from aks_flex_rp.callers import Caller, NodeRef

    App = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

MAX_CACHED_PATHS = 200_000  # entries
LONGEST_ID = 128
LONGEST_WAIT = 55.0  # seconds; ARM's timeout for a provider is 60
_PATH = re.compile(
    r"/subscriptions/([0-9a-f-]{36})/resourcegroups/([^/]+)/providers/microsoft\.containerservice"
    r"/managedclusters/([^/]+)/flexnodeconfig/([^/]+)/?",
    re.IGNORECASE,
)
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)
_MACHINE = MACHINE_HEADER.lower().encode()
_VERSION = f"api-version={API_VERSION}".encode()


class PollRequest(NamedTuple):
    path: str
    node_ref: NodeRef
    etag: bytes
    authorization: bytes
    seconds: float
    echoed: bytes = b""  # the client's request ID, if it wants it returned
    machine: bytes = b""  # the machine of the agent, as it names itself


class PathCache:
    """Cache of the node keys of request paths.

    Only answered paths are cached, so invented ones cannot fill the memory.
    """

    def __init__(self, max_size: int = MAX_CACHED_PATHS) -> None:
        self._max_size = max_size
        self._known: BoundedCache[str, NodeRef] = BoundedCache(max_size)
        # A hundred thousand nodes share the key of their cluster. It is not interned: some releases of Python never
        # free such strings, and a stranger can make up any number of clusters.
        self._clusters: dict[str, str] = {}

    def node_ref(self, path: str) -> NodeRef | None:
        known = self._known.get(path)
        found = _PATH.fullmatch(path) if known is None else None
        if found is None:
            return known
        key = ClusterId(found[1], found[2], found[3]).key
        return self._clusters.get(key, key), found[4].lower()

    def remember(self, path: str, node_ref: NodeRef) -> None:
        if path not in self._known:
            if len(self._clusters) < self._max_size:
                self._clusters.setdefault(node_ref[0], node_ref[0])
            self._known[path] = node_ref


class RequestIds:
    """Generates unique request IDs in the format of a GUID: a random prefix and a counter."""

    def __init__(self) -> None:
        chance = secrets.token_hex(10)
        self._prefix = "-".join((chance[:8], chance[8:12], chance[12:16], chance[16:20], "")).encode()
        self._numbers = count(secrets.randbits(40))

    def fresh(self) -> bytes:
        return b"%s%012x" % (self._prefix, next(self._numbers))


@dataclass(frozen=True)
class PollHandler:
    app: App
    authorizer: Authorizer
    metrics: Metrics
    paths: PathCache = field(default_factory=PathCache)
    ids: RequestIds = field(default_factory=RequestIds)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        poll = parse_poll(scope, self.paths) if scope["type"] == "http" and scope["method"] == "GET" else None
        try:
            unchanged = poll is not None and await self._unchanged(poll, scope)
            if poll and unchanged:
                await send({"type": "http.response.start", "status": 304, "headers": self._headers(poll)})
        except asyncio.CancelledError:
            await respond_to_cancelled(scope, receive, send)
            return
        if unchanged:
            await send({"type": "http.response.body"})
            self.metrics.poll_not_modified.inc()
        else:
            await self.app(scope, receive, send)

    def _headers(self, poll: PollRequest) -> list[tuple[bytes, bytes]]:
        headers = [(b"etag", poll.etag), (b"x-ms-request-id", self.ids.fresh()), (b"cache-control", b"no-cache")]
        return [*headers, (b"x-ms-client-request-id", poll.echoed)] if poll.echoed else headers

    async def _unchanged(self, poll: PollRequest, scope: dict[str, Any]) -> bool:
        """Returns whether the caller is authorized and its etag is current, also after the requested wait."""
        began = time.perf_counter()
        tokens, poll_cache = self.authorizer.verifier, self.authorizer.poll_cache
        try:
            caller = tokens.cached(poll.authorization)
            if caller is None:
                caller = await tokens.caller(poll.authorization.decode("latin-1"), _source(scope))
            state = poll_cache.cached(poll.node_ref) or await poll_cache.state(poll.node_ref)
            if not self._admits(poll, caller, state):
                return False
            self.metrics.poll_seconds.observe(time.perf_counter() - began)
            return not poll.seconds or not await poll_cache.wait_for_change(poll.node_ref, state.etag, poll.seconds)
        except (Unauthenticated, TooManyFailures, TenantUnreachable, StoreError):
            return False

    def _admits(self, poll: PollRequest, caller: Caller, poll_state: PollState) -> bool:
        authorizer, node_ref = self.authorizer, poll.node_ref
        if by_key := caller.kind is CallerKind.NODE_KEY:
            own = caller.node == node_ref and caller.id == poll_state.keys.current
        else:
            own = caller.is_node(poll_state.identity)
        if own and not by_key and (caller.identity not in poll_state.owned or poll_state.keys.is_revoked):
            return False  # the application decides to which node the identity belongs
        if not own and not self._may_read(caller, node_ref[0]):
            return False
        if poll_state.etag.encode() != poll.etag or authorizer.retry_after(caller, node_ref if own else None, "read"):
            return False
        granted = poll_state.granted_identity
        if own and granted is not None and (not granted if by_key else granted != caller.id):
            return False  # the node's identity must be granted access to the cluster first
        if own and poll.machine and poll_state.machine and not _is_machine(poll.machine, poll_state.machine):
            return False  # the node lives on another machine
        if own:
            authorizer.poll_cache.record_seen(*node_ref, time.time())
        self.paths.remember(poll.path, node_ref)
        return True

    def _may_read(self, caller: Caller, key: str) -> bool:
        cluster = parse_cluster_id(key)
        return cluster is not None and bool(self.authorizer.roles.allows_now(caller, Operation.READ, cluster))


def parse_poll(scope: dict[str, Any], paths: PathCache) -> PollRequest | None:
    """Parses a request. Returns None if it is not a poll that this middleware can answer."""
    headers = dict(scope["headers"])
    etag = headers.get(b"if-none-match")
    node_ref = paths.node_ref(scope["path"]) if etag and scope["query_string"] == _VERSION else None
    if not etag or node_ref is None:
        return None
    prefer, client = headers.get(b"prefer"), headers.get(b"x-ms-client-request-id", b"")
    is_echoed = headers.get(b"x-ms-return-client-request-id", b"").lower() == b"true" and len(client) <= LONGEST_ID
    return PollRequest(
        scope["path"],
        node_ref,
        etag,
        headers.get(b"authorization", b""),
        _seconds(prefer) if prefer else 0.0,
        client if is_echoed else b"",
        headers.get(_MACHINE, b""),
    )


def _source(scope: dict[str, Any]) -> str:
    return str((scope.get("client") or ("",))[0])


def _is_machine(header: bytes, known: str) -> bool:
    return header.startswith(b"id=%s" % known.encode()) and header.count(b"id=") == 1


def _seconds(prefer: bytes) -> float:
    found = _WAIT.search(prefer)
    return min(float(found[1]), LONGEST_WAIT) if found else 0.0
