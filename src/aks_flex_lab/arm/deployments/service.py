"""Microsoft.Resources: deployments of templates at resource group scope, and resource groups.

A deployment writes its resources with the caller's token, by requests to the lab's ARM. What was deployed is kept in
memory only: neither its history nor what-if is simulated.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aks_flex_lab.arm.arm_errors import LabArmError, invalid_content
from aks_flex_lab.arm.deployments.expressions import DeploymentTarget, TemplateError
from aks_flex_lab.arm.deployments.templates import SECURE_TYPES, plan_deployment, public_value

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aks_flex_lab.arm.deployments.templates import DeploymentPlan, PlannedResource
    from aks_flex_lab.arm.managed_clusters import ManagedCluster, ManagedClusters
    from aks_flex_lab.arm.resource_manager import Handler, ResourceManagerFront


GROUP_TYPE = "Microsoft.Resources/resourceGroups"
GROUP_PATH = r"(?P<group>/subscriptions/[^/]+/resourcegroups/(?P<group_name>[^/]+))"
READ_GROUP = "Microsoft.Resources/subscriptions/resourceGroups/read"


class ResourceGroups:
    def __init__(self, resources: ManagedClusters) -> None:
        self._resources = resources

    def handlers(self, resource_manager: ResourceManagerFront) -> list[tuple[str, str, Handler]]:
        async def shown(_: Request, caller: str, found: re.Match[str]) -> Response:
            resource_manager.require_action(caller, READ_GROUP, found["group"])
            return JSONResponse(self.known(found["group"]))

        async def exists(_: Request, caller: str, found: re.Match[str]) -> Response:
            resource_manager.require_action(caller, READ_GROUP, found["group"])
            return Response(status_code=204 if found["group"].lower() in self._all() else 404)

        async def listed(_: Request, caller: str, __: re.Match[str]) -> Response:
            mine = [
                each
                for each in self._all().values()
                if resource_manager.assignments.allows(caller, READ_GROUP, each["id"])
            ]
            return JSONResponse({"value": mine})

        return [
            ("GET", GROUP_PATH, shown),
            ("HEAD", GROUP_PATH, exists),
            ("GET", "/subscriptions/[^/]+/resourcegroups", listed),
        ]

    def known(self, group: str) -> dict[str, Any]:
        found = self._all().get(group.lower())
        if found is None:
            name = group.rpartition("/")[2]
            raise LabArmError(404, "ResourceGroupNotFound", f"Resource group '{name}' could not be found.")
        return found

    def _all(self) -> dict[str, dict[str, Any]]:
        return {each["id"].lower(): each for each in map(_group_document, reversed(self._resources.clusters()))}


def _group_document(cluster: ManagedCluster) -> dict[str, Any]:
    id_ = cluster.id.partition("/providers/")[0]
    return {
        "id": id_,
        "name": id_.rpartition("/")[2],
        "type": GROUP_TYPE,
        "location": cluster.location,
        "properties": {"provisioningState": "Succeeded"},
    }


ErrorDocument = dict[str, Any]
REQUEST_SECONDS = 60.0
ATTEMPTS = 5  # attempts of a throttled request


class ProviderRefusal(Exception):  # noqa: N818 - an answer, and often an expected one
    """A provider rejected a request."""

    def __init__(self, problem: ErrorDocument) -> None:
        super().__init__(problem.get("message", ""))
        self.problem = problem


@dataclass(frozen=True)
class InternalClient:
    """Sends requests to the lab's ARM with the token of the caller of a deployment."""

    front: ResourceManagerFront
    authorization: str
    correlation: str

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": self.authorization, "x-ms-correlation-request-id": self.correlation}
        transport = httpx2.ASGITransport(self._answer)
        return httpx2.AsyncClient(
            transport=transport, base_url=self.front.management, headers=headers, timeout=REQUEST_SECONDS
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.front.answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def request(self, method: str, path: str, version: str, body: Any = None) -> Any:
        """Returns the document of a successful response. Retries a request that is throttled."""
        for _ in range(ATTEMPTS):
            answer = await self._client.request(method, path, params={"api-version": version}, json=body)
            if answer.status_code != 429:
                break
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
        document = answer.json() if answer.content else {}
        if not answer.is_success:
            raise ProviderRefusal(document.get("error") or {"code": "Unknown", "message": "No reason given."})
        return document


PARALLEL_WRITES = 8  # number of resources that are written in parallel


@dataclass
class DeploymentRun:
    """Writes the resources of a plan: each after those that it depends on, unless one of them failed."""

    plan: DeploymentPlan
    client: InternalClient
    problems: list[ErrorDocument] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    async def run(self) -> dict[str, tuple[str, Any]]:
        """Deploys all resources and returns the outputs, or the errors. Resources are not rolled back."""
        slots = asyncio.Semaphore(PARALLEL_WRITES)
        writing: dict[str, asyncio.Task[bool]] = {}
        for each in self.plan.resources:
            before = [writing[id_] for id_ in each.depends]
            writing[each.id.lower()] = asyncio.create_task(self._write(each, before, slots))
        await asyncio.gather(*writing.values())
        if self.problems:
            return {}
        loop = asyncio.get_running_loop()

        def act(action: str, resource: str, version: str) -> Any:
            asked = self.client.request("POST", f"{resource}/{action}", version)
            return asyncio.run_coroutine_threadsafe(asked, loop).result()

        try:
            return await asyncio.to_thread(self.plan.outputs, act)
        except (ProviderRefusal, TemplateError) as error:
            wrong = {"code": "DeploymentOutputEvaluationFailed", "message": "Unable to evaluate template outputs."}
            self.problems.append({**wrong, "details": [_problem(error)]})
            return {}

    async def _write(
        self, resource: PlannedResource, before: list[asyncio.Task[bool]], slots: asyncio.Semaphore
    ) -> bool:
        if not all([await each for each in before]):
            return False
        try:
            async with slots:
                await self.client.request("PUT", resource.id, resource.version, resource.body)
        except ProviderRefusal as refused:
            self.problems.append({**refused.problem, "target": resource.id})
            return False
        self.made.append(resource.id)
        return True


def _problem(error: ProviderRefusal | TemplateError) -> ErrorDocument:
    return error.problem if isinstance(error, ProviderRefusal) else {"code": error.code, "message": str(error)}


DEPLOYMENT_TYPE = "Microsoft.Resources/deployments"
DEPLOYMENT_PATH = (
    GROUP_PATH + r"(?:/providers/microsoft\.resources)?/deployments/(?P<name>[^/]+)"
)  # az also uses the short path
RETRY_HEADERS = {"Retry-After": "1"}


class Deployments:
    """Serves deployments. Their secure outputs are only for authorized callers."""

    def __init__(self, resources: ManagedClusters) -> None:
        self._groups = ResourceGroups(resources)
        self._documents: dict[str, dict[str, Any]] = {}  # by ID in lower case
        self._running: dict[str, asyncio.Task[None]] = {}
        self._secure: dict[str, dict[str, Any]] = {}

    def handlers(self, resource_manager: ResourceManagerFront) -> list[tuple[str, str, Handler]]:
        def needing(what: str, handler: Handler) -> Handler:
            async def checked(request: Request, caller: str, found: re.Match[str]) -> Response:
                resource_manager.require_action(caller, f"{DEPLOYMENT_TYPE}/{what}", _deployment_key(found))
                self._groups.known(found["group"])
                return await handler(request, caller, found)

            return checked

        async def put(request: Request, _: str, found: re.Match[str]) -> Response:
            return await self._put(request, found, resource_manager)

        outputs = "listOutputsWithSecureValues"
        return [
            *self._groups.handlers(resource_manager),
            ("GET", DEPLOYMENT_PATH, needing("read", self._get)),
            ("PUT", DEPLOYMENT_PATH, needing("write", put)),
            ("POST", DEPLOYMENT_PATH + "/validate", needing("validate/action", self._validate)),
            ("POST", f"{DEPLOYMENT_PATH}/{outputs.lower()}", needing(f"{outputs}/action", self._outputs)),
            ("GET", DEPLOYMENT_PATH + "/operationstatuses/[^/]+", needing("operationstatuses/read", self._status)),
        ]

    async def _put(self, request: Request, found: re.Match[str], resource_manager: ResourceManagerFront) -> Response:
        planned = await self._planned(request, found)
        key = _deployment_key(found)
        if key in self._running:
            raise LabArmError(409, "DeploymentActive", f"The deployment '{found['name']}' is active. Wait.")
        correlation = request.headers.get("x-ms-correlation-request-id") or str(uuid.uuid4())
        document = _document(planned, "Running", correlation)
        client = InternalClient(resource_manager, request.headers["authorization"], correlation)
        self._documents[key] = document
        self._secure.pop(key, None)
        self._running[key] = asyncio.create_task(self._carry_out(DeploymentRun(planned, client), key))
        where = (
            f"{resource_manager.management}{document['id']}/operationStatuses/{uuid.uuid4().hex}?{request.url.query}"
        )
        return JSONResponse(document, 201, {"Azure-AsyncOperation": where, **RETRY_HEADERS})

    async def _carry_out(self, run: DeploymentRun, key: str) -> None:
        properties = self._documents[key]["properties"]
        began, state = time.time(), "Canceled"
        try:
            outputs = await run.run()
            state = "Failed" if run.problems else "Succeeded"
            if run.problems:
                message = "At least one resource deployment operation failed. The details have the reasons."
                properties["error"] = {"code": "DeploymentFailed", "message": message, "details": run.problems}
            else:  # the values of secure outputs need an authorized request
                self._secure[key] = {name: value for name, (kind, value) in outputs.items() if kind in SECURE_TYPES}
                properties["outputs"] = {name: public_value(kind, value) for name, (kind, value) in outputs.items()}
        finally:
            del self._running[key]
            properties["outputResources"] = [{"id": each} for each in run.made]
            properties |= {"provisioningState": state, "duration": f"PT{time.time() - began:.3f}S"}

    async def _validate(self, request: Request, _: str, found: re.Match[str]) -> Response:
        planned = await self._planned(request, found)
        document = _document(planned, "Succeeded", str(uuid.uuid4()))
        document["properties"]["validatedResources"] = [{"id": each.id} for each in planned.resources]
        return JSONResponse(document)

    async def _get(self, _: Request, __: str, found: re.Match[str]) -> Response:
        return JSONResponse(self._known(found))

    async def _outputs(self, _: Request, __: str, found: re.Match[str]) -> Response:
        document = self._known(found)
        plain = {name: each.get("value") for name, each in document["properties"].get("outputs", {}).items()}
        secure = self._secure.get(_deployment_key(found), {})
        return JSONResponse({**plain, **secure}, headers={"Cache-Control": "no-store"})

    async def _status(self, _: Request, __: str, found: re.Match[str]) -> Response:
        properties = self._known(found)["properties"]
        status = {"status": properties["provisioningState"]}
        if "error" in properties:
            status["error"] = properties["error"]
        return JSONResponse(status, headers=RETRY_HEADERS if _deployment_key(found) in self._running else {})

    def _known(self, found: re.Match[str]) -> dict[str, Any]:
        document = self._documents.get(_deployment_key(found))
        if document is None:
            raise LabArmError(404, "DeploymentNotFound", f"Deployment '{found['name']}' could not be found.")
        return document

    async def _planned(self, request: Request, found: re.Match[str]) -> DeploymentPlan:
        properties = deployment_properties(await request.body())
        group = self._groups.known(found["group"])
        target = DeploymentTarget(group["id"].split("/")[2], group["name"], found["name"])
        try:
            return plan_deployment(properties["template"], properties.get("parameters") or {}, target)
        except TemplateError as error:
            raise error.refusal from None


def _document(planned: DeploymentPlan, state: str, correlation: str) -> dict[str, Any]:
    names = sorted({each.kind for each in planned.resources})
    kinds = [{"resourceType": each.partition("/")[2], "locations": [None]} for each in names]
    return {
        "id": f"{planned.target.group_id}/providers/{DEPLOYMENT_TYPE}/{planned.target.deployment}",
        "name": planned.target.deployment,
        "type": DEPLOYMENT_TYPE,
        "properties": {
            "parameters": planned.parameters.shown(),
            "mode": "Incremental",
            "provisioningState": state,
            "timestamp": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z"),
            "duration": "PT0S",
            "correlationId": correlation,
            "providers": [{"namespace": "Microsoft.ContainerService", "resourceTypes": kinds}],
            "dependencies": [],
        },
    }


def _deployment_key(found: re.Match[str]) -> str:
    return f"{found['group']}/providers/{DEPLOYMENT_TYPE}/{found['name']}".lower()


# az inserts the text of the template into the request, after a name without quotes.
BODY_TOKEN = re.compile(rb'("(?:[^"\\]|\\.)*")|(//[^\n]*|/\*.*?\*/)|(, template:)', re.DOTALL)


def deployment_properties(content: bytes) -> dict[str, Any]:
    """Reads the properties of a requested deployment."""

    def json_token(found: re.Match[bytes]) -> bytes:
        if found[2]:
            return b" "
        return b', "template":' if found[3] else found[1]

    try:
        properties: dict[str, Any] = json.loads(BODY_TOKEN.sub(json_token, content), strict=False)["properties"]
        mode = str(properties.get("mode") or "Incremental")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise invalid_content() from None
    if mode.lower() != "incremental":
        message = "The lab supports only incremental deployments, which remove no resources."
        raise LabArmError(400, "InvalidDeploymentMode", message)
    if "template" not in properties:
        message = "The lab supports only templates in the request, not links to templates."
        raise LabArmError(400, "InvalidTemplate", message)
    return properties
