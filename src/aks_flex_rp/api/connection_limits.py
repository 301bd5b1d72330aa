"""Bounds on open connections: in all, and for each client address.

A connection that waits for a request is closed in favour of a new one. Connections that serve a request, such as held
polls, are never closed: when only these are left, the new connection is refused.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import time
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from aks_flex_rp.counted_events import site_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.connection_settings import ConnectionSettings

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
        self._count, self._clock = count, clock
        self._unlimited = tuple(ipaddress.ip_network(each) for each in settings.unlimited_addresses)
        self._all: dict[BoundedConnection, str] = {}  # oldest first, with the site
        self._sites: dict[str, dict[BoundedConnection, str]] = {}
        self._warned: dict[str, float] = {}

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
        now, key = self._clock(), f"{who} {outcome}"
        if now - self._warned.get(key, -WARN_SECONDS) < WARN_SECONDS:
            return
        if len(self._warned) >= SHOWN_SITES:
            self._warned.clear()
        self._warned[key] = now
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
