"""Who has which role where, kept in a file as ARM's own documents."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.arm.roles import BY_ID
from aks_flex_node.lab.files import locked, write_atomically
from aks_flex_rp.auth.roles import covers, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aks_flex_node.lab.arm.roles import RoleDefinition
    from aks_flex_node.lab.entra.directory import Directory

TYPE = "Microsoft.Authorization/roleAssignments"
_OF = re.compile(r"(assignedTo|principalId)(?:\(| eq )'([^']*)'\)?", re.IGNORECASE)

Assignment = dict[str, Any]


class Assignments:
    def __init__(self, state: Path, directory: Directory) -> None:
        self._file = state / "roleAssignments.json"
        self._lock = state / "roleAssignments.lock"
        self._directory = directory

    def all(self) -> list[Assignment]:
        return json.loads(self._file.read_text()) if self._file.exists() else []

    def listed(self, scope: str, wanted: str) -> list[Assignment]:
        """At a scope, above it and, unless `atScope()` is wanted, below it."""
        here = segments(scope)
        found = []
        for each in self.all():
            there = segments(each["properties"]["scope"])
            below = covers(here, there) and "atscope()" not in wanted.lower()
            if covers(there, here) or below:
                found.append(each)
        return [each for each in found if self._fits(each, wanted)]

    def find(self, id: str) -> Assignment | None:  # noqa: A002 - ARM's own word
        return next((each for each in self.all() if each["id"].lower() == id.lower()), None)

    def allows(self, principal: str, action: str, scope: str) -> bool:
        """Whether somebody may do this at a scope, also by way of their groups."""
        return any(role.allows(action) for role in self.roles(principal, scope))

    def roles(self, principal: str, scope: str) -> list[RoleDefinition]:
        """What somebody is at a scope, also by way of their groups."""
        here, ids = segments(scope), self._ids(principal)
        given = [each["properties"] for each in self.in_effect()]
        mine = [
            each for each in given if each["principalId"].lower() in ids and covers(segments(each["scope"]), here)
        ]
        roles = (BY_ID.get(each["roleDefinitionId"].rpartition("/")[2].lower()) for each in mine)
        return [role for role in roles if role]

    def in_effect(self) -> list[Assignment]:
        """Those that count already: here, all of them."""
        return self.all()

    def put(self, scope: str, definition: str, principal: str, name: str = "") -> Assignment:
        """One of that name is replaced. `definition` is a role's id, with or without what stands before it."""
        role = definition.rpartition("/")[2]
        made = {
            "id": f"{scope.rstrip('/')}/providers/{TYPE}/{name or uuid.uuid4()}",
            "type": TYPE,
            "properties": {
                "roleDefinitionId": f"/providers/Microsoft.Authorization/roleDefinitions/{role}",
                "principalId": principal,
                "scope": scope or "/",
            },
        }
        made["name"] = str(made["id"]).rpartition("/")[2]
        self._write(lambda kept: [*_without(kept, str(made["id"])), made])
        return made

    def remove(self, id: str) -> None:  # noqa: A002
        self._write(lambda kept: _without(kept, id))

    def _fits(self, assignment: Assignment, wanted: str) -> bool:
        asked = _OF.search(wanted)
        if asked is None:
            return True
        whom, who = assignment["properties"]["principalId"].lower(), asked[2].lower()
        return whom in self._ids(who) if asked[1].lower() == "assignedto" else whom == who

    def _ids(self, principal: str) -> set[str]:
        found = self._directory.find(principal)
        return {principal.lower(), *(each.lower() for each in (found.groups if found else ()))}

    def _write(self, changed: Callable[[list[Assignment]], Iterable[Assignment]]) -> None:
        with locked(self._lock, "the lab's role assignments", wait=True):
            write_atomically(self._file, json.dumps([*changed(self.all())], indent=1))


def _without(kept: list[Assignment], id: str) -> list[Assignment]:  # noqa: A002
    return [each for each in kept if each["id"].lower() != id.lower()]
