"""Executes a deployment: resources in dependency order, in parallel, by requests to ARM with the caller's token."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import httpx2
from starlette.requests import Request

from aks_flex_lab.arm.deployments.history import iso_duration, timestamp
from aks_flex_lab.arm.deployments.parameters import has_type
from aks_flex_lab.arm.deployments.template_errors import TemplateError, resource_failed
from aks_flex_lab.arm.deployments.templates import evaluate_outputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from aks_flex_lab.arm.deployments.history import OperationDocument
    from aks_flex_lab.arm.deployments.template_errors import ErrorDocument
    from aks_flex_lab.arm.deployments.templates import DeploymentPlan, PlannedResource
    from aks_flex_lab.arm.resource_manager import ResourceManagerFront


REQUEST_SECONDS = 60.0
ATTEMPTS = 5  # attempts of a throttled request
SUCCESS = range(200, 300)


class ProviderRefusal(Exception):  # noqa: N818 - an answer, and often an expected one
    """A provider rejected a request."""

    def __init__(self, status: int, problem: ErrorDocument) -> None:
        super().__init__(problem.get("message", ""))
        self.status = status
        self.problem = problem


class ResourceClient(Protocol):
    async def request(self, method: str, path: str, version: str, body: Any = None) -> tuple[int, Any]:
        """Returns status and document of a successful response; raises ProviderRefusal otherwise."""


@dataclass(frozen=True)
class InternalClient:
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

    async def request(self, method: str, path: str, version: str, body: Any = None) -> tuple[int, Any]:
        """Sends a request, and retries it when it is throttled."""
        for _ in range(ATTEMPTS):
            answer = await self._client.request(method, path, params={"api-version": version}, json=body)
            if answer.status_code != 429:
                break
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
        document = answer.json() if answer.content else {}
        if answer.status_code not in SUCCESS:
            raise ProviderRefusal(
                answer.status_code, document.get("error") or {"code": "Unknown", "message": "No reason given."}
            )
        return answer.status_code, document


@dataclass(frozen=True)
class LiveRuntime:
    """Reads existing resources for template functions during a deployment. Runs in a separate thread."""

    client: ResourceClient
    plan: DeploymentPlan
    loop: asyncio.AbstractEventLoop

    def reference(self, resource: str, version: str, *, full: bool) -> Any:
        id_ = self.plan.find(resource)
        own = next((each.version for each in self.plan.resources if each.id == id_), "")
        document = self._request("GET", id_, version or own)
        return document if full else document.get("properties", {})

    def act(self, action: str, resource: str, version: str, body: Any) -> Any:
        return self._request("POST", f"{self.plan.find(resource)}/{action}", version, body)

    def _request(self, method: str, path: str, version: str, body: Any = None) -> Any:
        work = self.client.request(method, path, version, body)
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()[1]


PARALLEL_WRITES = 8  # number of resources that are written in parallel
REASONS = {200: "OK", 201: "Created", 400: "BadRequest", 403: "Forbidden", 404: "NotFound", 409: "Conflict"}

DeploymentOutputs = dict[str, tuple[str, Any]]


@dataclass
class DeploymentRun:
    plan: DeploymentPlan
    client: ResourceClient
    deployment: str  # ID of the deployment
    record_operation: Callable[[OperationDocument], None]
    problems: list[ErrorDocument] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    async def run(self) -> DeploymentOutputs:
        """Deploys all resources and returns the outputs, or the errors. Resources are not rolled back."""
        live = LiveRuntime(self.client, self.plan, asyncio.get_running_loop())
        write_slots = asyncio.Semaphore(PARALLEL_WRITES)
        writing: dict[str, asyncio.Future[bool]] = {}
        for each in self.plan.resources:
            writing[each.id] = asyncio.ensure_future(self._write(each, live, write_slots, writing))
        try:
            await asyncio.gather(*writing.values())
        except asyncio.CancelledError:
            for task in writing.values():
                task.cancel()
            raise
        return {} if self.problems else await self._outputs(live)

    async def _write(
        self,
        resource: PlannedResource,
        live: LiveRuntime,
        write_slots: asyncio.Semaphore,
        others: dict[str, asyncio.Future[bool]],
    ) -> bool:
        """Writes a resource after its dependencies, unless one of them failed; returns whether it succeeded."""
        await asyncio.sleep(0)  # until all tasks are in `others`
        if not all([await others[each] for each in resource.depends]):
            return False
        began = time.time()
        try:
            async with write_slots:
                body = await asyncio.to_thread(resource.body, live)
                status, _ = await self.client.request("PUT", resource.id, resource.version, body)
        except (ProviderRefusal, TemplateError) as error:
            self._failed(resource, began, error)
            return False
        self.made.append(resource.id)
        self.record_operation(self._operation("Create", began, status, resource=resource))
        return True

    def _failed(self, resource: PlannedResource, began: float, error: ProviderRefusal | TemplateError) -> None:
        problem, status = _problem(error)
        self.problems.append(resource_failed(resource.id, problem))
        self.record_operation(self._operation("Create", began, status, problem, resource))

    async def _outputs(self, live: LiveRuntime) -> DeploymentOutputs:
        began = time.time()
        try:
            found = await asyncio.to_thread(evaluate_outputs, self.plan, live)
            for name, (kind, value) in found.items():
                if not has_type(value, kind):
                    raise TemplateError(
                        f"The output '{name}' is not of type '{kind}'.", "DeploymentOutputEvaluationFailed"
                    )
        except (ProviderRefusal, TemplateError) as error:
            problem, status = _problem(error)
            wrong = {"code": "DeploymentOutputEvaluationFailed", "message": "Unable to evaluate template outputs."}
            self.problems.append({**wrong, "details": [problem]})
            self.record_operation(self._operation("EvaluateDeploymentOutput", began, status, problem))
            return {}
        self.record_operation(self._operation("EvaluateDeploymentOutput", began, 200))
        return found

    def _operation(
        self,
        what: str,
        began: float,
        status: int,
        problem: ErrorDocument | None = None,
        resource: PlannedResource | None = None,
    ) -> OperationDocument:
        name = uuid.uuid4().hex[:16].upper()
        properties: dict[str, Any] = {
            "provisioningOperation": what,
            "provisioningState": "Failed" if problem else "Succeeded",
            "timestamp": timestamp(time.time()),
            "duration": iso_duration(time.time() - began),
            "trackingId": str(uuid.uuid4()),
            "statusCode": REASONS.get(status, str(status)),
        }
        if problem:
            properties["statusMessage"] = {"status": "Failed", "error": problem}
        if resource:
            target = {"id": resource.id, "resourceType": resource.kind, "resourceName": resource.name}
            properties["targetResource"] = {**target, "apiVersion": resource.version}
        return {"id": f"{self.deployment}/operations/{name}", "operationId": name, "properties": properties}


def _problem(error: ProviderRefusal | TemplateError) -> tuple[ErrorDocument, int]:
    if isinstance(error, ProviderRefusal):
        return error.problem, error.status
    return {"code": error.code, "message": str(error)}, 400
