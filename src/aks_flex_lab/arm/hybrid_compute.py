"""Microsoft.HybridCompute: Azure Arc machines, each with a system-assigned identity."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aks_flex_lab.arm import arm_errors
from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.documents import DocumentStore, read_document
from aks_flex_lab.arm.eventual_consistency import EventualConsistency
from aks_flex_lab.arm.resource_manager import ArmRoute
from aks_flex_lab.entra.tokens import TOKEN_SECONDS
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    import re
    from pathlib import Path

    from starlette.requests import Request

    from aks_flex_lab.arm.resource_manager import ResourceManagerFront
    from aks_flex_lab.entra.tokens import TokenIssuer

MACHINE_TYPE = "Microsoft.HybridCompute/machines"
MACHINE_PATH = (
    r"(?P<id>/subscriptions/[^/]+/resourcegroups/[^/]+/providers/microsoft\.hybridcompute/machines/(?P<name>[^/]+))"
)
API_VERSIONS = ["2024-07-10", "2024-05-20-preview", "2022-12-27"]
TOKEN_PATH = "/lab/arc/token"  # noqa: S105 - where a machine's own agent gets its tokens

ArcMachine = dict[str, Any]


class ArcMachines(DocumentStore):
    """Arc machines in a state directory, as ARM documents with the hash of each machine's credential."""

    def __init__(self, state: Path) -> None:
        super().__init__(state / "machines.json", "the lab's Arc machines", 0o600)

    def by_vm(self, vm: str) -> ArcMachine | None:
        return next((each for each in self.all() if each["properties"]["vmId"].lower() == vm.lower()), None)


class HybridCompute:
    def __init__(self, state: Path, mint: TokenIssuer) -> None:
        self._machines, self._mint = ArcMachines(state), mint
        self._consistency = EventualConsistency(state)

    def routes(self) -> list[Route]:
        """The token endpoint for the agents on machines; in Azure, a separate service of Arc."""
        return [Route(TOKEN_PATH, self._token, methods=["POST"])]

    def routes_in(self, _: ResourceManagerFront) -> list[ArmRoute]:
        return [
            ArmRoute("GET", r"/subscriptions/[^/]+/providers/microsoft\.hybridcompute", "", self._provider),
            ArmRoute("GET", MACHINE_PATH, f"{MACHINE_TYPE}/read", self._get),
            ArmRoute("PUT", MACHINE_PATH, f"{MACHINE_TYPE}/write", self._put),
            ArmRoute("PATCH", MACHINE_PATH, f"{MACHINE_TYPE}/write", self._patch),
            ArmRoute("DELETE", MACHINE_PATH, f"{MACHINE_TYPE}/delete", self._delete),
        ]

    async def _provider(self, *_: object) -> Response:
        kinds = [{"resourceType": "machines", "apiVersions": API_VERSIONS, "locations": []}]
        document = {"namespace": "Microsoft.HybridCompute", "registrationState": "Registered", "resourceTypes": kinds}
        return JSONResponse(document)

    async def _get(self, _: Request, found: re.Match[str]) -> Response:
        return JSONResponse(public_document(self._known(found["id"])))

    async def _put(self, request: Request, found: re.Match[str]) -> Response:
        body = await read_document(request)
        known, properties = self._machines.find(found["id"]), body.get("properties") or {}
        if not body.get("location"):
            raise LabArmError(400, "LocationRequired", "The location property is required for this definition.")
        if known and known["properties"]["vmId"].lower() != str(properties.get("vmId", "")).lower():
            message = (
                f"The machine '{found['name']}' exists already and belongs to another computer (its vmId differs)."
            )
            raise LabArmError(409, "HCRP409", message)
        machine = self._made(found["id"], found["name"], body, known)
        self._machines.put(machine)
        return JSONResponse(public_document(machine), 200 if known else 201)

    def _made(self, id: str, name: str, body: ArcMachine, known: ArcMachine | None) -> ArcMachine:  # noqa: A002
        properties = body.get("properties") or {}
        return {
            "id": known["id"] if known else id,
            "name": known["name"] if known else name,
            "type": MACHINE_TYPE,
            "location": known["location"] if known else body["location"],
            "tags": body.get("tags") or {},
            "identity": known["identity"] if known else self._identity(id, name),
            "properties": {
                "provisioningState": "Succeeded",
                "status": "Connected",
                "lastStatusChange": format_utc(),
                "vmId": properties.get("vmId") or str(uuid.uuid4()),
                "displayName": name,
                "osType": "linux",
                "agentVersion": properties.get("agentVersion", ""),
            },
            "proof": properties.get("clientPublicKey", ""),
        }

    def _identity(self, id: str, name: str) -> dict[str, str]:  # noqa: A002
        principal = self._mint.directory.managed_identity(name, id)
        self._consistency.record_creation(principal.object_id)
        tenant = self._mint.directory.tenant
        return {"type": "SystemAssigned", "principalId": principal.object_id, "tenantId": tenant}

    async def _patch(self, request: Request, found: re.Match[str]) -> Response:
        machine, body = self._known(found["id"]), await read_document(request)
        changed = {**machine, "tags": body.get("tags", machine["tags"])}
        self._machines.put(changed)
        return JSONResponse(public_document(changed))

    async def _delete(self, _: Request, found: re.Match[str]) -> Response:
        machine = self._machines.find(found["id"])
        if machine is None:
            return Response(status_code=204)
        self._machines.remove(machine["id"])
        if principal := self._mint.directory.find(machine["identity"]["principalId"]):
            self._mint.directory.remove(principal)
        return Response(status_code=200)

    async def _token(self, request: Request) -> Response:
        """Issues a token for a machine's identity to an agent with the machine's credential."""
        body = await read_document(request)
        machine = self._machines.by_vm(str(body.get("vmId", "")))
        proof = hashlib.sha256(str(body.get("secret", "")).encode()).hexdigest()
        if machine is None or not hmac.compare_digest(proof, machine["proof"]):
            return JSONResponse(
                {"error": "unauthorized_client", "error_description": "This machine is unknown."}, 401
            )
        principal = self._mint.directory.find(machine["identity"]["principalId"], "managedIdentity")
        if principal is None or not principal.enabled:
            message = "The identity of this machine has been disabled."
            return JSONResponse({"error": "unauthorized_client", "error_description": message}, 401)
        return JSONResponse(
            {
                "access_token": self._mint.access_token(principal, str(body.get("resource", "")).rstrip("/")),
                "client_id": principal.client_id,
                "expires_in": TOKEN_SECONDS,
            }
        )

    def _known(self, id: str) -> ArcMachine:  # noqa: A002
        machine = self._machines.find(id)
        if machine is None:
            raise arm_errors.not_found(id)
        return machine


def public_document(machine: ArcMachine) -> ArcMachine:
    return {key: value for key, value in machine.items() if key != "proof"}
