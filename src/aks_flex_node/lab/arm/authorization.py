"""What roles there are, and what whoever asks may do: as Azure's authorization answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from aks_flex_node.lab.arm.answers import Refusal
from aks_flex_node.lab.arm.roles import BUILT_IN, BY_ID

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_node.lab.arm.app import Front, Handler

SCOPE = r"(?P<scope>(/.+)?)/providers/microsoft\.authorization"
NAMED = re.compile(r"roleName eq '([^']*)'", re.IGNORECASE)


class Definitions:
    """Anybody may read them who has signed in."""

    def handlers(self, front: Front) -> list[tuple[str, str, Handler]]:
        async def permissions(_: Request, who: str, found: re.Match[str]) -> Response:
            roles = front.assignments.roles(who, found["scope"])
            return JSONResponse({"value": [role.permissions() for role in roles]})

        return [
            ("GET", SCOPE + "/permissions", permissions),
            ("GET", SCOPE + "/roledefinitions", self._listed),
            ("GET", SCOPE + "/roledefinitions/(?P<id>[^/]+)", self._shown),
        ]

    async def _listed(self, request: Request, *_: object) -> Response:
        asked = NAMED.search(request.query_params.get("$filter", ""))
        found = [role for role in BUILT_IN if asked is None or role.name.lower() == asked[1].lower()]
        return JSONResponse({"value": [role.shown() for role in found]})

    async def _shown(self, _: Request, __: str, found: re.Match[str]) -> Response:
        role = BY_ID.get(found["id"].lower())
        if role is None:
            raise Refusal(404, "RoleDefinitionDoesNotExist", f"The role definition {found['id']} does not exist.")
        return JSONResponse(role.shown())
