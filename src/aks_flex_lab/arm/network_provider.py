"""Microsoft.Network for VPNs: virtual networks, subnets, public IP addresses, gateways and client profiles."""

from __future__ import annotations

import json
import secrets
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aks_flex_lab import network
from aks_flex_lab.arm import arm_errors
from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.documents import read_document
from aks_flex_lab.arm.network_resources import NetworkResources
from aks_flex_lab.arm.openvpn import client_archive
from aks_flex_lab.files import write_atomically

if TYPE_CHECKING:
    import re
    from pathlib import Path

    from starlette.requests import Request

    from aks_flex_lab.arm.documents import Document
    from aks_flex_lab.arm.network_resources import NetworkResource
    from aks_flex_lab.arm.resource_manager import Handler, ResourceManagerFront

PROVIDER_PATH = r"/subscriptions/[^/]+/resourcegroups/[^/]+/providers/microsoft\.network"
KINDS = r"(?P<kind>virtualnetworks|publicipaddresses|virtualnetworkgateways)"
RESOURCE_PATH = rf"(?P<id>{PROVIDER_PATH}/{KINDS}/(?P<name>[^/]+))"
SUBNET_PATH = rf"(?P<network>{PROVIDER_PATH}/virtualnetworks/[^/]+)/subnets/(?P<name>[^/]+)"
OPERATION_PATH = r"/subscriptions/[^/]+/providers/microsoft\.network/locations/[^/]+/operations/(?P<name>[^/]+)"
RESULT_PATH = r"/subscriptions/[^/]+/providers/microsoft\.network/locations/[^/]+/operationresults/(?P<name>[^/]+)"
NAMES = {
    "virtualnetworks": "virtualNetworks",
    "publicipaddresses": "publicIPAddresses",
    "virtualnetworkgateways": "virtualNetworkGateways",
}
GATEWAYS = "virtualnetworkgateways"
RETRY_HEADERS = {"Retry-After": "1"}
MAX_ROOT_CERTIFICATES = 20


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

    def handlers(self, resource_manager: ResourceManagerFront) -> list[tuple[str, str, Handler]]:
        network = _NetworkHandlers(resource_manager, self.resources, self)
        return [
            ("GET", f"{PROVIDER_PATH}/{KINDS}", network.list),
            ("GET", RESOURCE_PATH, network.get),
            ("PUT", RESOURCE_PATH, network.put),
            ("DELETE", RESOURCE_PATH, network.delete),
            ("GET", SUBNET_PATH, network.get_subnet),
            ("PUT", SUBNET_PATH, network.put_subnet),
            ("DELETE", SUBNET_PATH, network.delete_subnet),
            ("POST", rf"{RESOURCE_PATH}/generatevpnprofile", network.profile),
            ("GET", OPERATION_PATH, network.operation),
            ("GET", RESULT_PATH, network.result),
        ]

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
    front: ResourceManagerFront
    resources: NetworkResources
    own: NetworkProvider

    async def list(self, request: Request, caller: str, found: re.Match[str]) -> Response:
        self._need(caller, found["kind"], "read", request.url.path)
        shown = [self._shown(each) for each in self.resources.listed(request.url.path)]
        return JSONResponse({"value": shown})

    async def get(self, _: Request, caller: str, found: re.Match[str]) -> Response:
        self._need(caller, found["kind"], "read", found["id"])
        known = self._known(found["id"])
        return JSONResponse(self._shown(known.shown()), headers={"ETag": str(known.document["etag"])})

    async def put(self, request: Request, caller: str, found: re.Match[str]) -> Response:
        kind, id_ = found["kind"].lower(), found["id"]
        self._need(caller, kind, "write", id_)
        before = self.resources.find(id_)
        self._precondition(request, before)
        body = await _body(request)
        if kind == GATEWAYS:
            self._check_gateway(body)
        if kind == "virtualnetworks":
            body = _with_ids(body, id_)
        if before and not before.ready:
            message = "Another operation on this or dependent resource is in progress."
            raise LabArmError(409, "AnotherOperationInProgress", message)
        slow = self.resources.delays.seconds if kind == GATEWAYS else 0.2
        fail = self.resources.take_failure() if kind == GATEWAYS else ""
        document = _document(id_, found["name"], NAMES[kind], body, before)
        made = self.resources.put(document, slow, fail)
        return JSONResponse(
            self._shown(made.shown()),
            200 if before else 201,
            headers={"Azure-AsyncOperation": self._link("operations", id_), **RETRY_HEADERS},
        )

    async def delete(self, _: Request, caller: str, found: re.Match[str]) -> Response:
        self._need(caller, found["kind"], "delete", found["id"])
        if self.resources.find(found["id"]) is None:
            return Response(status_code=204)
        used = found["id"].lower()
        for key, record in self.resources.all().items():
            if "virtualnetworkgateways" in key and key != used and f'"{used}"' in json.dumps(record).lower():
                raise LabArmError(400, "InUseSubnetCannotBeDeleted", f"{found['id']} is in use by {key}.")
        self.resources.remove(found["id"])
        return Response(
            status_code=202, headers={"Azure-AsyncOperation": self._link("operations", ""), **RETRY_HEADERS}
        )

    async def get_subnet(self, request: Request, caller: str, found: re.Match[str]) -> Response:
        self._need(caller, "virtualNetworks/subnets", "read", request.url.path)
        for each in self._shown(self._known(found["network"]).shown())["properties"]["subnets"]:
            if each["name"].lower() == found["name"].lower():
                return JSONResponse(each)
        raise arm_errors.not_found(request.url.path)

    async def put_subnet(self, request: Request, caller: str, found: re.Match[str]) -> Response:
        self._need(caller, "virtualNetworks/subnets", "write", request.url.path)
        body, whole = await _body(request), self._known(found["network"]).document
        others = [each for each in _subnets(whole) if each["name"].lower() != found["name"].lower()]
        made = {"id": f"{whole['id']}/subnets/{found['name']}", "name": found["name"], **body}
        self._replace_subnets(whole, [*others, made])
        headers = {"Azure-AsyncOperation": self._link("operations", str(whole["id"])), **RETRY_HEADERS}
        return JSONResponse(made, 201, headers=headers)

    async def delete_subnet(self, request: Request, caller: str, found: re.Match[str]) -> Response:
        self._need(caller, "virtualNetworks/subnets", "delete", request.url.path)
        whole = self._known(found["network"]).document
        self._replace_subnets(
            whole, [each for each in _subnets(whole) if each["name"].lower() != found["name"].lower()]
        )
        return Response(
            status_code=202, headers={"Azure-AsyncOperation": self._link("operations", ""), **RETRY_HEADERS}
        )

    def _replace_subnets(self, whole: Document, subnets: list[Document]) -> None:  # type: ignore[valid-type]
        self.resources.put({**whole, "properties": {**whole["properties"], "subnets": subnets}})

    async def profile(self, _: Request, caller: str, found: re.Match[str]) -> Response:
        self._need(caller, "virtualNetworkGateways/generatevpnprofile", "action", found["id"])
        known = self._known(found["id"])
        clients = known.document["properties"].get("vpnClientConfiguration") or {}
        if not clients.get("vpnClientRootCertificates"):
            raise LabArmError(400, "VpnClientRootCertificateMissing", "The gateway has no root certificate.")
        return Response(
            status_code=202, headers={"Location": self._link("operationResults", found["id"]), **RETRY_HEADERS}
        )

    async def operation(self, _: Request, caller: str, found: re.Match[str]) -> Response:  # noqa: ARG002
        known = self._target(found["name"])
        state = known.state if known else "Succeeded"
        status: dict[str, Any] = {"status": "InProgress" if state == "Updating" else state}
        if state == "Failed" and known:
            status["error"] = {"code": known.fail, "message": "This failure was injected by the lab."}
        return JSONResponse(status, headers=RETRY_HEADERS)

    async def result(self, _: Request, caller: str, found: re.Match[str]) -> Response:  # noqa: ARG002
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

    def _need(self, caller: str, kind: str, verb: str, scope: str) -> None:
        self.front.require_action(caller, f"Microsoft.Network/{NAMES.get(kind.lower(), kind)}/{verb}", scope)

    def _precondition(self, request: Request, before: NetworkResource | None) -> None:
        if_match = request.headers.get("if-match")
        if if_match and if_match != "*" and (before is None or before.document["etag"] != if_match):
            message = "The resource has been changed since it was read."
            raise LabArmError(412, "PreconditionFailed", message)

    def _check_gateway(self, body: Document) -> None:
        clients = body.get("properties", {}).get("vpnClientConfiguration") or {}
        if len(clients.get("vpnClientRootCertificates") or []) > MAX_ROOT_CERTIFICATES:
            raise LabArmError(
                400,
                "VpnClientRootCertificateLimit",
                f"At most {MAX_ROOT_CERTIFICATES} root certificates are allowed.",
            )
        for configuration in body.get("properties", {}).get("ipConfigurations") or []:
            address = configuration["properties"].get("publicIPAddress", {}).get("id", "")
            if self.resources.find(address) is None:
                raise LabArmError(400, "InvalidResourceReference", f"Resource {address} was not found.")

    def _shown(self, document: Document) -> Document:
        """Returns the document of a resource; a virtual network contains its gateway."""
        if "/virtualnetworks/" not in str(document["id"]).lower():
            return document
        subnets = [{**each, "properties": {**each["properties"], **self._users(each)}} for each in _subnets(document)]
        return {**document, "properties": {**document["properties"], "subnets": subnets}}

    def _users(self, subnet: Document) -> Document:
        mark, found = f'"{str(subnet["id"]).lower()}"', []
        for key, record in self.resources.all().items():
            if GATEWAYS in key and mark in json.dumps(record).lower():
                found.append({"id": f"{record['document']['id']}/ipConfigurations/default"})
        return {"ipConfigurations": found} if found else {}


def _subnets(whole: Document) -> list[Document]:
    return list(whole["properties"].get("subnets") or [])


def _with_ids(body: Document, network_id: str) -> Document:
    """Adds IDs to the subnets in the document of a virtual network."""
    properties = body.get("properties") or {}
    subnets = [{"id": f"{network_id}/subnets/{each.get('name')}", **each} for each in properties.get("subnets") or ()]
    return {**body, "properties": {**properties, "subnets": subnets}} if subnets else body


async def _body(request: Request) -> Document:
    body = await read_document(request)
    if "properties" not in body:
        raise arm_errors.invalid_content()
    return body


def _document(id_: str, name: str, kind: str, body: Document, before: NetworkResource | None) -> Document:
    fields = {key: value for key, value in body.items() if key in {"location", "tags", "sku", "zones"}}
    properties = {key: value for key, value in body["properties"].items() if key != "provisioningState"}
    if kind == "publicIPAddresses":
        properties["ipAddress"] = network.VPN
    if kind == "virtualNetworks" and before and "subnets" not in properties:
        properties["subnets"] = _subnets(before.document)
    return {"id": id_, "name": name, "type": f"Microsoft.Network/{kind}", **fields, "properties": properties}
