"""Azure agrees at once, and does it a little later: how much later, in this lab, and when it is asked too often.

A file holds it, so that a test changes it while the server runs. It concerns the identities that this Azure makes
itself: whoever is enrolled by hand has been there for ever.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.arm.answers import Refusal
from aks_flex_node.lab.arm.assignments import Assignments
from aks_flex_node.lab.files import locked, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from aks_flex_node.lab.arm.assignments import Assignment
    from aks_flex_node.lab.entra.directory import Directory


@dataclass(frozen=True)
class Pace:
    principal_seconds: float = 1.0  # until a new identity is known to whoever gives roles
    assignment_seconds: float = 2.0  # until a role is in effect
    throttled: int = 0  # so many more calls are put off
    retry_after: int = 1


class Consistency:
    """What of this Azure is still on its way, in a state directory."""

    def __init__(self, state: Path) -> None:
        self._file = state / "consistency.json"
        self._since = state / "since.json"
        self._lock = state / "consistency.lock"

    def pace(self) -> Pace:
        return Pace(**json.loads(self._file.read_text())) if self._file.exists() else Pace()

    def change(self, **changes: Any) -> None:
        with locked(self._lock, "the pace of the lab's Azure", wait=True):
            write_atomically(self._file, json.dumps(asdict(replace(self.pace(), **changes))))

    def begins(self, what: str) -> None:
        """An identity or an assignment is there from now on."""
        with locked(self._lock, "the pace of the lab's Azure", wait=True):
            write_atomically(self._since, json.dumps({**self._times(), what.lower(): time.time()}))

    def age(self, what: str) -> float | None:
        """None for what has been there for ever."""
        since = self._times().get(what.lower())
        return None if since is None else time.time() - since

    def is_too_much(self) -> bool:
        pace = self.pace()
        if pace.throttled > 0:
            self.change(throttled=pace.throttled - 1)
        return pace.throttled > 0

    def _times(self) -> dict[str, float]:
        return json.loads(self._since.read_text()) if self._since.exists() else {}


class SettlingAssignments(Assignments):
    """Role assignments that take their time."""

    def __init__(self, state: Path, directory: Directory) -> None:
        super().__init__(state, directory)
        self._consistency = Consistency(state)

    def put(self, scope: str, definition: str, principal: str, name: str = "") -> Assignment:
        age, pace = self._consistency.age(principal), self._consistency.pace()
        if age is not None and age < pace.principal_seconds:
            words = f"Principal {principal} does not exist in the directory {self._directory.tenant}."
            raise Refusal(400, "PrincipalNotFound", words)
        self._refuse_another(scope, definition, principal, name)
        before = self.find(f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}") if name else None
        made = super().put(scope, definition, principal, name)
        if age is not None and before is None:
            self._consistency.begins(made["id"])
        return made

    def in_effect(self) -> list[Assignment]:
        seconds = self._consistency.pace().assignment_seconds
        ages = ((each, self._consistency.age(each["id"])) for each in self.all())
        return [each for each, age in ages if age is None or age >= seconds]

    def _refuse_another(self, scope: str, definition: str, principal: str, name: str) -> None:
        """The same, under another name."""
        wanted = (scope.lower(), definition.rpartition("/")[2].lower(), principal.lower())
        for each in self.all():
            told = each["properties"]
            found = (told["scope"].lower(), told["roleDefinitionId"].rpartition("/")[2].lower())
            if (*found, told["principalId"].lower()) == wanted and each["name"].lower() != name.lower():
                raise Refusal(409, "RoleAssignmentExists", "The role assignment already exists.")


class Throttling:
    """In front of ARM: calls that are put off do not reach it."""

    def __init__(self, app: ASGIApp, consistency: Consistency) -> None:
        self._app, self._consistency = app, consistency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_arm = scope["type"] == "http" and scope["path"].startswith("/subscriptions/")
        if is_arm and self._consistency.is_too_much():
            words = "The request is being throttled as the limit has been reached for operation type."
            answer = Refusal(429, "TooManyRequests", words).answer()
            answer.headers["Retry-After"] = str(self._consistency.pace().retry_after)
            return await answer(scope, receive, send)
        return await self._app(scope, receive, send)
