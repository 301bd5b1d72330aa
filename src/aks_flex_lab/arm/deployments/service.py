"""Microsoft.Resources: deployments at resource group scope, and resource groups."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.deployments import what_if
from aks_flex_lab.arm.deployments.evaluation import DeploymentTarget
from aks_flex_lab.arm.deployments.execution import DeploymentRun, InternalClient, ProviderRefusal
from aks_flex_lab.arm.deployments.history import DeploymentHistory, is_unfinished, iso_duration, timestamp
from aks_flex_lab.arm.deployments.parameters import SECURE_TYPES, deployment_properties, public_value
from aks_flex_lab.arm.deployments.template_errors import TemplateError, deployment_failed
from aks_flex_lab.arm.deployments.templates import plan_deployment

if TYPE_CHECKING:
    import re
    from pathlib import Path

    from starlette.requests import Request

    from aks_flex_lab.arm.deployments.execution import DeploymentOutputs
    from aks_flex_lab.arm.deployments.history import DeploymentDocument
    from aks_flex_lab.arm.deployments.templates import DeploymentPlan
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


DEPLOYMENT_TYPE = "Microsoft.Resources/deployments"
DEPLOYMENTS_PATH = GROUP_PATH + r"/providers/microsoft\.resources/deployments"
DEPLOYMENT_PATH = (
    GROUP_PATH + r"(?:/providers/microsoft\.resources)?/deployments/(?P<name>[^/]+)"
)  # az also uses the short path
RETRY_HEADERS = {"Retry-After": "1"}


class Deployments:
    """Serves deployments. Secure outputs are in memory only, for authorized callers."""

    def __init__(self, state: Path, resources: ManagedClusters, tenant: str) -> None:
        self._records, self._groups, self._tenant = DeploymentHistory(state), ResourceGroups(resources), tenant
        self._running: dict[str, asyncio.Task[None]] = {}
        self._secure: dict[str, dict[str, Any]] = {}
        self._foreseen: dict[str, dict[str, Any]] = {}

    def handlers(self, resource_manager: ResourceManagerFront) -> list[tuple[str, str, Handler]]:
        def needing(what: str, handler: Handler) -> Handler:
            async def checked(request: Request, caller: str, found: re.Match[str]) -> Response:
                resource_manager.require_action(
                    caller,
                    f"{DEPLOYMENT_TYPE}/{what}",
                    _deployment_key(found) if "name" in found.groupdict() else found["group"],
                )
                self._groups.known(found["group"])
                return await handler(request, caller, found)

            return checked

        async def put(request: Request, _: str, found: re.Match[str]) -> Response:
            return await self._put(request, found, resource_manager)

        async def foresee(request: Request, _: str, found: re.Match[str]) -> Response:
            return await self._foresee(request, found, resource_manager)

        return [
            *self._groups.handlers(resource_manager),
            ("GET", DEPLOYMENTS_PATH, needing("read", self._list)),
            ("GET", DEPLOYMENT_PATH, needing("read", self._get)),
            ("PUT", DEPLOYMENT_PATH, needing("write", put)),
            ("DELETE", DEPLOYMENT_PATH, needing("delete", self._delete)),
            ("POST", DEPLOYMENT_PATH + "/validate", needing("validate/action", self._validate)),
            ("POST", DEPLOYMENT_PATH + "/whatif", needing("whatIf/action", foresee)),
            ("GET", DEPLOYMENT_PATH + "/whatifresults/(?P<result>[^/]+)", needing("read", self._result)),
            ("POST", DEPLOYMENT_PATH + "/cancel", needing("cancel/action", self._cancel)),
            (
                "POST",
                DEPLOYMENT_PATH + "/listoutputswithsecurevalues",
                needing("listOutputsWithSecureValues/action", self._outputs),
            ),
            ("GET", DEPLOYMENT_PATH + "/operations", needing("operations/read", self._operations)),
            (
                "GET",
                DEPLOYMENT_PATH + "/operations/(?P<operation>[^/]+)",
                needing("operations/read", self._operation),
            ),
            ("GET", DEPLOYMENT_PATH + "/operationstatuses/[^/]+", needing("operationstatuses/read", self._status)),
        ]

    async def _put(self, request: Request, found: re.Match[str], resource_manager: ResourceManagerFront) -> Response:
        planned = await self._planned(request, found)
        id_ = _deployment_id(planned.target)
        if id_.lower() in self._running:
            raise LabArmError(
                409, "DeploymentActive", f"The deployment '{found['name']}' is active. Wait, or cancel it."
            )
        inside = _internal_client(request, resource_manager)
        document = self._document(planned, "Running", inside.correlation)
        self._records.begin(document)
        self._secure.pop(id_.lower(), None)
        self._running[id_.lower()] = asyncio.create_task(self._carry_out(planned, inside, id_))
        where = f"{resource_manager.management}{id_}/operationStatuses/{uuid.uuid4().hex}?{request.url.query}"
        return JSONResponse(document, 201, {"Azure-AsyncOperation": where, **RETRY_HEADERS})

    async def _carry_out(self, planned: DeploymentPlan, inside: InternalClient, id_: str) -> None:
        began, state = time.time(), "Canceled"
        run = DeploymentRun(planned, inside, id_, lambda operation: self._records.add_operation(id_, operation))
        more: dict[str, Any] = {}
        try:
            outputs = await run.run()
            state = "Failed" if run.problems else "Succeeded"
            more = (
                {"error": deployment_failed(id_, run.problems)}
                if run.problems
                else {"outputs": self._stored(id_, outputs)}
            )
        finally:
            del self._running[id_.lower()]
            done = {
                "provisioningState": state,
                "timestamp": timestamp(time.time()),
                "duration": iso_duration(time.time() - began),
            }
            self._records.finish(id_, {**done, "outputResources": [{"id": each} for each in run.made], **more})

    def _stored(self, id_: str, outputs: DeploymentOutputs) -> dict[str, Any]:
        """Returns the outputs to store: of secure outputs only the type. Their values need an authorized request."""
        self._secure[id_.lower()] = {name: value for name, (kind, value) in outputs.items() if kind in SECURE_TYPES}
        return {name: public_value(kind, value) for name, (kind, value) in outputs.items()}

    async def _validate(self, request: Request, _: str, found: re.Match[str]) -> Response:
        planned = await self._planned(request, found)
        document = self._document(planned, "Succeeded", str(uuid.uuid4()))
        document["properties"]["validatedResources"] = [{"id": each.id} for each in planned.resources]
        return JSONResponse(document)

    async def _foresee(
        self, request: Request, found: re.Match[str], resource_manager: ResourceManagerFront
    ) -> Response:
        planned = await self._planned(request, found)
        try:
            changes = await what_if.what_if_changes(planned, _internal_client(request, resource_manager))
        except ProviderRefusal as refused:
            problem = refused.problem
            raise LabArmError(refused.status, problem["code"], problem["message"]) from None
        name = uuid.uuid4().hex
        self._foreseen[name] = {"status": "Succeeded", "properties": {"changes": changes}}
        where = (
            f"{resource_manager.management}{_deployment_id(planned.target)}/whatIfResults/{name}?{request.url.query}"
        )
        return Response(status_code=202, headers={"Location": where, **RETRY_HEADERS})

    async def _result(self, _: Request, __: str, found: re.Match[str]) -> Response:
        result = self._foreseen.pop(found["result"], None)
        if result is None:
            raise LabArmError(404, "NotFound", "The result does not exist, or was already read.")
        return JSONResponse(result)

    async def _list(self, request: Request, _: str, found: re.Match[str]) -> Response:
        below, filter_text = f"{found['group']}/".lower(), request.query_params.get("$filter", "")
        mine = [each for each in self._records.all() if each["id"].lower().startswith(below)]
        return JSONResponse({"value": [each for each in mine if _matches_filter(each, filter_text)]})

    async def _get(self, _: Request, __: str, found: re.Match[str]) -> Response:
        return JSONResponse(self._known(found))

    async def _delete(self, _: Request, __: str, found: re.Match[str]) -> Response:
        """Deletes the record of a deployment, not its resources."""
        if self._records.find(_deployment_key(found)) is None:
            return Response(status_code=204)
        if _deployment_key(found) in self._running:
            raise LabArmError(
                409, "DeploymentActive", f"The deployment '{found['name']}' is active. Cancel it first."
            )
        self._records.remove(_deployment_key(found))
        self._secure.pop(_deployment_key(found), None)
        return Response(status_code=204)

    async def _cancel(self, _: Request, __: str, found: re.Match[str]) -> Response:
        self._known(found)
        task = self._running.get(_deployment_key(found))
        if task is None:
            raise LabArmError(409, "DeploymentCannotBeCancelled", f"The deployment '{found['name']}' is not active.")
        task.cancel()
        return Response(status_code=204)

    async def _outputs(self, _: Request, __: str, found: re.Match[str]) -> Response:
        document = self._known(found)
        plain = {name: each.get("value") for name, each in document["properties"].get("outputs", {}).items()}
        return JSONResponse(
            {**plain, **self._secure.get(_deployment_key(found), {})}, headers={"Cache-Control": "no-store"}
        )

    async def _operations(self, _: Request, __: str, found: re.Match[str]) -> Response:
        self._known(found)
        return JSONResponse({"value": self._records.operations(_deployment_key(found))})

    async def _operation(self, _: Request, __: str, found: re.Match[str]) -> Response:
        self._known(found)
        for each in self._records.operations(_deployment_key(found)):
            if each["operationId"].lower() == found["operation"].lower():
                return JSONResponse(each)
        raise LabArmError(404, "DeploymentOperationNotFound", f"The operation '{found['operation']}' was not found.")

    async def _status(self, _: Request, __: str, found: re.Match[str]) -> Response:
        document = self._known(found)
        properties = document["properties"]
        status = {"status": properties["provisioningState"]}
        if "error" in properties:
            status["error"] = properties["error"]
        return JSONResponse(status, headers=RETRY_HEADERS if is_unfinished(document) else {})

    def _known(self, found: re.Match[str]) -> DeploymentDocument:
        document = self._records.find(_deployment_key(found))
        if document is None:
            raise LabArmError(404, "DeploymentNotFound", f"Deployment '{found['name']}' could not be found.")
        return document

    async def _planned(self, request: Request, found: re.Match[str]) -> DeploymentPlan:
        properties = deployment_properties(await request.body())
        group = self._groups.known(found["group"])
        subscription = group["id"].split("/")[2]
        target = DeploymentTarget(subscription, self._tenant, group["name"], group["location"], found["name"])
        try:
            return plan_deployment(properties.get("template"), properties.get("parameters") or {}, target)
        except TemplateError as error:
            raise error.refusal from None

    def _document(self, planned: DeploymentPlan, state: str, correlation: str) -> DeploymentDocument:
        names = sorted({each.kind for each in planned.resources})
        kinds = [{"resourceType": each.partition("/")[2], "locations": [None]} for each in names]
        return {
            "id": _deployment_id(planned.target),
            "name": planned.target.deployment,
            "type": DEPLOYMENT_TYPE,
            "properties": {
                "parameters": planned.parameters.shown(),
                "mode": "Incremental",
                "provisioningState": state,
                "timestamp": timestamp(time.time()),
                "duration": iso_duration(0),
                "correlationId": correlation,
                "providers": [{"namespace": "Microsoft.ContainerService", "resourceTypes": kinds}] if kinds else [],
                "dependencies": [],
            },
        }


def _internal_client(request: Request, resource_manager: ResourceManagerFront) -> InternalClient:
    correlation = request.headers.get("x-ms-correlation-request-id") or str(uuid.uuid4())
    return InternalClient(resource_manager, request.headers["authorization"], correlation)


def _deployment_key(found: re.Match[str]) -> str:
    return f"{found['group']}/providers/{DEPLOYMENT_TYPE}/{found['name']}".lower()


def _deployment_id(target: DeploymentTarget) -> str:
    return f"{target.group_id}/providers/{DEPLOYMENT_TYPE}/{target.deployment}"


def _matches_filter(document: DeploymentDocument, filter_text: str) -> bool:
    """Applies the filter `provisioningState eq 'Failed'`, the one that az uses."""
    state = filter_text.partition("provisioningState eq ")[2].strip("' ")
    return not state or document["properties"]["provisioningState"] == state
