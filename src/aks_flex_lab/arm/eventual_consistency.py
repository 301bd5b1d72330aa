"""Delays and throttling of the lab's Azure: new identities and role assignments take effect later, as in Azure."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from starlette.responses import HTMLResponse

from aks_flex_lab.arm.arm_errors import LabArmError
from aks_flex_lab.arm.role_assignments import RoleAssignments
from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from aks_flex_lab.arm.role_assignments import RoleAssignment
    from aks_flex_lab.entra.directory import EntraDirectory


ArmFault = Literal["throttled", "unavailable", "html", "tenant"]
ARM_FAULTS: tuple[ArmFault, ...] = get_args(ArmFault)
OTHER_TENANT = "The access token is from the wrong issuer. It must match the tenant of this subscription."
HTML_NOT_FOUND = "<!DOCTYPE html><html><head><title>404 Not Found</title></head><body>Not found.</body></html>"


@dataclass(frozen=True)
class ConsistencyDelays:
    principal_seconds: float = 1.0  # seconds until role assignments accept a new identity
    assignment_seconds: float = 2.0  # seconds until a role assignment is effective
    throttled: int = 0  # number of requests that are still throttled
    retry_after: int = 1
    unavailable: int = 0  # number of requests that are still answered with 503
    html: int = 0  # number of requests that are still answered with 404 in HTML, as by a proxy or a portal
    tenant: int = 0  # number of requests whose token is still rejected as one of another tenant


class EventualConsistency:
    """The delays of the lab's Azure and the creation times of its objects, in a state directory."""

    def __init__(self, state: Path) -> None:
        self._file = state / "consistency.json"
        self._since = state / "since.json"
        self._lock = state / "consistency.lock"

    def delays(self) -> ConsistencyDelays:
        return ConsistencyDelays(**json.loads(self._file.read_text())) if self._file.exists() else ConsistencyDelays()

    def change(self, **changes: Any) -> None:
        with file_lock(self._lock, "the pace of the lab's Azure", wait=True):
            write_atomically(self._file, json.dumps(asdict(replace(self.delays(), **changes))))

    def record_creation(self, what: str) -> None:
        """Records the creation time of an identity or a role assignment."""
        with file_lock(self._lock, "the pace of the lab's Azure", wait=True):
            write_atomically(self._since, json.dumps({**self._times(), what.lower(): time.time()}))

    def age(self, what: str) -> float | None:
        """Returns the age of an object in seconds; None when its creation was not recorded."""
        since = self._times().get(what.lower())
        return None if since is None else time.time() - since

    def take_fault(self) -> ArmFault | None:
        """Returns the fault of the next request, and counts it."""
        delays = self.delays()
        for fault in ARM_FAULTS:
            if (left := int(getattr(delays, fault))) > 0:
                self.change(**{fault: left - 1})
                return fault
        return None

    def _times(self) -> dict[str, float]:
        return json.loads(self._since.read_text()) if self._since.exists() else {}


class DelayedRoleAssignments(RoleAssignments):
    """Role assignments that become effective after a delay."""

    def __init__(self, state: Path, directory: EntraDirectory) -> None:
        super().__init__(state, directory)
        self._consistency = EventualConsistency(state)

    def put(self, scope: str, definition: str, principal: str, name: str = "") -> RoleAssignment:
        age, pace = self._consistency.age(principal), self._consistency.delays()
        if age is not None and age < pace.principal_seconds:
            message = f"Principal {principal} does not exist in the directory {self._directory.tenant}."
            raise LabArmError(400, "PrincipalNotFound", message)
        # Rejects a second assignment of the same role under another name.
        key = (scope.lower(), definition.rpartition("/")[2].lower(), principal.lower())
        for each in self.all():
            properties = each["properties"]
            found = (properties["scope"].lower(), properties["roleDefinitionId"].rpartition("/")[2].lower())
            if (*found, properties["principalId"].lower()) == key and each["name"].lower() != name.lower():
                raise LabArmError(409, "RoleAssignmentExists", "The role assignment already exists.")
        before = self.find(f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}") if name else None
        made = super().put(scope, definition, principal, name)
        if age is not None and before is None:
            self._consistency.record_creation(made["id"])
        return made

    def in_effect(self) -> list[RoleAssignment]:
        seconds = self._consistency.delays().assignment_seconds
        ages = ((each, self._consistency.age(each["id"])) for each in self.all())
        return [each for each, age in ages if age is None or age >= seconds]


class ArmFaultMiddleware:
    """Rejects requests with the injected faults before they reach ARM."""

    def __init__(self, app: ASGIApp, consistency: EventualConsistency) -> None:
        self._app, self._consistency = app, consistency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_arm = scope["type"] == "http" and scope["path"].startswith("/subscriptions/")
        if is_arm and (fault := self._consistency.take_fault()):
            return await self._answer(fault)(scope, receive, send)
        return await self._app(scope, receive, send)

    def _answer(self, fault: ArmFault) -> Response:
        if fault == "html":
            return HTMLResponse(HTML_NOT_FOUND, 404)
        if fault == "tenant":
            return LabArmError(401, "InvalidAuthenticationTokenTenant", OTHER_TENANT).response()
        message = "The request is being throttled as the limit has been reached for operation type."
        answer = LabArmError(429, "TooManyRequests", message).response()
        if fault == "unavailable":
            answer = LabArmError(503, "ServiceUnavailable", "The service is temporarily unavailable.").response()
        answer.headers["Retry-After"] = str(self._consistency.delays().retry_after)
        return answer
