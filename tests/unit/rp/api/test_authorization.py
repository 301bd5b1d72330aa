"""Tests of authorization without a store or a cluster: Azure is asked about clusters of the service alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.requests import Request

from aks_flex_rp.api.authorization import ArmTarget, Authorizer
from aks_flex_rp.api.routes import ServiceRoutes
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.auth.auth_settings import LimitSettings
from aks_flex_rp.auth.rate_limit import RateLimiter
from aks_flex_rp.auth.roles import AzureAssignments, Operation, Roles
from tests.unit.rp.auth.token_issuer import TENANT, Issuer, bearer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

KNOWN = ClusterId("11111111-0000-4000-8000-00000000000a", "edge", "plant")
INVENTED = ClusterId("11111111-0000-4000-8000-00000000000a", "edge", "invented")
READER = "/roleDefinitions/acdd72a7-3385-48ef-bd42-f606fba81ae7"
NOTHING = cast("Any", None)


class Azure:
    """Returns a reader assignment for every cluster, and counts requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]:
        self.asked.append(f"{path}?{api_version}&{query}")
        return [{"properties": {"roleDefinitionId": READER, "scope": "/"}}]


class Context:
    """The parts of NodeContext that are used, with one cluster."""

    now = staticmethod(lambda: 0.0)

    def __init__(self) -> None:
        self.clusters = self.store = self

    async def find(self, key: str) -> object | None:
        return SimpleNamespace(id=KNOWN) if key == KNOWN.key else None

    async def audit(self, **_: object) -> tuple[()]:
        return ()

    async def record(self, *_: object) -> None: ...


ISSUER = Issuer()


def authorizer(azure: Azure) -> Authorizer:
    roles, limits = Roles([], AzureAssignments(azure, TENANT)), RateLimiter(LimitSettings())
    return Authorizer(ISSUER.tokens(), roles, limits, NOTHING, cast("Any", Context()), NOTHING)


async def read_audit(azure: Azure, cluster: ClusterId) -> None:
    routes = ServiceRoutes(authorizer(azure), NOTHING, NOTHING, NOTHING, lambda: True, NOTHING)
    headers = [(b"authorization", bearer(ISSUER.sign()).encode())]
    query = f"resource={cluster}".encode()
    scope = {"type": "http", "method": "GET", "path": "/audit", "query_string": query, "headers": headers}
    await routes.audit(Request(scope), "1")


async def write_node(azure: Azure, cluster: ClusterId) -> None:
    caller = await ISSUER.tokens().caller(bearer(ISSUER.sign()))
    await authorizer(azure).admit(Operation.WRITE, ArmTarget(cluster, "edge-1"), caller, "1", "")


def status_of(work: Coroutine[Any, Any, None]) -> int:
    try:
        asyncio.run(work)
    except ArmError as error:
        return error.status
    return 200


@pytest.mark.parametrize(("ask", "status"), [(read_audit, 200), (write_node, 403)])
def test_azure_is_asked_about_known_clusters_only(
    ask: Callable[[Azure, ClusterId], Coroutine[Any, Any, None]], status: int
) -> None:
    """Attack: a caller without a role makes the service ask Azure about any number of clusters."""
    azure = Azure()
    assert (status_of(ask(azure, KNOWN)), len(azure.asked)) == (status, 1)
    assert (status_of(ask(azure, INVENTED)), len(azure.asked)) == (403, 1)
