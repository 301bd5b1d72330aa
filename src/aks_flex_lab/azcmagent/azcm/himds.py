"""`himds`: the hybrid instance metadata service, which gives programs of a machine the machine's identity.

A client that requests a token must read a file of the service: the service returns the file's name, and the client
repeats the request with its content. Each file is valid once.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
import urllib.error
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import agent_state

ADDRESS = ("127.0.0.1", 40342)
KEY_SECONDS = 600


class HimdsRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "himds"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        known = agent_state.registered()
        if self.headers.get("Metadata", "").lower() != "true":
            self._answer(400, {"error": "invalid_request", "error_description": "Required metadata header missing"})
        elif known is None:
            self._answer(400, {"error": "invalid_request", "error_description": "This machine is not connected"})
        elif url.path == "/metadata/instance":
            self._answer(200, {"compute": instance(known)})
        elif url.path == "/metadata/identity/oauth2/token":
            self._token(known, query)
        else:
            self._answer(404, {"error": "not_found", "error_description": url.path})

    def _token(self, known: dict[str, Any], query: dict[str, str]) -> None:
        if not query.get("resource") or not query.get("api-version"):
            message = "Required query variable 'resource' or 'api-version' is missing"
            self._answer(400, {"error": "invalid_request", "error_description": message})
            return
        scheme, _, shown = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "basic" or not shown:
            self._answer(401, {"error": "unauthorized"}, {"WWW-Authenticate": f"Basic realm={challenge()}"})
        elif not redeem_challenge(shown.strip()):
            self._answer(401, {"error": "unauthorized", "error_description": "The key is not one that was given out"})
        else:
            self._answer(*token(known, query["resource"]))

    def _answer(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - http.server's own name
        """Logs nothing."""


def challenge() -> str:
    """Creates a file with a new key, and returns its name."""
    for old in agent_state.TOKENS.glob("*.key"):
        if time.time() - old.stat().st_mtime > KEY_SECONDS:
            old.unlink(missing_ok=True)
    path = agent_state.TOKENS / f"{uuid.uuid4()}.key"
    agent_state.write(path, secrets.token_urlsafe(96), 0o640)
    return str(path)


def redeem_challenge(shown: str) -> bool:
    for path in agent_state.TOKENS.glob("*.key"):
        try:
            if hmac.compare_digest(path.read_text().encode(), shown.encode()):
                path.unlink()
                return True
        except OSError:
            continue
    return False


def token(known: dict[str, Any], resource: str) -> tuple[int, dict[str, Any]]:
    proof = {"vmId": known["vmId"], "secret": agent_state.SECRET.read_text(), "resource": resource}
    request = urllib.request.Request(  # noqa: S310 - always https, by cloud.json
        f"{agent_state.cloud()['login']}/lab/arc/token",
        data=json.dumps(proof).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            got = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")
    except OSError as error:
        return 500, {"error": "server_error", "error_description": str(error)}
    now, seconds = int(time.time()), int(got["expires_in"])
    agent_state.write(agent_state.STATE / "heartbeat", "Connected\n", 0o644)
    return 200, {
        "access_token": got["access_token"],
        "client_id": got["client_id"],
        "expires_in": str(seconds),
        "expires_on": str(now + seconds),
        "ext_expires_in": str(seconds),
        "not_before": str(now),
        "resource": resource,
        "token_type": "Bearer",
    }


def instance(known: dict[str, Any]) -> dict[str, Any]:
    names = ("location", "resourceId", "subscriptionId", "vmId")
    found = {name: known[name] for name in names}
    tags = ";".join(f"{key}:{value}" for key, value in known["tags"].items())
    named = {"name": known["resourceName"], "resourceGroupName": known["resourceGroup"], "tags": tags}
    return {
        **found,
        **named,
        "azEnvironment": known["cloud"],
        "osType": "Linux",
        "provider": "Microsoft.HybridCompute",
    }


def main() -> None:
    ThreadingHTTPServer(ADDRESS, HimdsRequestHandler).serve_forever()
