"""Microsoft.Network for VPNs: virtual networks, subnets, public IP addresses, gateways and client profiles."""

from __future__ import annotations

import json
import secrets
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aks_flex_lab import network
from aks_flex_lab.arm import arm_errors
from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.documents import read_document
from aks_flex_lab.arm.network_resources import NetworkResources
from aks_flex_lab.arm.openvpn import client_archive
from aks_flex_lab.arm.resource_manager import ArmRoute
from aks_flex_lab.files import write_atomically

if TYPE_CHECKING:
    import re
    from pathlib import Path

    from starlette.requests import Request

    from aks_flex_lab.arm.documents import Document
    from aks_flex_lab.arm.network_resources import NetworkResource
    from aks_flex_lab.arm.resource_manager import ResourceManagerFront

PROVIDER_PATH = r"/subscriptions/[^/]+/resourcegroups/[^/]+/providers/microsoft\.network"
LOCATION_PATH = r"/subscriptions/[^/]+/providers/microsoft\.network/locations/[^/]+"
GATEWAYS, SUBNETS = "virtualNetworkGateways", "virtualNetworks/subnets"
RETRY_HEADERS = {"Retry-After": "1"}


# The path of each type of resource.
KINDS = {
    "virtualNetworks": "virtualnetworks",
    "publicIPAddresses": "publicipaddresses",
    GATEWAYS: "virtualnetworkgateways",
    SUBNETS: "virtualnetworks/[^/]+/subnets",
}


@dataclass(frozen=True)
class NetworkProvider:
    state: Path
    management: str

    @property
    def resources(self) -> NetworkResources:
        return NetworkResources(self.state)

    def routes(self) -> list[Route]:
        """Serves profile archives to any client with the link, as Azure Storage does."""
        return [Route("/profiles/{name}", self._download)]

    def routes_in(self, _: ResourceManagerFront) -> list[ArmRoute]:
        network = _NetworkHandlers(self.resources, self)
        operations, results = (
            f"{LOCATION_PATH}/{each}/(?P<name>[^/]+)" for each in ("operations", "operationresults")
        )
        routes = [ArmRoute("GET", operations, "", network.operation), ArmRoute("GET", results, "", network.result)]
        for kind, path in KINDS.items():
            action, collection = f"Microsoft.Network/{kind}", f"{PROVIDER_PATH}/{path}"
            resource = rf"(?P<id>{collection}/(?P<name>[^/]+))"
            routes += [
                ArmRoute("GET", collection, f"{action}/read", network.list),
                ArmRoute("GET", resource, f"{action}/read", network.get),
                ArmRoute("PUT", resource, f"{action}/write", partial(network.put, kind)),
                ArmRoute("DELETE", resource, f"{action}/delete", network.delete),
                ArmRoute(
                    "POST", f"{resource}/generatevpnprofile", f"{action}/generatevpnprofile/action", network.profile
                ),
            ]
        return routes

    async def _download(self, request: Request) -> Response:
        path = self.state / "profiles" / f"{request.path_params['name']}.json"
        record = json.loads(path.read_text()) if path.exists() else {}
        if not record or request.query_params.get("sig") != record["sig"]:
            return Response("AuthenticationFailed", 403)
        return Response(client_archive(self.state), media_type="application/zip")

    def offer(self) -> str:
        """Returns a link to a client profile archive."""
        name, sig = secrets.token_hex(8), secrets.token_urlsafe(16)
        write_atomically(self.state / "profiles" / f"{name}.json", json.dumps({"sig": sig}), 0o600)
        return f"{self.management}/profiles/{name}?sig={sig}"


@dataclass(frozen=True)
class _NetworkHandlers:
    resources: NetworkResources
    own: NetworkProvider

    async def list(self, request: Request, _: re.Match[str]) -> Response:
        return JSONResponse({"value": [self._shown(each) for each in self.resources.listed(request.url.path)]})

    async def get(self, _: Request, found: re.Match[str]) -> Response:
        return JSONResponse(self._shown(self._known(found["id"])))

    async def put(self, kind: str, request: Request, found: re.Match[str]) -> Response:
        id_ = found["id"]
        before = self.resources.find(id_)
        if_match = request.headers.get("if-match")
        if if_match and (before is None or before.document["etag"] != if_match):
            message = "The resource has been changed since it was read."
            raise LabArmError(412, "PreconditionFailed", message)
        body = await read_document(request)
        if kind == GATEWAYS:
            self._check_gateway(body)
        if before and not before.ready:
            message = "Another operation on this or dependent resource is in progress."
            raise LabArmError(409, "AnotherOperationInProgress", message)
        slow = self.resources.delays.seconds if kind == GATEWAYS else 0.2
        fail = self.resources.take_failure() if kind == GATEWAYS else ""
        made = self.resources.put(_document(id_, found["name"], kind, body), slow, fail)
        headers = {"Azure-AsyncOperation": self._link("operations", id_), **RETRY_HEADERS}
        return JSONResponse(self._shown(made), 200 if before else 201, headers=headers)

    async def delete(self, _: Request, found: re.Match[str]) -> Response:
        if self.resources.find(found["id"]) is None:
            return Response(status_code=204)
        if users := self._gateways_with(found["id"]):
            raise LabArmError(400, "InUseSubnetCannotBeDeleted", f"{found['id']} is in use by {users[0]}.")
        self.resources.remove(found["id"])
        headers = {"Azure-AsyncOperation": self._link("operations", ""), **RETRY_HEADERS}
        return Response(status_code=202, headers=headers)

    async def profile(self, _: Request, found: re.Match[str]) -> Response:
        self._known(found["id"])
        return Response(
            status_code=202, headers={"Location": self._link("operationResults", found["id"]), **RETRY_HEADERS}
        )

    async def operation(self, _: Request, found: re.Match[str]) -> Response:
        known = self._target(found["name"])
        state = known.state if known else "Succeeded"
        status: dict[str, Any] = {"status": "InProgress" if state == "Updating" else state}
        if state == "Failed" and known:
            status["error"] = {"code": known.fail, "message": "This failure was injected by the lab."}
        return JSONResponse(status, headers=RETRY_HEADERS)

    async def result(self, _: Request, found: re.Match[str]) -> Response:
        known = self._target(found["name"])
        if known and not known.ready:
            return Response(status_code=202, headers=RETRY_HEADERS)
        return JSONResponse(self.own.offer())

    def _link(self, what: str, id_: str) -> str:
        """Returns the URL of an operation, whose name contains the ID of the resource."""
        name = f"{uuid.uuid4()}~{id_.replace('/', '!')}"
        location = "/subscriptions/lab/providers/Microsoft.Network/locations/lab"
        return f"{self.own.management}{location}/{what}/{name}?api-version=2024-05-01"

    def _target(self, name: str) -> NetworkResource | None:
        return self.resources.find(name.partition("~")[2].replace("!", "/"))

    def _known(self, id_: str) -> NetworkResource:
        known = self.resources.find(id_)
        if known is None:
            raise arm_errors.not_found(id_)
        return known

    def _check_gateway(self, body: Document) -> None:
        for configuration in body.get("properties", {}).get("ipConfigurations") or []:
            address = configuration["properties"].get("publicIPAddress", {}).get("id", "")
            if self.resources.find(address) is None:
                raise LabArmError(400, "InvalidResourceReference", f"Resource {address} was not found.")

    def _shown(self, resource: NetworkResource) -> Document:
        """Returns the document of a resource: a network with its subnets, and a subnet with the gateway in it."""
        document = resource.shown()
        more: Document = {}
        if document["type"] == "Microsoft.Network/virtualNetworks":
            more["subnets"] = [self._shown(each) for each in self.resources.listed(f"{document['id']}/subnets")]
        if document["type"] == f"Microsoft.Network/{SUBNETS}" and (users := self._gateways_with(document["id"])):
            more["ipConfigurations"] = [{"id": f"{each}/ipConfigurations/default"} for each in users]
        return {**document, "properties": {**document["properties"], **more}}

    def _gateways_with(self, id_: str) -> tuple[str, ...]:
        """Returns the IDs of the gateways that use a subnet or an address."""
        records = self.resources.all().items()
        gateways = [record["document"] for key, record in records if f"/{GATEWAYS.lower()}/" in key]
        return tuple(each["id"] for each in gateways if f'"{id_.lower()}"' in json.dumps(each["properties"]).lower())


def _document(id_: str, name: str, kind: str, body: Document) -> Document:
    fields = {key: value for key, value in body.items() if key in {"location", "tags", "sku", "zones"}}
    properties = {key: value for key, value in body["properties"].items() if key != "provisioningState"}
    if kind == "publicIPAddresses":
        properties["ipAddress"] = network.VPN
    return {"id": id_, "name": name, "type": f"Microsoft.Network/{kind}", **fields, "properties": properties}
