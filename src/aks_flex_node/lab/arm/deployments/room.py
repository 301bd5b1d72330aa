"""Microsoft.Resources/deployments: templates, at the scope of a resource group."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from aks_flex_node.lab.arm.answers import Refusal
from aks_flex_node.lab.arm.deployments import what_if
from aks_flex_node.lab.arm.deployments.asking import Inside, Refused
from aks_flex_node.lab.arm.deployments.bodies import properties_of
from aks_flex_node.lab.arm.deployments.evaluating import Place
from aks_flex_node.lab.arm.deployments.groups import GROUP, Groups
from aks_flex_node.lab.arm.deployments.parameters import SECURE, shown
from aks_flex_node.lab.arm.deployments.problems import TemplateError, failed
from aks_flex_node.lab.arm.deployments.records import Records, is_unfinished, span, stamp
from aks_flex_node.lab.arm.deployments.running import Run
from aks_flex_node.lab.arm.deployments.templates import plan

if TYPE_CHECKING:
    import re
    from pathlib import Path

    from starlette.requests import Request

    from aks_flex_node.lab.arm.app import Front, Handler
    from aks_flex_node.lab.arm.deployments.records import Document
    from aks_flex_node.lab.arm.deployments.running import Outputs
    from aks_flex_node.lab.arm.deployments.templates import Plan
    from aks_flex_node.lab.arm.resources import Resources

TYPE = "Microsoft.Resources/deployments"
ALL = GROUP + r"/providers/microsoft\.resources/deployments"
ONE = GROUP + r"(?:/providers/microsoft\.resources)?/deployments/(?P<name>[^/]+)"  # az uses the short one, too
RETRY = {"Retry-After": "1"}


class Deployments:
    """Values that are secure are kept in memory alone, for those who may ask for them."""

    def __init__(self, state: Path, resources: Resources, tenant: str) -> None:
        self._records, self._groups, self._tenant = Records(state), Groups(resources), tenant
        self._running: dict[str, asyncio.Task[None]] = {}
        self._secure: dict[str, dict[str, Any]] = {}
        self._foreseen: dict[str, dict[str, Any]] = {}

    def handlers(self, front: Front) -> list[tuple[str, str, Handler]]:
        def needing(what: str, handler: Handler) -> Handler:
            async def checked(request: Request, who: str, found: re.Match[str]) -> Response:
                front.need(who, f"{TYPE}/{what}", _key(found) if "name" in found.groupdict() else found["group"])
                self._groups.known(found["group"])
                return await handler(request, who, found)

            return checked

        async def put(request: Request, _: str, found: re.Match[str]) -> Response:
            return await self._put(request, found, front)

        async def foresee(request: Request, _: str, found: re.Match[str]) -> Response:
            return await self._foresee(request, found, front)

        return [
            *self._groups.handlers(front),
            ("GET", ALL, needing("read", self._list)),
            ("GET", ONE, needing("read", self._get)),
            ("PUT", ONE, needing("write", put)),
            ("DELETE", ONE, needing("delete", self._delete)),
            ("POST", ONE + "/validate", needing("validate/action", self._validate)),
            ("POST", ONE + "/whatif", needing("whatIf/action", foresee)),
            ("GET", ONE + "/whatifresults/(?P<result>[^/]+)", needing("read", self._result)),
            ("POST", ONE + "/cancel", needing("cancel/action", self._cancel)),
            (
                "POST",
                ONE + "/listoutputswithsecurevalues",
                needing("listOutputsWithSecureValues/action", self._outputs),
            ),
            ("GET", ONE + "/operations", needing("operations/read", self._operations)),
            ("GET", ONE + "/operations/(?P<operation>[^/]+)", needing("operations/read", self._operation)),
            ("GET", ONE + "/operationstatuses/[^/]+", needing("operationstatuses/read", self._status)),
        ]

    async def _put(self, request: Request, found: re.Match[str], front: Front) -> Response:
        planned = await self._planned(request, found)
        id_ = _id(planned.place)
        if id_.lower() in self._running:
            raise Refusal(409, "DeploymentActive", f"The deployment '{found['name']}' is active; wait, or cancel it.")
        inside = _inside(request, front)
        document = self._document(planned, "Running", inside.correlation)
        self._records.begin(document)
        self._secure.pop(id_.lower(), None)
        self._running[id_.lower()] = asyncio.create_task(self._carry_out(planned, inside, id_))
        where = f"{front.management}{id_}/operationStatuses/{uuid.uuid4().hex}?{request.url.query}"
        return JSONResponse(document, 201, {"Azure-AsyncOperation": where, **RETRY})

    async def _carry_out(self, planned: Plan, inside: Inside, id_: str) -> None:
        began, state = time.time(), "Canceled"
        run = Run(planned, inside, id_, lambda operation: self._records.tell(id_, operation))
        more: dict[str, Any] = {}
        try:
            outputs = await run.go()
            state = "Failed" if run.problems else "Succeeded"
            more = {"error": failed(id_, run.problems)} if run.problems else {"outputs": self._kept(id_, outputs)}
        finally:
            del self._running[id_.lower()]
            done = {
                "provisioningState": state,
                "timestamp": stamp(time.time()),
                "duration": span(time.time() - began),
            }
            self._records.finish(id_, {**done, "outputResources": [{"id": each} for each in run.made], **more})

    def _kept(self, id_: str, outputs: Outputs) -> dict[str, Any]:
        """Of outputs that are secure, the type; who wants the value asks for it, and needs a right to."""
        self._secure[id_.lower()] = {name: value for name, (kind, value) in outputs.items() if kind in SECURE}
        return {name: shown(kind, value) for name, (kind, value) in outputs.items()}

    async def _validate(self, request: Request, _: str, found: re.Match[str]) -> Response:
        planned = await self._planned(request, found)
        document = self._document(planned, "Succeeded", str(uuid.uuid4()))
        document["properties"]["validatedResources"] = [{"id": each.id} for each in planned.resources]
        return JSONResponse(document)

    async def _foresee(self, request: Request, found: re.Match[str], front: Front) -> Response:
        planned = await self._planned(request, found)
        try:
            changes = await what_if.changes(planned, _inside(request, front))
        except Refused as refused:
            problem = refused.problem
            raise Refusal(refused.status, problem["code"], problem["message"]) from None
        name = uuid.uuid4().hex
        self._foreseen[name] = {"status": "Succeeded", "properties": {"changes": changes}}
        where = f"{front.management}{_id(planned.place)}/whatIfResults/{name}?{request.url.query}"
        return Response(status_code=202, headers={"Location": where, **RETRY})

    async def _result(self, _: Request, __: str, found: re.Match[str]) -> Response:
        result = self._foreseen.pop(found["result"], None)
        if result is None:
            raise Refusal(404, "NotFound", "There is no such result, or it was fetched before.")
        return JSONResponse(result)

    async def _list(self, request: Request, _: str, found: re.Match[str]) -> Response:
        below, wanted = f"{found['group']}/".lower(), request.query_params.get("$filter", "")
        mine = [each for each in self._records.all() if each["id"].lower().startswith(below)]
        return JSONResponse({"value": [each for each in mine if _fits(each, wanted)]})

    async def _get(self, _: Request, __: str, found: re.Match[str]) -> Response:
        return JSONResponse(self._known(found))

    async def _delete(self, _: Request, __: str, found: re.Match[str]) -> Response:
        """What was deployed stays."""
        if self._records.find(_key(found)) is None:
            return Response(status_code=204)
        if _key(found) in self._running:
            raise Refusal(409, "DeploymentActive", f"The deployment '{found['name']}' is active; cancel it first.")
        self._records.remove(_key(found))
        self._secure.pop(_key(found), None)
        return Response(status_code=204)

    async def _cancel(self, _: Request, __: str, found: re.Match[str]) -> Response:
        self._known(found)
        task = self._running.get(_key(found))
        if task is None:
            raise Refusal(409, "DeploymentCannotBeCancelled", f"The deployment '{found['name']}' is not active.")
        task.cancel()
        return Response(status_code=204)

    async def _outputs(self, _: Request, __: str, found: re.Match[str]) -> Response:
        document = self._known(found)
        plain = {name: each.get("value") for name, each in document["properties"].get("outputs", {}).items()}
        return JSONResponse({**plain, **self._secure.get(_key(found), {})}, headers={"Cache-Control": "no-store"})

    async def _operations(self, _: Request, __: str, found: re.Match[str]) -> Response:
        self._known(found)
        return JSONResponse({"value": self._records.operations(_key(found))})

    async def _operation(self, _: Request, __: str, found: re.Match[str]) -> Response:
        self._known(found)
        for each in self._records.operations(_key(found)):
            if each["operationId"].lower() == found["operation"].lower():
                return JSONResponse(each)
        raise Refusal(404, "DeploymentOperationNotFound", f"There is no operation '{found['operation']}'.")

    async def _status(self, _: Request, __: str, found: re.Match[str]) -> Response:
        document = self._known(found)
        properties = document["properties"]
        told = {"status": properties["provisioningState"]}
        if "error" in properties:
            told["error"] = properties["error"]
        return JSONResponse(told, headers=RETRY if is_unfinished(document) else {})

    def _known(self, found: re.Match[str]) -> Document:
        document = self._records.find(_key(found))
        if document is None:
            raise Refusal(404, "DeploymentNotFound", f"Deployment '{found['name']}' could not be found.")
        return document

    async def _planned(self, request: Request, found: re.Match[str]) -> Plan:
        wanted = properties_of(await request.body())
        group = self._groups.known(found["group"])
        subscription = group["id"].split("/")[2]
        place = Place(subscription, self._tenant, group["name"], group["location"], found["name"])
        try:
            return plan(wanted.get("template"), wanted.get("parameters") or {}, place)
        except TemplateError as error:
            raise error.refusal from None

    def _document(self, planned: Plan, state: str, correlation: str) -> Document:
        names = sorted({each.kind for each in planned.resources})
        kinds = [{"resourceType": each.partition("/")[2], "locations": [None]} for each in names]
        return {
            "id": _id(planned.place),
            "name": planned.place.deployment,
            "type": TYPE,
            "properties": {
                "parameters": planned.parameters.shown(),
                "mode": "Incremental",
                "provisioningState": state,
                "timestamp": stamp(time.time()),
                "duration": span(0),
                "correlationId": correlation,
                "providers": [{"namespace": "Microsoft.ContainerService", "resourceTypes": kinds}] if kinds else [],
                "dependencies": [],
            },
        }


def _inside(request: Request, front: Front) -> Inside:
    correlation = request.headers.get("x-ms-correlation-request-id") or str(uuid.uuid4())
    return Inside(front, request.headers["authorization"], correlation)


def _key(found: re.Match[str]) -> str:
    return f"{found['group']}/providers/{TYPE}/{found['name']}".lower()


def _id(place: Place) -> str:
    return f"{place.group_id}/providers/{TYPE}/{place.deployment}"


def _fits(document: Document, wanted: str) -> bool:
    """`provisioningState eq 'Failed'` is the filter that az knows."""
    state = wanted.partition("provisioningState eq ")[2].strip("' ")
    return not state or document["properties"]["provisioningState"] == state
