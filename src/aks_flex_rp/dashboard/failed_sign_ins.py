"""Failed sign-ins in the audit log, counted for each client."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_rp.counted_events import CountedEvents
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.store.protocol import Store


@dataclass(frozen=True)
class FailedSignIns:
    store: Store
    clock: Callable[[], float] = time.time
    events: CountedEvents = field(default_factory=CountedEvents)

    async def record(self, source: str, request: str) -> None:
        event = AuditEvent(
            self.clock(), "somebody", AuditAction.SIGN_IN, "/", source, request, AuditOutcome.DENIED, {}
        )
        await self.events.record(self.store, event)

    async def flush(self) -> None:
        await self.events.flush(self.store, self.clock())
