"""The endpoint that gives a machine its managed identity, as Azure's instance metadata service answers on every VM.

It is served inside a machine's network, at 169.254.169.254 port 80, and knows which identities that machine has.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_node.lab.entra.directory import Principal
    from aks_flex_node.lab.entra.tokens import Mint

PATH = "/metadata/identity/oauth2/token"
CHOICES = ("client_id", "object_id", "principal_id", "msi_res_id", "mi_res_id")


class Machine:
    def __init__(self, mint: Mint, identities: Sequence[str]) -> None:
        """`identities` are those of the machine, by any of their ids; the first is meant when none is asked for."""
        self._mint = mint
        self._identities = tuple(identities)

    def routes(self) -> list[Route]:
        return [Route(PATH, self.token)]

    async def token(self, request: Request) -> Response:
        # A page in a browser on the machine cannot send this header, and so cannot get a token.
        if request.headers.get("metadata", "").lower() != "true":
            return _refused("Required metadata header not specified")
        if "x-forwarded-for" in request.headers:
            return _refused("Requests that come by a proxy are not answered")
        resource = request.query_params.get("resource", "").rstrip("/")
        if not resource or "api-version" not in request.query_params:
            return _refused("Required query variable 'resource' or 'api-version' is missing")
        identity = self._chosen(
            next((request.query_params[each] for each in CHOICES if each in request.query_params), "")
        )
        if identity is None:
            return _refused("Identity not found")
        return self._granted(identity, resource)

    def _chosen(self, asked: str) -> Principal | None:
        mine = [self._mint.directory.find(each, "managedIdentity") for each in self._identities]
        fitting = [each for each in mine if each and each.enabled and (not asked or each.answers_to(asked))]
        return fitting[0] if fitting else None

    def _granted(self, identity: Principal, resource: str) -> Response:
        now = int(time.time())
        seconds = int(identity.token_seconds)
        return JSONResponse(
            {
                "access_token": self._mint.access(identity, resource),
                "client_id": identity.client_id,
                "expires_in": str(seconds),
                "expires_on": str(now + seconds),
                "ext_expires_in": str(seconds),
                "not_before": str(now),
                "resource": resource,
                "token_type": "Bearer",
            }
        )


def _refused(description: str) -> Response:
    return JSONResponse({"error": "invalid_request", "error_description": description}, 400)
