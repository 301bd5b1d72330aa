"""What the provider wants becomes the next configuration: its words, with the secrets that only this machine has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def compose(config: Mapping[str, Any], version: str, known: Mapping[str, Any], client_secret: str = "") -> str:
    """The text of a bundle. `known` is the configuration in effect, which has the secrets that stay."""
    azure, before = config.get("azure") or {}, known.get("azure") or {}
    if not isinstance(azure, dict):
        return _written(config, version)  # whoever checks it says what is wrong
    azure = dict(azure)
    principal = azure.get("servicePrincipal")
    if isinstance(principal, dict):
        secret = client_secret or secret_of(known, str(principal.get("clientId", "")))
        azure["servicePrincipal"] = {**principal, **({"clientSecret": secret} if secret else {})}
    if "bootstrapToken" in before and "bootstrapToken" not in azure:
        azure["bootstrapToken"] = before["bootstrapToken"]  # used up, and part of what the machine was made with
    return _written({**config, "azure": azure}, version)


def _written(config: Mapping[str, Any], version: str) -> str:
    return json.dumps({"config": config, "configVersion": version}, indent=1) + "\n"


def secret_of(known: Mapping[str, Any], client_id: str = "") -> str:
    """The secret of the service principal in a configuration, if it is that one."""
    principal = (known.get("azure") or {}).get("servicePrincipal") or {}
    if client_id and str(principal.get("clientId", "")).lower() != client_id.lower():
        return ""
    return str(principal.get("clientSecret") or "")


def client_of(config: Mapping[str, Any]) -> str:
    """The service principal in a configuration; nothing when there is none."""
    azure = config.get("azure")
    principal = azure.get("servicePrincipal") if isinstance(azure, dict) else None
    return str(principal.get("clientId", "")).lower() if isinstance(principal, dict) else ""


def way_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that says how the provider is reached."""
    azure = config.get("azure")
    named = ("cloud", "resourceManager", "authorityHost", "caCertData", "tenantId")
    there = {name: azure.get(name) for name in named} if isinstance(azure, dict) else {}
    return {"azure": there, "provider": config.get("provider") or {}, "proxy": config.get("proxy") or {}}


def config_of(text: str) -> dict[str, Any]:
    """The configuration in a bundle's text; empty when there is none."""
    try:
        found = json.loads(text).get("config")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def version_of(text: str) -> str:
    try:
        return str(json.loads(text).get("configVersion") or "")
    except (ValueError, AttributeError):
        return ""
