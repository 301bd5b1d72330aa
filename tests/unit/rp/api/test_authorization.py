"""Tests of authorization without a store or a cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_rp.api.authorization import ArmTarget, Authorizer
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.auth.auth_settings import LimitSettings, Role
from aks_flex_rp.auth.rate_limit import RateLimiter
from aks_flex_rp.auth.roles import Operation, Roles
from aks_flex_rp.callers import Caller, CallerKind

if TYPE_CHECKING:
    from aks_flex_rp.store.model import AuditEvent

CLUSTER = ClusterId("12345678-1234-1234-1234-123456789abc", "edge", "plant")
CALLER = Caller("me", "me", CallerKind.USER, ids=frozenset({"me"}), own=frozenset({"me"}))


class Azure:
    """Role assignments that count requests."""

    asked = 0

    def known(self, *_: object) -> None:
        return None

    async def roles(self, *_: object) -> frozenset[Role]:
        self.asked += 1
        return frozenset()


def admitted(*, known: bool) -> tuple[int, list[AuditEvent]]:
    """Returns the number of requests to Azure and the audit events for a write without a role."""
    azure = Azure()
    recorded: list[AuditEvent] = []

    async def find(_: str) -> object:
        return object() if known else None

    async def record(event: AuditEvent) -> None:
        recorded.append(event)

    store, clusters = SimpleNamespace(record=record), SimpleNamespace(find=find)
    shop = cast("Any", SimpleNamespace(store=store, clusters=clusters, now=lambda: 0.0))
    unused = cast("Any", None)
    doors = Authorizer(unused, Roles([], azure), RateLimiter(LimitSettings()), unused, shop, unused)
    with pytest.raises(ArmError) as refused:
        asyncio.run(doors.admit(Operation.WRITE, ArmTarget(CLUSTER, "edge-1"), CALLER, "1", ""))
    assert refused.value.status == 403
    return azure.asked, recorded


def test_role_assignments_are_requested_only_for_known_clusters() -> None:
    assert admitted(known=True)[0] == 1
    assert admitted(known=False)[0] == 0
