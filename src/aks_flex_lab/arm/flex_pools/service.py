"""The requests of ARM for node pools, bootstrap data and Machines, with their roles and long-running operations."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.documents import read_document
from aks_flex_lab.arm.flex_pools import requests, views
from aks_flex_lab.arm.flex_pools.controller import PoolController
from aks_flex_lab.arm.flex_pools.model import FlexPoolStore, PoolOperation
from aks_flex_lab.arm.flex_pools.nodes import CLUSTER_ERRORS
from aks_flex_lab.arm.resource_manager import CLUSTER_PATH, ArmRoute
from aks_flex_lab.arm.role_assignments import AKS

if TYPE_CHECKING:
    import re
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.requests import Request

    from aks_flex_lab.arm.documents import Document
    from aks_flex_lab.arm.flex_pools.model import FlexPool, PoolMachine, PoolResource
    from aks_flex_lab.arm.managed_clusters import ManagedCluster, ManagedClusters
    from aks_flex_lab.arm.resource_manager import ResourceManagerFront

POOLS = f"{AKS}/agentPools"
POOLS_PATH = CLUSTER_PATH + "/agentpools"
POOL_PATH = POOLS_PATH + "/(?P<pool>[^/]+)"
MACHINES_PATH = POOL_PATH + "/machines"
MACHINE_PATH = MACHINES_PATH + "/(?P<machine>[^/]+)"
OPERATIONS_PATH = r"/subscriptions/[^/]+/providers/microsoft\.containerservice/locations/[^/]+"
API_VERSION = "2026-08-02-preview"


class FlexPools:
    """The provider of node pools for the lab's ARM."""

    def __init__(self, state: Path, clusters: ManagedClusters, management: str) -> None:
        self.store = FlexPoolStore(state)
        self.management = management
        self.controller = PoolController(self.store, clusters)

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.controller.stop()

    def profiles(self, cluster_id: str) -> list[Document]:
        """Returns the flex pools as the document of their cluster lists them."""
        return [views.pool_profile(each) for each in self.store.read().pools_of(cluster_id)]

    def routes_in(self, resource_manager: ResourceManagerFront) -> list[ArmRoute]:
        pools = _PoolHandlers(resource_manager, self)
        machines = _MachineHandlers(resource_manager, self)
        return [
            ArmRoute("GET", POOLS_PATH, f"{POOLS}/read", pools.list),
            ArmRoute("GET", POOL_PATH, f"{POOLS}/read", pools.get),
            ArmRoute("PUT", POOL_PATH, f"{POOLS}/write", pools.put),
            ArmRoute("DELETE", POOL_PATH, f"{POOLS}/delete", pools.delete),
            ArmRoute(
                "POST", POOL_PATH + "/listbootstrapdata", f"{POOLS}/listBootstrapData/action", pools.bootstrap_data
            ),
            ArmRoute("POST", POOL_PATH + "/deletemachines", f"{POOLS}/deleteMachines/action", machines.delete),
            ArmRoute("GET", MACHINES_PATH, f"{POOLS}/machines/read", machines.list),
            ArmRoute("GET", MACHINE_PATH, f"{POOLS}/machines/read", machines.get),
            ArmRoute("PUT", MACHINE_PATH, f"{POOLS}/machines/write", machines.put),
            ArmRoute("GET", OPERATIONS_PATH + "/operations/(?P<operation>[^/]+)", "", self._operation),
            ArmRoute("GET", OPERATIONS_PATH + "/operationresults/(?P<operation>[^/]+)", "", self._operation_result),
        ]

    def start(self, operation: PoolOperation, cluster: ManagedCluster) -> dict[str, str]:
        """Starts an operation. Returns the headers with which clients follow it."""
        self.controller.start(operation)
        subscription = cluster.id.split("/")[2]
        where = f"{self.management}/subscriptions/{subscription}/providers/Microsoft.ContainerService"
        place, query = f"{where}/locations/{cluster.location}", f"?api-version={API_VERSION}"
        return {
            "Azure-AsyncOperation": f"{place}/operations/{operation.id}{query}",
            "Location": f"{place}/operationresults/{operation.id}{query}",
            **self._retry_after,
        }

    def require_idle(self, *resources: PoolResource) -> None:
        for each in resources:
            if active := self.controller.active_operation(each.id):
                message = (
                    f"There's an in progress {active.kind} operation on {each.name}. Wait until it has completed."
                )
                raise LabArmError(409, "OperationNotAllowed", f"Operation is not allowed: {message}")

    @property
    def _retry_after(self) -> dict[str, str]:
        return {"Retry-After": str(self.store.timings.retry_after)}

    async def _operation(self, _: Request, found: re.Match[str]) -> Response:
        return JSONResponse(views.operation_document(self._known_operation(found)), headers=self._retry_after)

    async def _operation_result(self, _: Request, found: re.Match[str]) -> Response:
        operation = self._known_operation(found)
        if operation.status == "InProgress":
            return Response(status_code=202, headers=self._retry_after)
        if operation.error:
            raise LabArmError(409, operation.error.code, operation.error.message)
        return Response(status_code=204)

    def _known_operation(self, found: re.Match[str]) -> PoolOperation:
        operation = self.controller.operations.get(found["operation"].lower())
        if operation is None:
            raise _not_found(f"operation {found['operation']}")
        return operation


@dataclass(frozen=True)
class _Handlers:
    front: ResourceManagerFront
    own: FlexPools

    def cluster(self, found: re.Match[str]) -> ManagedCluster:
        return self.front.cluster(found["id"])

    def pool(self, cluster: ManagedCluster, name: str) -> FlexPool:
        pool = self.own.store.read().pools.get(_pool_id(cluster, name).lower())
        if pool is None and name.lower() == views.SYSTEM_POOL:
            message = f"This operation is supported for node pools of type {requests.FLEX_TYPE} only."
            raise LabArmError(400, "OperationNotSupported", message)
        if pool is None:
            raise _not_found(f"agent pool {name} in managed cluster {cluster.name}")
        return pool


class _PoolHandlers(_Handlers):
    async def list(self, _: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found)
        pools = [views.pool_document(each) for each in self.own.store.read().pools_of(cluster.id)]
        return JSONResponse({"value": [views.system_pool_document(cluster), *pools]})

    async def get(self, _: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found)
        if found["pool"].lower() == views.SYSTEM_POOL:
            return JSONResponse(views.system_pool_document(cluster))
        return JSONResponse(views.pool_document(self.pool(cluster, found["pool"])))

    async def put(self, request: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found)
        body, id_ = await read_document(request), _pool_id(cluster, found["pool"])
        if found["pool"].lower() == views.SYSTEM_POOL:
            raise LabArmError(409, "OperationNotAllowed", "The lab does not change this node pool.")
        with self.own.store.changing() as state:
            known = state.pools.get(id_.lower())
            requests.check_etag(request.headers, known.etag if known else "")
            pool = requests.read_pool(body, known.id if known else id_, cluster.version, known)
            self.own.require_idle(pool)
            is_upgrade = known is not None and _is_upgrade(body, pool, known)
            pool.state = "Upgrading" if is_upgrade else "Updating" if known else "Creating"
            pool.error = None
            state.pools[id_.lower()] = pool
        operation = PoolOperation(kind="upgradePool" if is_upgrade else "putPool", target=pool.id)
        headers = self.own.start(operation, cluster)
        return JSONResponse(views.pool_document(pool), 200 if known else 201, headers=headers)

    async def delete(self, request: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found)
        with self.own.store.changing() as state:
            known = state.pools.get(_pool_id(cluster, found["pool"]).lower())
            if known is None:
                return Response(status_code=204)
            requests.check_etag(request.headers, known.etag)
            self.own.require_idle(known)
            if machines := state.machines_of(known.id):
                names = ", ".join(each.name for each in machines)
                message = f"The node pool {known.name} still has machines: {names}. Delete them first."
                raise LabArmError(409, "OperationNotAllowed", message)
            known.state = "Deleting"
        operation = PoolOperation(kind="deletePool", target=known.id)
        return Response(status_code=202, headers=self.own.start(operation, cluster))

    async def bootstrap_data(self, _: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found)
        pool = self.pool(cluster, found["pool"])
        nodes, seconds = self.own.controller.nodes_of(pool.id), self.own.store.timings.token_seconds
        try:
            token, authority = await nodes.create_bootstrap_token(pool.name, seconds), await nodes.authority()
        except CLUSTER_ERRORS as error:
            message = f"The bootstrap token was not created in the cluster: {error}"
            raise LabArmError(503, "ServiceUnavailable", message) from error
        data = views.bootstrap_data(pool, cluster, self.own.management, token, authority)
        return JSONResponse(data, headers={"Cache-Control": "no-store"})


class _MachineHandlers(_Handlers):
    async def list(self, _: Request, found: re.Match[str]) -> Response:
        pool = self.pool(self.cluster(found), found["pool"])
        machines = self.own.store.read().machines_of(pool.id)
        return JSONResponse({"value": [await self._shown(each) for each in machines]})

    async def get(self, _: Request, found: re.Match[str]) -> Response:
        pool = self.pool(self.cluster(found), found["pool"])
        machine = self.own.store.read().machines.get(f"{pool.id}/machines/{found['machine']}".lower())
        if machine is None:
            raise _not_found(f"machine {found['machine']} in agent pool {pool.name}")
        return JSONResponse(await self._shown(machine))

    async def put(self, request: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found)
        body, pool = await read_document(request), self.pool(cluster, found["pool"])
        id_ = f"{pool.id}/machines/{found['machine']}"
        with self.own.store.changing() as state:
            known = state.machines.get(id_.lower())
            requests.check_etag(request.headers, known.etag if known else "")
            machine = requests.read_machine(body, known.id if known else id_, cluster.version, known, pool)
            is_changed = machine != known or machine.state != "Succeeded"
            if is_changed:
                self.own.require_idle(pool, machine)
                machine.state, machine.error = "Updating" if known else "Creating", None
                state.machines[id_.lower()] = machine
        operation = PoolOperation(kind="putMachine", target=machine.id)
        headers = self.own.start(operation, cluster) if is_changed else None
        return JSONResponse(await self._shown(machine), 200 if known else 201, headers=headers)

    async def delete(self, request: Request, found: re.Match[str]) -> Response:
        cluster = self.cluster(found)
        names = requests.read_machine_names(await read_document(request))
        pool = self.pool(cluster, found["pool"])
        with self.own.store.changing() as state:
            self.own.require_idle(pool)
            for name in names:
                machine = state.machines.get(f"{pool.id}/machines/{name}".lower())
                if machine is None:
                    raise _not_found(f"machine {name} in agent pool {pool.name}")
                machine.state = "Deleting"
        operation = PoolOperation(kind="deleteMachines", target=pool.id, machines=names)
        return Response(status_code=202, headers=self.own.start(operation, cluster))

    async def _shown(self, machine: PoolMachine) -> Document:
        """Returns a Machine as ARM shows it. The version of its Node is stored, and shown while the Node is gone."""
        try:
            node = await self.own.controller.nodes_of(machine.id).find(machine.node_name)
        except CLUSTER_ERRORS:
            node = None
        if node and node.version and node.version != machine.current_version:
            with self.own.store.changing() as state:
                if known := state.machines.get(machine.id.lower()):
                    known.current_version = node.version
        return views.machine_document(machine, node)


def _is_upgrade(body: Document, pool: FlexPool, known: FlexPool) -> bool:
    """Returns whether a PUT upgrades the Machines: with a new version, or the same one after a failed upgrade."""
    if not (body.get("properties") or {}).get("orchestratorVersion"):
        return False
    target, before = pool.settings.orchestrator_version, known.settings.orchestrator_version
    if requests.version_key(target) < requests.version_key(known.current_version):
        message = f"Downgrading the node pool from {known.current_version} to {target} is not allowed."
        raise LabArmError(400, "OperationNotAllowed", message)
    return target != before or known.state != "Succeeded"


def _pool_id(cluster: ManagedCluster, name: str) -> str:
    return f"{cluster.id}/agentPools/{name}"


def _not_found(what: str) -> LabArmError:
    return LabArmError(404, "NotFound", f"Could not find the {what}.")
