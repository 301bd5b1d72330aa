"""Forwards requests to the resource provider as ARM does, with ARM's own headers."""

from __future__ import annotations

import re
import ssl
import uuid
from functools import cached_property
from typing import TYPE_CHECKING

import httpx2
from starlette.responses import Response

from aks_flex_lab.arm.arm_errors import LabArmError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

PROVIDER_PATHS = re.compile(
    r"/subscriptions/[^/]+/resourcegroups/[^/]+/providers/microsoft\.containerservice/managedclusters/[^/]+"
    r"/flexnode(?:config|pools)(/.*)?|/providers/microsoft\.containerservice/operations/?",
    re.IGNORECASE,
)
PROVIDER_SECONDS = 60.0  # time limit for a provider's response
# Hop-by-hop headers, and headers that only ARM may send to a provider.
HOP_HEADERS = frozenset(
    {
        *("host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"),
        *("proxy-authorization", "proxy-connection", "expect", "referer", "x-ms-correlation-request-id"),
    }
)
GATEWAY_TIMEOUT = LabArmError(
    504,
    "GatewayTimeout",
    f"The gateway did not receive a response from 'Microsoft.ContainerService' within "
    f"{PROVIDER_SECONDS:.0f} seconds.",
)
BAD_GATEWAY = LabArmError(
    502,
    "BadGatewayConnection",
    "The network connectivity issue encountered for 'Microsoft.ContainerService'; cannot fulfill the request.",
)


class ProviderProxy:
    def __init__(self, url: str, authority: Path | None, management: str) -> None:
        self._url = url.rstrip("/")
        self._management = management
        self._authority = authority

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        """Creates the client on first use, because the provider's CA may not exist earlier."""
        trust = ssl.create_default_context(cafile=str(self._authority) if self._authority else None)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=50)
        return httpx2.AsyncClient(verify=trust, timeout=PROVIDER_SECONDS, limits=limits, trust_env=False)

    async def forward(self, request: Request, correlation: str) -> Response:
        target = request.scope["raw_path"].decode("latin-1")
        if request.scope["query_string"]:
            target += "?" + request.scope["query_string"].decode("latin-1")
        headers = [
            *(
                (name, value)
                for name, value in request.headers.items()
                if name not in HOP_HEADERS and not name.startswith("x-ms-arm-")
            ),
            ("referer", self._management + target),  # the URL from which a provider builds links
            ("x-ms-correlation-request-id", correlation),
            ("x-ms-arm-request-tracking-id", str(uuid.uuid4())),
            ("x-ms-arm-network-source", "PublicNetwork"),
        ]
        body = await request.body()
        outgoing = self._client.build_request(request.method, self._url + target, headers=headers, content=body)
        try:
            return await self._send(outgoing)
        except httpx2.TimeoutException:
            raise GATEWAY_TIMEOUT from None
        except httpx2.HTTPError:
            raise BAD_GATEWAY from None

    async def _send(self, outgoing: httpx2.Request) -> Response:
        """Returns the provider's response unchanged, also its compression."""
        incoming = await self._client.send(outgoing, stream=True)
        try:
            body = b"".join([part async for part in incoming.aiter_raw()])
        finally:
            await incoming.aclose()
        answer = Response(body, incoming.status_code)
        headers = [
            (name.lower(), value) for name, value in incoming.headers.raw if name.decode().lower() not in HOP_HEADERS
        ]
        answer.raw_headers = [
            *headers,
            *([] if incoming.status_code in {204, 304} else [(b"content-length", str(len(body)).encode())]),
        ]
        return answer
