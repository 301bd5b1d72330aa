"""Microsoft.Resources: deployments of templates at resource group scope.

A deployment writes its resources with the caller's token, by requests to the lab's ARM. What was deployed is kept in
memory only: neither its history nor what-if is simulated.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import httpx2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aks_flex_lab.arm.arm_errors import LabArmError, invalid_content
from aks_flex_lab.arm.deployments.expressions import DeploymentTarget, TemplateError
from aks_flex_lab.arm.deployments.templates import SECURE_TYPES, plan_deployment, public_value
from aks_flex_lab.arm.resource_manager import ArmRoute
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aks_flex_lab.arm.deployments.templates import DeploymentPlan
    from aks_flex_lab.arm.managed_clusters import ManagedClusters
    from aks_flex_lab.arm.resource_manager import ResourceManagerFront


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
        options: dict[str, Any] = {"base_url": self.front.management, "timeout": REQUEST_SECONDS}
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self._answer), headers=headers, **options)

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


@dataclass
class DeploymentRun:
    """Writes the resources of a plan: each after those that it depends on, unless one of them failed."""

    plan: DeploymentPlan
    client: InternalClient
    problems: list[ErrorDocument] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    async def run(self) -> dict[str, tuple[str, Any]]:
        """Deploys all resources and returns the outputs, or the errors. Resources are not rolled back."""
        failed = set[str]()
        for each in self.plan.resources:
            if each.depends & failed:
                failed.add(each.id.lower())
                continue
            try:
                await self.client.request("PUT", each.id, each.version, each.body)
            except ProviderRefusal as refused:
                self.problems.append({**refused.problem, "target": each.id})
                failed.add(each.id.lower())
            else:
                self.made.append(each.id)
        if self.problems:
            return {}
        loop = asyncio.get_running_loop()

        def act(action: str, resource: str, version: str) -> Any:
            asked = self.client.request("POST", f"{resource}/{action}", version)
            return asyncio.run_coroutine_threadsafe(asked, loop).result()

        try:
            return await asyncio.to_thread(self.plan.outputs, act)
        except ProviderRefusal as refused:
            reason = refused.problem
        except TemplateError as error:
            reason = {"code": error.code, "message": error.message}
        wrong = {"code": "DeploymentOutputEvaluationFailed", "message": "Unable to evaluate template outputs."}
        self.problems.append({**wrong, "details": [reason]})
        return {}


GROUP_PATH = r"(?P<group>/subscriptions/[^/]+/resourcegroups/(?P<group_name>[^/]+))"
DEPLOYMENT_TYPE = "Microsoft.Resources/deployments"
DEPLOYMENT_PATH = (
    GROUP_PATH + r"(?:/providers/microsoft\.resources)?/deployments/(?P<name>[^/]+)"
)  # az also uses the short path
RETRY_HEADERS = {"Retry-After": "1"}


class Deployments:
    """Serves deployments. Their secure outputs are only for authorized callers."""

    def __init__(self, clusters: ManagedClusters) -> None:
        self._clusters = clusters
        self._documents: dict[str, dict[str, Any]] = {}  # by ID in lower case
        self._running: dict[str, asyncio.Task[None]] = {}
        self._secure: dict[str, dict[str, Any]] = {}

    def routes_in(self, resource_manager: ResourceManagerFront) -> list[ArmRoute]:
        outputs = "listOutputsWithSecureValues"
        return [
            ArmRoute("GET", DEPLOYMENT_PATH, f"{DEPLOYMENT_TYPE}/read", self._get),
            ArmRoute("PUT", DEPLOYMENT_PATH, f"{DEPLOYMENT_TYPE}/write", partial(self._put, resource_manager)),
            ArmRoute("POST", DEPLOYMENT_PATH + "/validate", f"{DEPLOYMENT_TYPE}/validate/action", self._validate),
            ArmRoute(
                "POST", f"{DEPLOYMENT_PATH}/{outputs.lower()}", f"{DEPLOYMENT_TYPE}/{outputs}/action", self._outputs
            ),
            ArmRoute("GET", DEPLOYMENT_PATH + "/operationstatuses/[^/]+", f"{DEPLOYMENT_TYPE}/read", self._status),
        ]

    async def _put(self, resource_manager: ResourceManagerFront, request: Request, found: re.Match[str]) -> Response:
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
        state = "Canceled"
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
            properties["provisioningState"] = state

    async def _validate(self, request: Request, found: re.Match[str]) -> Response:
        planned = await self._planned(request, found)
        document = _document(planned, "Succeeded", str(uuid.uuid4()))
        document["properties"]["validatedResources"] = [{"id": each.id} for each in planned.resources]
        return JSONResponse(document)

    async def _get(self, _: Request, found: re.Match[str]) -> Response:
        return JSONResponse(self._known(found))

    async def _outputs(self, _: Request, found: re.Match[str]) -> Response:
        document = self._known(found)
        plain = {name: each.get("value") for name, each in document["properties"].get("outputs", {}).items()}
        secure = self._secure.get(_deployment_key(found), {})
        return JSONResponse({**plain, **secure}, headers={"Cache-Control": "no-store"})

    async def _status(self, _: Request, found: re.Match[str]) -> Response:
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
        return plan_deployment(properties["template"], properties.get("parameters") or {}, self._target(found))

    def _target(self, found: re.Match[str]) -> DeploymentTarget:
        """Returns the target of a deployment. A group exists if it has a cluster."""
        ids = (cluster.id.partition("/providers/")[0] for cluster in self._clusters.clusters())
        for id_ in ids:
            if id_.lower() == found["group"].lower():
                return DeploymentTarget(id_.split("/")[2], id_.rpartition("/")[2], found["name"])
        message = f"Resource group '{found['group_name']}' could not be found."
        raise LabArmError(404, "ResourceGroupNotFound", message)


def _document(planned: DeploymentPlan, state: str, correlation: str) -> dict[str, Any]:
    return {
        "id": f"{planned.target.group_id}/providers/{DEPLOYMENT_TYPE}/{planned.target.deployment}",
        "name": planned.target.deployment,
        "type": DEPLOYMENT_TYPE,
        "properties": {
            "parameters": planned.parameters.shown(),
            "mode": "Incremental",
            "provisioningState": state,
            "timestamp": format_utc(),
            "correlationId": correlation,
        },
    }


def _deployment_key(found: re.Match[str]) -> str:
    return f"{found['group']}/providers/{DEPLOYMENT_TYPE}/{found['name']}".lower()


# az inserts the text of the template into the request, after a name without quotes.
BODY_TOKEN = re.compile(rb'("(?:[^"\\]|\\.)*")|, template:', re.DOTALL)


def deployment_properties(content: bytes) -> dict[str, Any]:
    """Reads the properties of a requested deployment."""
    text = BODY_TOKEN.sub(lambda found: found[1] or b', "template":', content)
    try:
        properties: dict[str, Any] = json.loads(text, strict=False)["properties"]
        mode, template = properties["mode"].lower(), properties.get("template")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise invalid_content() from None
    if mode != "incremental" or template is None:
        message = "The lab supports only incremental deployments of a template in the request, not of a link to one."
        raise LabArmError(400, "InvalidTemplate", message)
    return properties
