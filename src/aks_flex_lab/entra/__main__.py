"""Runs the instance metadata service (IMDS) of one site, which gives its machines tokens of their managed identities.

A site's router serves it at 169.254.169.254, as Azure does in a VM.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from aks_flex_lab.entra.directory import EntraDirectory, MachineIdentities
from aks_flex_lab.entra.tokens import TOKEN_SECONDS, SigningKey, TokenIssuer
from aks_flex_lab.http_server import serve
from aks_flex_lab.network import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aks_flex_lab.entra.directory import EntraPrincipal

TOKEN_PATH = "/metadata/identity/oauth2/token"  # noqa: S105
USER_ASSIGNED = "/userassignedidentities/"  # in the resource ID of a user-assigned identity
IDENTITY_PARAMETERS = ("client_id", "object_id", "principal_id", "msi_res_id", "mi_res_id")


class InstanceMetadataService:
    """Serves tokens for managed identities. Identifies the machine by its source address, as on a real VM."""

    def __init__(self, mint: TokenIssuer, identities: MachineIdentities) -> None:
        self._mint = mint
        self._identities = identities

    async def token(self, request: Request) -> Response:
        # A page in a browser on the machine cannot send this header, and so cannot get a token.
        if request.headers.get("metadata", "").lower() != "true":
            return _bad_request("Required metadata header not specified")
        if "x-forwarded-for" in request.headers:
            return _bad_request("Requests through a proxy are rejected")
        resource = request.query_params.get("resource", "").rstrip("/")
        if not resource or "api-version" not in request.query_params:
            return _bad_request("Required query variable 'resource' or 'api-version' is missing")
        identity = next(
            (request.query_params[each] for each in IDENTITY_PARAMETERS if each in request.query_params), ""
        )
        found = self._chosen(request.client.host if request.client else "", identity)
        if len(found) > 1:
            return _bad_request("Multiple user assigned identities exist, please specify the clientId / resourceId")
        return self._granted(found[0], resource) if found else _bad_request("Identity not found")

    def _chosen(self, address: str, identity: str) -> list[EntraPrincipal]:
        """Returns the selected identities; the system-assigned identity has precedence over user-assigned ones."""
        all_ = [
            self._mint.directory.find(each, "managedIdentity") for each in self._identities.identities_of(address)
        ]
        mine = [each for each in all_ if each and each.enabled]
        if identity:
            return [each for each in mine if each.has_id(identity)]
        return [each for each in mine if USER_ASSIGNED not in each.resource_id.lower()] or mine

    def _granted(self, identity: EntraPrincipal, resource: str) -> Response:
        now = int(time.time())
        return JSONResponse(
            {
                "access_token": self._mint.access_token(identity, resource),
                "client_id": identity.client_id,
                "expires_in": str(TOKEN_SECONDS),
                "expires_on": str(now + TOKEN_SECONDS),
                "ext_expires_in": str(TOKEN_SECONDS),
                "not_before": str(now),
                "resource": resource,
                "token_type": "Bearer",
            }
        )


def _bad_request(description: str) -> Response:
    return JSONResponse({"error": "invalid_request", "error_description": description}, 400)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="metadata", description="Serve the instance metadata service of VMs.")
    parser.add_argument("--listen", type=parse_address, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--login", required=True)
    return parser.parse_args(argv)


def main() -> None:
    options = arguments(sys.argv[1:])
    mint = TokenIssuer(EntraDirectory(options.state), SigningKey(options.state), options.login)
    service = InstanceMetadataService(mint, MachineIdentities(options.state))
    serve(Starlette(routes=[Route(TOKEN_PATH, service.token)]), options.listen)


if __name__ == "__main__":
    main()
