"""A node's poll, before any framework: `GET …/flexNodeConfig/{node}` with If-None-Match, held while Prefer says so.

It answers 304 by itself and leaves everything else, first of all every refusal, to the application behind it. That
way there is one place for ARM's manners, and this one is as fast as a dictionary.
"""

from __future__ import annotations

import re
import secrets
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from aks_flex_node.rp.arm.errors import API_VERSION
from aks_flex_node.rp.arm.ids import ClusterId, cluster_id
from aks_flex_node.rp.auth.refusals import AuthorityAway, Unauthenticated
from aks_flex_node.rp.store.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_node.rp.callers import Caller
    from aks_flex_node.rp.serving.cards import Card, Place
    from aks_flex_node.rp.serving.doors import Doors
    from aks_flex_node.rp.serving.metrics import Metrics

    App = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

REMEMBERED = 200_000  # paths
LONGEST_ID = 128
LONGEST_WAIT = 55.0  # seconds; ARM gives a provider 60
_PATH = re.compile(
    r"/subscriptions/([0-9a-f-]{36})/resourcegroups/([^/]+)/providers/microsoft\.containerservice"
    r"/managedclusters/([^/]+)/flexnodeconfig/([^/]+)/?",
    re.IGNORECASE,
)
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)
_VERSION = f"api-version={API_VERSION}".encode()


class Poll(NamedTuple):
    path: str
    place: Place
    etag: bytes
    authorization: bytes
    seconds: float
    echoed: bytes = b""  # the client's own id of the request, when it wants it back


class Paths:
    """Whose paths are whose. Those that were answered are remembered: made-up ones must not fill the memory."""

    def __init__(self, room: int = REMEMBERED) -> None:
        self._room = room
        self._known: dict[str, Place] = {}

    def place(self, path: str) -> Place | None:
        known = self._known.get(path)
        found = _PATH.fullmatch(path) if known is None else None
        if found is None:
            return known
        key = ClusterId(found[1], found[2], found[3]).key
        return sys.intern(key), found[4].lower()  # a hundred thousand nodes share the name of their cluster

    def remember(self, path: str, place: Place) -> None:
        if path not in self._known:
            if len(self._known) >= self._room:
                del self._known[next(iter(self._known))]
            self._known[path] = place


class RequestIds:
    """Different from all others ever made, and in the shape of a GUID: half by chance, half by counting."""

    def __init__(self) -> None:
        chance = secrets.token_hex(10)
        self._prefix = "-".join((chance[:8], chance[8:12], chance[12:16], chance[16:20], "")).encode()
        self._numbers = count(secrets.randbits(40))

    def fresh(self) -> bytes:
        return b"%s%012x" % (self._prefix, next(self._numbers))


@dataclass(frozen=True)
class Polling:
    app: App
    doors: Doors
    metrics: Metrics
    paths: Paths = field(default_factory=Paths)
    ids: RequestIds = field(default_factory=RequestIds)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        poll = read(scope, self.paths) if scope["type"] == "http" and scope["method"] == "GET" else None
        if poll is None or not await self._unchanged(poll):
            await self.app(scope, receive, send)
            return
        headers = [(b"etag", poll.etag), (b"x-ms-request-id", self.ids.fresh()), (b"cache-control", b"no-cache")]
        if poll.echoed:
            headers.append((b"x-ms-client-request-id", poll.echoed))
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body"})
        self.metrics.unchanged.inc()

    async def _unchanged(self, poll: Poll) -> bool:
        """Whether the caller may know, and has the newest already, also after the time it is ready to wait."""
        began = time.perf_counter()
        tokens, cards = self.doors.tokens, self.doors.cards
        try:
            caller = tokens.known(poll.authorization)
            if caller is None:
                caller = await tokens.caller(poll.authorization.decode("latin-1"))
            card = cards.at_hand(poll.place) or await cards.card(poll.place)
            if not self._admits(poll, caller, card):
                return False
            self.metrics.poll_seconds.observe(time.perf_counter() - began)
            return not poll.seconds or not await cards.changed(poll.place, card.etag, poll.seconds)
        except (Unauthenticated, AuthorityAway, Unavailable):
            return False

    def _admits(self, poll: Poll, caller: Caller, card: Card) -> bool:
        doors, place = self.doors, poll.place
        own = caller.is_node(card.identity)
        if not own and not self._may_read(caller, place[0]):
            return False
        if card.etag.encode() != poll.etag or doors.over_limit(caller, place if own else None, "read"):
            return False
        if own and card.owed is not None and card.owed != caller.id:
            return False  # it is to be let into its cluster first
        if own:
            doors.cards.saw(*place, time.time())
        self.paths.remember(poll.path, place)
        return True

    def _may_read(self, caller: Caller, key: str) -> bool:
        cluster = cluster_id(key)
        return cluster is not None and bool(self.doors.roles.allows_now(caller, "read", cluster))


def read(scope: dict[str, Any], paths: Paths) -> Poll | None:
    """A request, if it is a poll that can be answered from here."""
    etag = authorization = prefer = client = echo = b""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            etag = value
        elif name == b"authorization":
            authorization = value
        elif name == b"prefer":
            prefer = value
        elif name == b"x-ms-client-request-id":
            client = value
        elif name == b"x-ms-return-client-request-id":
            echo = value
    place = paths.place(scope["path"]) if etag and scope["query_string"] == _VERSION else None
    if place is None:
        return None
    echoed = client if echo.lower() == b"true" and len(client) <= LONGEST_ID else b""
    return Poll(scope["path"], place, etag, authorization, _seconds(prefer) if prefer else 0.0, echoed)


def _seconds(prefer: bytes) -> float:
    found = _WAIT.search(prefer)
    return min(float(found[1]), LONGEST_WAIT) if found else 0.0
