"""Failed sign-ins in the audit log: the first one of a client, then their number, so that they cannot fill it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.api.connection_limits import site_of
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.store.protocol import Store

WINDOW_SECONDS = 600.0
MAX_SITES = 256  # that are counted separately
OTHER_SITES = "other addresses"


@dataclass
class SiteFailures:
    since: float
    more: int = 0  # after the first one, which is recorded


@dataclass(frozen=True)
class FailedSignIns:
    store: Store
    clock: Callable[[], float] = time.time
    sites: dict[str, SiteFailures] = field(default_factory=dict)

    async def record(self, source: str, request: str) -> None:
        """Records the first failure of an address or IPv6 network, and counts the next ones."""
        await self.flush()
        site = site_of(source) or source
        if site not in self.sites and len(self.sites) >= MAX_SITES:
            site = OTHER_SITES
        if known := self.sites.get(site):
            known.more += 1
            return
        self.sites[site] = SiteFailures(self.clock())
        await self.store.record(self._event(source if site != OTHER_SITES else site, request))

    async def flush(self) -> None:
        """Records the number of failures of each window that has ended."""
        ended = [site for site, each in self.sites.items() if self.clock() - each.since >= WINDOW_SECONDS]
        found = {site: self.sites.pop(site) for site in ended}
        events = [
            self._event(site, "", failures=each.more, since=format_utc(each.since))
            for site, each in found.items()
            if each.more
        ]
        await self.store.record(*events)

    def _event(self, source: str, request: str, **detail: object) -> AuditEvent:
        return AuditEvent(
            self.clock(), "somebody", AuditAction.SIGN_IN, "/", source, request, AuditOutcome.DENIED, dict(detail)
        )
