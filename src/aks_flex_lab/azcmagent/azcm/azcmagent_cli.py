"""The `azcmagent` command: connects a machine to Azure Arc, disconnects it, and shows its status."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from . import agent_state

API_VERSION = "2024-07-10"
REQUIRED = ("access-token", "subscription-id", "resource-group", "resource-name", "tenant-id", "location")
SETTINGS = {*REQUIRED, "cloud", "tags"}


class AzcmagentError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f'level=fatal msg="{message}" code={code}')


def arguments() -> argparse.Namespace:
    """The commands and options that the agent of a node uses."""
    parser = argparse.ArgumentParser(prog="azcmagent")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("connect", "disconnect"):
        command = commands.add_parser(name)
        command.add_argument("--config", type=Path)
        command.add_argument("--force-local-only", action="store_true")
    commands.add_parser("show").add_argument("-j", action="store_true", required=True)
    config = commands.add_parser("config")
    config.add_argument("verb", choices=["set"])
    config.add_argument("name", choices=["proxy.url"])
    config.add_argument("value")
    return parser.parse_args()


def read_settings(options: argparse.Namespace) -> dict[str, str]:
    settings: dict[str, str] = json.loads(options.config.read_text()) if options.config else {}
    if strange := set(settings) - SETTINGS:
        raise AzcmagentError("AZCM0012", f"unknown settings in the configuration file: {', '.join(sorted(strange))}")
    return settings


def call(method: str, path: str, token: str, body: Any = None) -> dict[str, Any]:
    cloud = agent_state.cloud()
    request = urllib.request.Request(  # noqa: S310 - always https, by cloud.json
        f"{cloud['management']}{path}?api-version={API_VERSION}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with opener().open(request, timeout=30) as answer:
            document: dict[str, Any] = json.loads(answer.read() or b"{}")
            return document
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            details = json.loads(text)["error"]
            text = f"{details['code']}: {details['message']}"
        except (ValueError, KeyError, TypeError):
            pass
        raise AzcmagentError(
            "AZCM0042" if error.code != 403 else "AZCM0044", f"failed to {method} resource: {text}"
        ) from error
    except OSError as error:
        raise AzcmagentError("AZCM0026", f"{cloud['management']} cannot be reached: {error}") from error


def opener() -> urllib.request.OpenerDirector:
    """By the proxy that was set, and by no other."""
    try:
        proxy = json.loads(agent_state.SETTINGS.read_text())["proxy.url"]
    except (OSError, ValueError, KeyError):
        proxy = ""
    return urllib.request.build_opener(urllib.request.ProxyHandler({"https": proxy} if proxy else {}))


def resource(settings: dict[str, str]) -> str:
    return (
        f"/subscriptions/{settings['subscription-id']}/resourceGroups/{settings['resource-group']}"
        f"/providers/Microsoft.HybridCompute/machines/{settings['resource-name']}"
    )


def connect(options: argparse.Namespace) -> None:
    settings = {"cloud": "AzureCloud", **read_settings(options)}
    if missing := [name for name in REQUIRED if not settings.get(name)]:
        raise AzcmagentError("AZCM0011", f"--{missing[0]} is required")
    if agent_state.registered():
        raise AzcmagentError("AZCM0016", "this machine is already connected; disconnect it first")
    secret = secrets.token_urlsafe(48)
    vm, tags = (
        agent_state.machine_id(),
        dict(pair.split("=", 1) for pair in settings.get("tags", "").split(",") if pair),
    )
    proof = hashlib.sha256(secret.encode()).hexdigest()
    properties = {"vmId": vm, "agentVersion": agent_state.VERSION, "clientPublicKey": proof}
    body = {"location": settings["location"], "tags": tags, "identity": {"type": "SystemAssigned"}}
    made = call("PUT", resource(settings), settings["access-token"], {**body, "properties": properties})
    agent_state.write(agent_state.SECRET, secret, 0o640, ours=True)
    known = {
        "subscriptionId": settings["subscription-id"],
        "resourceGroup": settings["resource-group"],
        "resourceName": settings["resource-name"],
        "resourceId": made["id"],
        "tenantId": settings["tenant-id"],
        "location": made["location"],
        "cloud": settings["cloud"],
        "vmId": vm,
        "tags": tags,
    }
    agent_state.write(agent_state.CONFIG, json.dumps(known, indent=1), 0o644)
    print(f'level=info msg="Connected machine to Azure" resource={made["id"]}')


def disconnect(options: argparse.Namespace) -> None:
    known = agent_state.registered()
    if known is None and not options.force_local_only:
        raise AzcmagentError("AZCM0015", "this machine is not connected")
    if known and not options.force_local_only:
        token = read_settings(options).get("access-token")
        if not token:
            raise AzcmagentError("AZCM0011", "--access-token is required")
        call("DELETE", known["resourceId"], token)
    for path in (agent_state.CONFIG, agent_state.SECRET, agent_state.STATE / "heartbeat"):
        path.unlink(missing_ok=True)
    print('level=info msg="Disconnected machine from Azure"')


def show() -> None:
    known = agent_state.registered()
    names = ("resourceName", "resourceGroup", "subscriptionId", "tenantId", "location", "cloud", "vmId", "resourceId")
    status: dict[str, str] = {name: str((known or {}).get(name, "")) for name in names}
    beat = agent_state.STATE / "heartbeat"
    since = beat.stat().st_mtime if beat.exists() else 0.0
    status |= {
        "agentVersion": agent_state.VERSION,
        "status": beat.read_text().strip() if known and beat.exists() else "Connected" if known else "Disconnected",
        "lastHeartbeat": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since)) if since else "",
        "agentErrorCode": "",
        "agentErrorDetails": "",
    }
    print(json.dumps(status))


def main() -> None:
    options = arguments()
    if options.command in {"connect", "disconnect"} and os.geteuid() != 0:
        sys.exit("azcmagent needs root")
    try:
        if options.command == "connect":
            connect(options)
        elif options.command == "disconnect":
            disconnect(options)
        elif options.command == "show":
            show()
        else:
            agent_state.write(agent_state.SETTINGS, json.dumps({options.name: options.value}), 0o644)
    except AzcmagentError as error:
        sys.exit(str(error))
