"""Refusals in the audit log: the first one of a client, then their number, so that they cannot fill it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from aks_flex_rp.store.model import AuditEvent

WINDOW_SECONDS = 600.0
MAX_SITES = 256  # clients that are counted separately
OTHER_SITES = "other addresses"
SITE_PREFIX = 64  # of IPv6: one client can have all addresses of such a network


class AuditLog(Protocol):
    async def record(self, *events: AuditEvent) -> None: ...


@dataclass
class CountedGroup:
    first: AuditEvent  # which is recorded
    more: int = 0


@dataclass(frozen=True)
class CountedEvents:
    groups: dict[tuple[str, str, str], CountedGroup] = field(default_factory=dict)  # by resource, client and reason

    async def record(self, log: AuditLog, event: AuditEvent, reason: str = "") -> None:
        """Records the first event about a resource that an address or IPv6 network causes for a reason, and counts
        the next.
        """
        await self.flush(log, event.at)
        site = site_of(event.source) or event.source
        if (event.resource, site, reason) not in self.groups and len(self.groups) >= MAX_SITES:
            site = OTHER_SITES
        key = (event.resource, site, reason)
        if known := self.groups.get(key):
            known.more += 1
            return
        first = replace(event, source=site) if site == OTHER_SITES else event
        self.groups[key] = CountedGroup(first)
        await log.record(first)

    async def flush(self, log: AuditLog, now: float) -> None:
        """Records the number of events of each window that has ended."""
        ended = [key for key, each in self.groups.items() if now - each.first.at >= WINDOW_SECONDS]
        found = {key: self.groups.pop(key) for key in ended}
        await log.record(*(_summary(each, *key[1:], now) for key, each in found.items() if each.more))


def _summary(group: CountedGroup, site: str, reason: str, now: float) -> AuditEvent:
    detail = {"failures": group.more, "since": format_utc(group.first.at), **({"reason": reason} if reason else {})}
    return replace(group.first, at=now, source=site, request="", detail=detail)


@lru_cache(maxsize=4096)
def site_of(address: str) -> str:
    """Returns what counts as one client: an IPv4 address, or a /64 of IPv6. Empty if the address is unknown."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, SITE_PREFIX), strict=False))
        found = found.ipv4_mapped
    return str(found)
