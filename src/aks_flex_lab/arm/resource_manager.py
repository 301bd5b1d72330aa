"""The ARM server: authenticates the caller, checks role assignments, and dispatches requests to handlers."""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml
from starlette.responses import JSONResponse, Response

from aks_flex_lab.arm import arm_errors
from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.managed_clusters import subscription_document
from aks_flex_lab.arm.provider_proxy import PROVIDER_PATHS
from aks_flex_lab.arm.role_assignments import AKS, ASSIGNMENT_TYPE, BUILT_IN_ROLES, ROLES_BY_ID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from aks_flex_lab.arm.managed_clusters import ManagedCluster, ManagedClusters
    from aks_flex_lab.arm.provider_proxy import ProviderProxy
    from aks_flex_lab.arm.role_assignments import RoleAssignments
    from aks_flex_lab.entra.tokens import TokenIssuer

    Handler = Callable[[Request, re.Match[str]], Awaitable[Response]]


PUBLIC_AUDIENCES = ("https://management.azure.com", "https://management.core.windows.net")
CLUSTER_PATH = (
    r"(?P<id>/subscriptions/[^/]+/resourcegroups/[^/]+/providers/microsoft\.containerservice/managedclusters/[^/]+)"
)
ASSIGNMENTS_PATH = r"(?P<scope>(/.+)?)/providers/microsoft\.authorization/roleassignments"


@dataclass(frozen=True)
class ArmRoute:
    """The handler of a method and a path, and the action that the caller must be allowed; none if it is empty."""

    method: str
    path: str
    action: str
    handler: Handler

    def scope(self, found: re.Match[str]) -> str:
        """Returns where the caller needs the action: at the resource of the path, without the action of a POST."""
        scope: str | None = found.groupdict().get("scope")
        if scope is not None:
            return scope
        return found[0].rpartition("/")[0] if self.method == "POST" else found[0]


class LabResourceProvider(Protocol):
    """A built-in resource provider."""

    def routes_in(self, resource_manager: ResourceManagerFront) -> list[ArmRoute]: ...


@dataclass(frozen=True)
class ResourceManagerFront:
    token_issuer: TokenIssuer
    resources: ManagedClusters
    assignments: RoleAssignments
    provider: ProviderProxy
    management: str  # public URL, for example https://management.flex.internal
    providers: tuple[LabResourceProvider, ...] = ()
    pool_profiles: Callable[[str], list[dict[str, Any]]] = lambda _: []  # more node pools of a cluster

    async def answer(self, request: Request) -> Response:
        correlation = request.headers.get("x-ms-correlation-request-id") or str(uuid.uuid4())
        try:
            answer = await self._answer(request, correlation)
        except LabArmError as refused:
            answer = refused.response()
        answer.headers["x-ms-correlation-request-id"] = correlation
        answer.headers.setdefault("x-ms-request-id", str(uuid.uuid4()))
        answer.headers["x-ms-routing-request-id"] = f"LAB:{uuid.uuid4()}"
        return answer

    async def _answer(self, request: Request, correlation: str) -> Response:
        path = request.url.path
        if path == "/metadata/endpoints":
            return JSONResponse(self._endpoints())
        if PROVIDER_PATHS.fullmatch(path):
            return await self.provider.forward(request, correlation)
        who = self._caller(request)
        if "api-version" not in request.query_params:
            raise LabArmError(
                400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required."
            )
        request.state.caller = who
        for route in self._routes():
            found = re.fullmatch(route.path, path.rstrip("/"), re.IGNORECASE)
            if found and route.method == request.method:
                scope = route.scope(found)
                if route.action and not self.assignments.allows(who, route.action, scope):
                    raise arm_errors.unauthorized(who, route.action, scope)
                return await route.handler(request, found)
        raise arm_errors.not_found(path)

    def _routes(self) -> list[ArmRoute]:
        assignment = f"{ASSIGNMENTS_PATH}/(?P<name>[^/]+)"
        return [
            ArmRoute("GET", "/subscriptions", "", self._subscriptions),
            ArmRoute("GET", "/subscriptions/[^/]+", "", self._subscription),
            ArmRoute("GET", "/tenants", "", self._tenants),
            ArmRoute("GET", ASSIGNMENTS_PATH, f"{ASSIGNMENT_TYPE}/read", self._list_assignments),
            ArmRoute("GET", assignment, f"{ASSIGNMENT_TYPE}/read", self._get_assignment),
            ArmRoute("PUT", assignment, f"{ASSIGNMENT_TYPE}/write", self._put_assignment),
            ArmRoute("DELETE", assignment, f"{ASSIGNMENT_TYPE}/delete", self._delete_assignment),
            ArmRoute("GET", CLUSTER_PATH, f"{AKS}/read", self._cluster),
            *(
                ArmRoute("POST", f"{CLUSTER_PATH}/{action.lower()}", f"{AKS}/{action}/action", handler)
                for action, handler in (
                    ("listClusterAdminCredential", self._credential),
                    ("listClusterUserCredential", self._user_credential),
                )
            ),
            *(route for provider in self.providers for route in provider.routes_in(self)),
        ]

    def _endpoints(self) -> dict[str, Any]:
        login = {"loginEndpoint": self.token_issuer.base, "audiences": [self.management], "tenant": "common"}
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
        """Returns the object ID of the caller."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        login, tenant = self.token_issuer.base, self.token_issuer.directory.tenant
        if scheme.lower() != "bearer" or not token:
            message = "Authentication failed. The 'Authorization' header is missing."
            raise arm_errors.unauthenticated("AuthenticationFailed", message, login, tenant)
        audiences = [each + slash for each in (self.management, *PUBLIC_AUDIENCES) for slash in ("", "/")]
        claims = self.token_issuer.keys.verify(token, audiences)
        if claims is None:
            message = "The access token is invalid, has expired, or was obtained for another audience."
            raise arm_errors.unauthenticated("InvalidAuthenticationToken", message, login, tenant)
        return str(claims["oid"])

    async def _subscriptions(self, *_: object) -> Response:
        return JSONResponse({"value": [subscription_document(self.token_issuer.directory.tenant)]})

    async def _subscription(self, *_: object) -> Response:
        return JSONResponse(subscription_document(self.token_issuer.directory.tenant))

    async def _tenants(self, *_: object) -> Response:
        tenant = self.token_issuer.directory.tenant
        return JSONResponse({"value": [{"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "lab"}]})

    def cluster(self, id: str) -> ManagedCluster:  # noqa: A002 - ARM's own word
        cluster = self.resources.find(id)
        if cluster is None:
            raise arm_errors.not_found(id)
        return cluster

    async def _cluster(self, _: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found["id"])
        return JSONResponse(cluster.shown(self.token_issuer.directory.tenant, self.pool_profiles(cluster.id)))

    async def _credential(self, _: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found["id"])
        value = base64.b64encode(Path(cluster.kubeconfig).read_bytes()).decode()
        return JSONResponse({"kubeconfigs": [{"name": "clusterAdmin", "value": value}]})

    async def _user_credential(self, _: Request, found: re.Match[str]) -> Response:
        """Returns a kubeconfig without a credential: kubelogin signs in, as in a cluster with Entra ID."""
        cluster = self.cluster(found["id"])
        document = yaml.safe_load(Path(cluster.kubeconfig).read_text())
        login = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "kubelogin", "args": ["get-token"]}
        document["users"] = [{"name": each["name"], "user": {"exec": login}} for each in document.get("users") or ()]
        value = base64.b64encode(yaml.safe_dump(document).encode()).decode()
        return JSONResponse({"kubeconfigs": [{"name": "clusterUser", "value": value}]})

    async def _list_assignments(self, request: Request, found: re.Match[str]) -> Response:
        return JSONResponse(
            {"value": self.assignments.listed(found["scope"], request.query_params.get("$filter", ""))}
        )

    async def _get_assignment(self, request: Request, _: re.Match[str]) -> Response:
        assignment = self.assignments.find(request.url.path)
        if assignment is None:
            raise LabArmError(404, "RoleAssignmentNotFound", "The role assignment is not found.")
        return JSONResponse(assignment)

    async def _put_assignment(self, request: Request, found: re.Match[str]) -> Response:
        try:
            properties = (await request.json())["properties"]
            definition, principal = str(properties["roleDefinitionId"]), str(properties["principalId"])
        except (ValueError, KeyError, TypeError):
            raise LabArmError(400, "InvalidRequestContent", "The request content was invalid.") from None
        return JSONResponse(self.assignments.put(found["scope"], definition, principal, found["name"]), 201)

    async def _delete_assignment(self, request: Request, _: re.Match[str]) -> Response:
        assignment = self.assignments.find(request.url.path)
        if assignment is None:
            return Response(status_code=204)
        self.assignments.remove(request.url.path)
        return JSONResponse(assignment)


AUTHORIZATION_PATH = r"(?P<scope>(/.+)?)/providers/microsoft\.authorization"
ROLE_NAME_FILTER = re.compile(r"roleName eq '([^']*)'", re.IGNORECASE)


class RoleDefinitions:
    """Serves the built-in role definitions to every authenticated caller."""

    def routes_in(self, resource_manager: ResourceManagerFront) -> list[ArmRoute]:
        async def permissions(request: Request, found: re.Match[str]) -> Response:
            roles = resource_manager.assignments.roles(request.state.caller, found["scope"])
            return JSONResponse({"value": [role.permissions() for role in roles]})

        return [
            ArmRoute("GET", AUTHORIZATION_PATH + "/permissions", "", permissions),
            ArmRoute("GET", AUTHORIZATION_PATH + "/roledefinitions", "", self._listed),
            ArmRoute("GET", AUTHORIZATION_PATH + "/roledefinitions/(?P<id>[^/]+)", "", self._shown),
        ]

    async def _listed(self, request: Request, *_: object) -> Response:
        role_name = ROLE_NAME_FILTER.search(request.query_params.get("$filter", ""))
        found = [role for role in BUILT_IN_ROLES if role_name is None or role.name.lower() == role_name[1].lower()]
        return JSONResponse({"value": [role.shown() for role in found]})

    async def _shown(self, _: Request, found: re.Match[str]) -> Response:
        role = ROLES_BY_ID.get(found["id"].lower())
        if role is None:
            raise LabArmError(404, "RoleDefinitionDoesNotExist", f"The role definition {found['id']} does not exist.")
        return JSONResponse(role.shown())
