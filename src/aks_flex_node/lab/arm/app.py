"""The front itself: who asks, whether they may, and what they get."""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import JSONResponse, Response

from aks_flex_node.lab.arm import answers
from aks_flex_node.lab.arm.answers import Refusal
from aks_flex_node.lab.arm.forwarding import PROVIDED
from aks_flex_node.lab.arm.resources import subscription

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from aks_flex_node.lab.arm.assignments import Assignments
    from aks_flex_node.lab.arm.forwarding import Provider
    from aks_flex_node.lab.arm.resources import Resources
    from aks_flex_node.lab.entra.tokens import Mint

    Handler = Callable[[Request, str, re.Match[str]], Awaitable[Response]]

PUBLIC = ("https://management.azure.com", "https://management.core.windows.net")
CLUSTER = (
    r"(?P<id>/subscriptions/[^/]+/resourcegroups/[^/]+/providers/microsoft\.containerservice/managedclusters/[^/]+)"
)
ASSIGNMENTS = r"(?P<scope>(/.+)?)/providers/microsoft\.authorization/roleassignments"


class Room(Protocol):
    """A resource provider of the lab's own: what it answers to, by method and path."""

    def handlers(self, front: Front) -> list[tuple[str, str, Handler]]: ...


@dataclass(frozen=True)
class Front:
    mint: Mint
    resources: Resources
    assignments: Assignments
    provider: Provider
    management: str  # where this answers, such as https://management.flex.internal
    rooms: tuple[Room, ...] = ()

    async def answer(self, request: Request) -> Response:
        correlation = request.headers.get("x-ms-correlation-request-id") or str(uuid.uuid4())
        try:
            answer = await self._answer(request, correlation)
        except Refusal as refused:
            answer = refused.answer()
        answer.headers["x-ms-correlation-request-id"] = correlation
        answer.headers.setdefault("x-ms-request-id", str(uuid.uuid4()))
        answer.headers["x-ms-routing-request-id"] = f"LAB:{uuid.uuid4()}"
        return answer

    async def _answer(self, request: Request, correlation: str) -> Response:
        path = request.url.path
        if path == "/metadata/endpoints":
            return JSONResponse(self._endpoints())
        if PROVIDED.fullmatch(path):
            return await self.provider.forward(request, correlation)
        who = self._caller(request)
        if "api-version" not in request.query_params:
            raise Refusal(
                400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required."
            )
        for method, pattern, handler in self._handlers():
            found = re.fullmatch(pattern, path.rstrip("/"), re.IGNORECASE)
            if found and method == request.method:
                return await handler(request, who, found)
        raise answers.absent(path)

    def _handlers(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/subscriptions", self._subscriptions),
            ("GET", "/subscriptions/[^/]+", self._subscription),
            ("GET", "/tenants", self._tenants),
            ("GET", ASSIGNMENTS, self._list_assignments),
            ("GET", ASSIGNMENTS + "/[^/]+", self._get_assignment),
            ("PUT", ASSIGNMENTS + "/(?P<name>[^/]+)", self._put_assignment),
            ("DELETE", ASSIGNMENTS + "/[^/]+", self._delete_assignment),
            ("GET", CLUSTER, self._cluster),
            ("POST", CLUSTER + "/listclusteradmincredential", self._credential),
            *(each for room in self.rooms for each in room.handlers(self)),
        ]

    def _endpoints(self) -> dict[str, Any]:
        login = {"loginEndpoint": self.mint.base, "audiences": [self.management], "tenant": "common"}
        return {
            "name": "AksFlexLab",
            "authentication": {**login, "identityProvider": "AAD"},
            "resourceManager": self.management,
            "portal": self.management,
            "graph": self.management,
            "microsoftGraphResourceId": self.management,
            "suffixes": {"storage": "core.flex.internal", "keyVaultDns": "vault.flex.internal"},
        }

    def _caller(self, request: Request) -> str:
        """The object id of whoever asks."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        login, tenant = self.mint.base, self.mint.directory.tenant
        if scheme.lower() != "bearer" or not token:
            words = "Authentication failed. The 'Authorization' header is missing."
            raise answers.unauthenticated("AuthenticationFailed", words, login, tenant)
        audiences = [each + slash for each in (self.management, *PUBLIC) for slash in ("", "/")]
        claims = self.mint.keys.verified(token, audiences)
        if claims is None:
            words = "The access token is invalid, has expired, or was obtained for another audience."
            raise answers.unauthenticated("InvalidAuthenticationToken", words, login, tenant)
        return str(claims["oid"])

    def need(self, who: str, action: str, scope: str) -> None:
        if not self.assignments.allows(who, action, scope):
            raise answers.unauthorized(who, action, scope)

    async def _subscriptions(self, *_: object) -> Response:
        return JSONResponse({"value": [subscription(self.mint.directory.tenant)]})

    async def _subscription(self, *_: object) -> Response:
        return JSONResponse(subscription(self.mint.directory.tenant))

    async def _tenants(self, *_: object) -> Response:
        tenant = self.mint.directory.tenant
        return JSONResponse({"value": [{"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "lab"}]})

    async def _cluster(self, _: Request, who: str, found: re.Match[str]) -> Response:
        self.need(who, "Microsoft.ContainerService/managedClusters/read", found["id"])
        cluster = self.resources.find(found["id"])
        if cluster is None:
            raise answers.absent(found["id"])
        return JSONResponse(cluster.shown(self.mint.directory.tenant))

    async def _credential(self, _: Request, who: str, found: re.Match[str]) -> Response:
        action = "Microsoft.ContainerService/managedClusters/listClusterAdminCredential/action"
        self.need(who, action, found["id"])
        cluster = self.resources.find(found["id"])
        if cluster is None:
            raise answers.absent(found["id"])
        value = base64.b64encode(Path(cluster.kubeconfig).read_bytes()).decode()
        return JSONResponse({"kubeconfigs": [{"name": "clusterAdmin", "value": value}]})

    async def _list_assignments(self, request: Request, who: str, found: re.Match[str]) -> Response:
        self.need(who, "Microsoft.Authorization/roleAssignments/read", found["scope"])
        return JSONResponse(
            {"value": self.assignments.listed(found["scope"], request.query_params.get("$filter", ""))}
        )

    async def _get_assignment(self, request: Request, who: str, found: re.Match[str]) -> Response:
        self.need(who, "Microsoft.Authorization/roleAssignments/read", found["scope"])
        kept = self.assignments.find(request.url.path)
        if kept is None:
            raise Refusal(404, "RoleAssignmentNotFound", "The role assignment is not found.")
        return JSONResponse(kept)

    async def _put_assignment(self, request: Request, who: str, found: re.Match[str]) -> Response:
        self.need(who, "Microsoft.Authorization/roleAssignments/write", found["scope"])
        try:
            wanted = (await request.json())["properties"]
            definition, principal = str(wanted["roleDefinitionId"]), str(wanted["principalId"])
        except (ValueError, KeyError, TypeError):
            raise Refusal(400, "InvalidRequestContent", "The request content was invalid.") from None
        return JSONResponse(self.assignments.put(found["scope"], definition, principal, found["name"]), 201)

    async def _delete_assignment(self, request: Request, who: str, found: re.Match[str]) -> Response:
        self.need(who, "Microsoft.Authorization/roleAssignments/delete", found["scope"])
        kept = self.assignments.find(request.url.path)
        if kept is None:
            return Response(status_code=204)
        self.assignments.remove(request.url.path)
        return JSONResponse(kept)
