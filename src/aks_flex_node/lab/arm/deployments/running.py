"""A deployment that runs: each resource after those that it depends on, and the rest side by side."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.arm.deployments.asking import Live, Refused
from aks_flex_node.lab.arm.deployments.parameters import has_type
from aks_flex_node.lab.arm.deployments.problems import TemplateError, of_resource
from aks_flex_node.lab.arm.deployments.records import span, stamp
from aks_flex_node.lab.arm.deployments.templates import outputs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.lab.arm.deployments.asking import Asks
    from aks_flex_node.lab.arm.deployments.problems import Problem
    from aks_flex_node.lab.arm.deployments.records import Operation
    from aks_flex_node.lab.arm.deployments.templates import Plan, Planned

AT_ONCE = 8  # resources that are written side by side
REASONS = {200: "OK", 201: "Created", 400: "BadRequest", 403: "Forbidden", 404: "NotFound", 409: "Conflict"}

Outputs = dict[str, tuple[str, Any]]


@dataclass
class Run:
    plan: Plan
    inside: Asks
    deployment: str  # its id
    tell: Callable[[Operation], None]
    problems: list[Problem] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    async def go(self) -> Outputs:
        """What comes out, unless there are problems; what was made until then stays."""
        live = Live(self.inside, self.plan, asyncio.get_running_loop())
        places = asyncio.Semaphore(AT_ONCE)
        writing: dict[str, asyncio.Future[bool]] = {}
        for each in self.plan.resources:
            writing[each.id] = asyncio.ensure_future(self._write(each, live, places, writing))
        try:
            await asyncio.gather(*writing.values())
        except asyncio.CancelledError:
            for task in writing.values():
                task.cancel()
            raise
        return {} if self.problems else await self._outputs(live)

    async def _write(
        self, resource: Planned, live: Live, places: asyncio.Semaphore, others: dict[str, asyncio.Future[bool]]
    ) -> bool:
        """Whether it is there; what depends on something that is not there is not begun."""
        await asyncio.sleep(0)  # until all have their places in `others`
        if not all([await others[each] for each in resource.depends]):
            return False
        began = time.time()
        try:
            async with places:
                body = await asyncio.to_thread(resource.body, live)
                status, _ = await self.inside.ask("PUT", resource.id, resource.version, body)
        except (Refused, TemplateError) as error:
            self._failed(resource, began, error)
            return False
        self.made.append(resource.id)
        self.tell(self._operation("Create", began, status, resource=resource))
        return True

    def _failed(self, resource: Planned, began: float, error: Refused | TemplateError) -> None:
        problem, status = _problem(error)
        self.problems.append(of_resource(resource.id, problem))
        self.tell(self._operation("Create", began, status, problem, resource))

    async def _outputs(self, live: Live) -> Outputs:
        began = time.time()
        try:
            found = await asyncio.to_thread(outputs_of, self.plan, live)
            for name, (kind, value) in found.items():
                if not has_type(value, kind):
                    raise TemplateError(
                        f"The output '{name}' is not of type '{kind}'.", "DeploymentOutputEvaluationFailed"
                    )
        except (Refused, TemplateError) as error:
            problem, status = _problem(error)
            wrong = {"code": "DeploymentOutputEvaluationFailed", "message": "Unable to evaluate template outputs."}
            self.problems.append({**wrong, "details": [problem]})
            self.tell(self._operation("EvaluateDeploymentOutput", began, status, problem))
            return {}
        self.tell(self._operation("EvaluateDeploymentOutput", began, 200))
        return found

    def _operation(
        self, what: str, began: float, status: int, problem: Problem | None = None, resource: Planned | None = None
    ) -> Operation:
        name = uuid.uuid4().hex[:16].upper()
        properties: dict[str, Any] = {
            "provisioningOperation": what,
            "provisioningState": "Failed" if problem else "Succeeded",
            "timestamp": stamp(time.time()),
            "duration": span(time.time() - began),
            "trackingId": str(uuid.uuid4()),
            "statusCode": REASONS.get(status, str(status)),
        }
        if problem:
            properties["statusMessage"] = {"status": "Failed", "error": problem}
        if resource:
            target = {"id": resource.id, "resourceType": resource.kind, "resourceName": resource.name}
            properties["targetResource"] = {**target, "apiVersion": resource.version}
        return {"id": f"{self.deployment}/operations/{name}", "operationId": name, "properties": properties}


def _problem(error: Refused | TemplateError) -> tuple[Problem, int]:
    if isinstance(error, Refused):
        return error.problem, error.status
    return {"code": error.code, "message": str(error)}, 400
