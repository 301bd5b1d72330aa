"""Tests of the audit endpoint with Azure role assignments."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from aks_flex_rp.api.authorization import Authorizer
from aks_flex_rp.api.routes import ServiceRoutes
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.auth.auth_settings import LimitSettings
from aks_flex_rp.auth.rate_limit import RateLimiter
from aks_flex_rp.auth.roles import AzureAssignments, Roles
from tests.unit.rp.auth.token_issuer import TENANT, Issuer, bearer

KNOWN = ClusterId("11111111-0000-4000-8000-00000000000a", "edge", "plant")
INVENTED = ClusterId("11111111-0000-4000-8000-00000000000a", "edge", "invented")
READER = "/roleDefinitions/acdd72a7-3385-48ef-bd42-f606fba81ae7"


class Azure:
    """Returns a reader assignment for every cluster, and counts requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]:
        self.asked.append(f"{path}?{api_version}&{query}")
        return [{"properties": {"roleDefinitionId": READER, "scope": "/"}}]


class Context:
    """The parts of NodeContext that the endpoint uses."""

    def __init__(self) -> None:
        self.clusters = self.store = self

    async def find(self, key: str) -> object | None:
        return SimpleNamespace(id=KNOWN) if key == KNOWN.key else None

    async def audit(self, **_: object) -> tuple[()]:
        return ()


def ask(azure: Azure, cluster: ClusterId) -> int:
    issuer = Issuer()
    roles = Roles([], AzureAssignments(azure, TENANT))
    limits = RateLimiter(LimitSettings())
    authorizer = Authorizer(
        issuer.tokens(), roles, limits, cast("Any", None), cast("Any", Context()), cast("Any", None)
    )
    nothing = cast("Any", None)
    routes = ServiceRoutes(authorizer, nothing, nothing, nothing, lambda: True, nothing)
    headers = [(b"authorization", bearer(issuer.sign()).encode())]
    query = f"resource={cluster}".encode()
    scope = {"type": "http", "method": "GET", "path": "/audit", "query_string": query, "headers": headers}
    return asyncio.run(routes.audit(Request(scope), "1")).status_code


def test_azure_is_not_asked_about_invented_clusters() -> None:
    """A caller without a role makes the service ask Azure about any number of clusters."""
    azure = Azure()
    with pytest.raises(ArmError) as refused:
        ask(azure, INVENTED)
    assert (refused.value.status, azure.asked) == (403, [])


def test_azure_is_asked_about_known_clusters() -> None:
    azure = Azure()
    assert ask(azure, KNOWN) == 200
    assert len(azure.asked) == 1
