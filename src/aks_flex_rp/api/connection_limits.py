"""Bounds on open connections, in all and for each client address, and uvicorn's HTTP protocol with limits on the size
of request headers, and on every wait for a client.

A connection that waits for a request is closed in favour of a new one. Connections that serve a request, such as held
polls, are never closed: when only these are left, the new connection is refused.

uvicorn's parser accepts headers of any size and waits for the rest of a request without limit, which would cost
memory and connections before the caller is authenticated.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import time
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aks_flex_rp.bounded_memory import Throttle
from aks_flex_rp.counted_events import site_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aks_flex_rp.auth.auth_settings import ConnectionSettings


log = logging.getLogger(__name__)
SCANNED = 64  # connections that are checked for one that waits, so that a flood costs little
OTHER_FILES = 1024  # open files that are kept free for the database, clusters and logs
WARN_SECONDS = 60.0
SHOWN_SITES = 1024  # sites whose last warning is remembered


class BoundedConnection(Protocol):
    @property
    def is_waiting(self) -> bool:
        """Whether no request is being served."""

    def drop(self) -> None:
        """Closes the connection immediately."""


class ConnectionLimiter:
    def __init__(
        self,
        settings: ConnectionSettings,
        count: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tells `count` of each connection that is "closed" in favour of another, or "refused"."""
        self._settings = settings
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._total = min(settings.total, files - min(OTHER_FILES, files // 4))
        self._count = count
        self._unlimited = tuple(ipaddress.ip_network(each) for each in settings.unlimited_addresses)
        self._all: dict[BoundedConnection, str] = {}  # oldest first, with the site
        self._sites: dict[str, dict[BoundedConnection, str]] = {}
        self._warnings = Throttle(WARN_SECONDS, clock, SHOWN_SITES)

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, connection: BoundedConnection, address: str) -> bool:
        """Adds a new connection, if necessary in place of one that waits. Returns whether there is room for it."""
        site = site_of(address)
        of_site = self._sites.get(site, {})
        if len(of_site) >= self._settings.per_address and not self._is_unlimited(site):
            if not self._make_room(of_site, f"{site} has", self._settings.per_address, "connections.perAddress"):
                return False
        elif len(self._all) >= self._total and not self._make_room(
            self._all, "The service has", self._total, "connections.total"
        ):
            return False
        self._all[connection] = site
        self._sites.setdefault(site, {})[connection] = site
        return True

    def release(self, connection: BoundedConnection) -> None:
        site = self._all.pop(connection, None)
        if site is not None:
            of_site = self._sites[site]
            del of_site[connection]
            if not of_site:
                del self._sites[site]

    def _make_room(self, among: dict[BoundedConnection, str], who: str, most: int, setting: str) -> bool:
        waiting = _oldest_waiting(among)
        self._warn(who, most, setting, "closed" if waiting else "refused")
        if waiting is None:
            return False
        self.release(waiting)
        waiting.drop()
        return True

    def _warn(self, who: str, most: int, setting: str, outcome: str) -> None:
        self._count(outcome)
        if self._warnings.wait(f"{who} {outcome}"):
            return
        done = "An idle connection was closed" if outcome == "closed" else "A connection was refused"
        log.warning(
            "%s %s connections, as many as %s allows. %s. If this is a proxy, a load balancer or a NAT, add its "
            "address to connections.unlimitedAddresses; if the clients are wanted, raise %s.",
            who,
            most,
            setting,
            done,
            setting,
        )

    def _is_unlimited(self, site: str) -> bool:
        found = ipaddress.ip_network(site) if site else None
        return found is not None and any(
            each.version == found.version and found.overlaps(each) for each in self._unlimited
        )


def _oldest_waiting(among: dict[BoundedConnection, str]) -> BoundedConnection | None:
    """Returns the oldest connection that waits. Those that do not are moved to the end, for the next search."""
    for connection in list(islice(among, SCANNED)):
        if connection.is_waiting:
            return connection
        among[connection] = among.pop(connection)
    return None


LARGEST_HEAD = 64 * 1024  # bytes of the request line and headers
HEAD_SECONDS = 20.0  # for a request's headers, from its first byte: also from a byte that begins no request
REST_SECONDS = 20.0  # for the rest of a request that has already been answered
WRITE_SECONDS = 60.0  # for a client to read a response that fills its buffers


class BoundedProtocol(HttpToolsProtocol):
    limiter: ConnectionLimiter
    _in_head = True
    _head = 0  # bytes received since the request line began
    _timer: asyncio.TimerHandle | None = None
    _in_body = False
    _rest_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limiter.admit(self, self.client[0] if self.client else ""):
            self._wait_for_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limiter.release(self)
        for timer in (self._timer, self._rest_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._rest_timer = self._write_timer = None
        self._in_head = self._in_body = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > LARGEST_HEAD:
            self.transport.abort()
        elif self._timer or self._in_head or self.cycle is None or self.cycle.response_complete:
            self._wait_for_head()  # most requests arrive in one piece and need no timer

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being served."""
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    @property
    def _lacks_request(self) -> bool:
        # Received data ends the wait of keep-alive, and an empty line begins no request.
        return self._in_head or self.is_waiting

    def drop(self) -> None:
        self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head = False, 0
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:  # uvicorn reads on after every response, so that pipelined requests could fill the memory
            self.flow.pause_reading()
        # The following data may already be the next request, pipelined before this response.
        unread_body = self._in_body and self.cycle.response_complete
        if unread_body and self._rest_timer is None and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(REST_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _wait_for_head(self) -> None:
        if self._lacks_request and self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEAD_SECONDS, self._abort)
        elif not self._lacks_request and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self) -> None:
        self._timer = None
        if self._lacks_request:
            self.transport.abort()


def bounded_by(limits: ConnectionLimiter) -> type[BoundedProtocol]:
    """Returns the protocol of a server whose connections these limits bound."""

    class LimitedProtocol(BoundedProtocol):
        limiter = limits

    return LimitedProtocol
