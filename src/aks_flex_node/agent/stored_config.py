"""Configuration documents stored on this node (current and next): reading them, and composing the next
one from the provider's answer and the secrets that only this node has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config import loader
from aks_flex_node.agent.config.remote import ConfigBundle, parse_bundle
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class StoredConfig:
    bundle: ConfigBundle
    config: NodeConfig = field(repr=False)
    content: bytes = field(repr=False)  # of the file that it was read from

    @property
    def version(self) -> str:
        return self.bundle.version

    @property
    def fingerprint(self) -> str:
        """The same for the same settings, whatever their version and secrets are and however they are written."""
        settings = json.loads(self.bundle.text)["config"]
        azure = settings.get("azure") or {}
        azure.pop("bootstrapToken", None)
        (azure.get("servicePrincipal") or {}).pop("clientSecret", None)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def identity(self) -> str:
        return f"{self.version or '-'} {self.fingerprint}"


@dataclass(frozen=True)
class ConfigVersions:
    """The versions of the configuration on this node: the one in effect, and the one that is to come."""

    host: Host

    @property
    def current(self) -> str:
        return parse_version(self._text(CURRENT_CONFIG))

    @property
    def next(self) -> str:
        """The version that is wanted and not in effect; empty when there is none."""
        return parse_version(self._text(NEXT_CONFIG))

    @property
    def newest(self) -> str:
        return self.next or self.current

    @property
    def has_left(self) -> bool:
        """Whether this is no node any more: nothing is in effect, and nothing is to be written."""
        return self.host.stat(CURRENT_CONFIG) is None

    def desired_config(self, current: NodeConfig) -> NodeConfig:
        """The configuration that is wanted; the current one where none is, or where it cannot be read."""
        text = self._text(NEXT_CONFIG)
        try:
            return loader.load_text(text, NEXT_CONFIG, {}, {}).config if text else current
        except ConfigError:
            return current

    def _text(self, path: str) -> str:
        return (self.host.read(path) or b"").decode(errors="replace")


def stored_version(host: Host, path: str) -> str:
    """The version of what is kept there, though the rest of it may be wrong."""
    with contextlib.suppress(ConfigError):
        return parse_bundle(host.read(path) or b"", path).version
    return ""


def read_stored(host: Host, path: str, env: Mapping[str, str]) -> StoredConfig | None:
    """What is kept there; None when nothing is. Raises ConfigError when it is no configuration."""
    content = host.read(path)
    if content is None:
        return None
    bundle = parse_bundle(content, path)
    return StoredConfig(bundle, loader.load_text(bundle.text, path, env, {}).config, content)


def compose_document(
    config: Mapping[str, Any], version: str, known: Mapping[str, Any], client_secret: str = ""
) -> str:
    """The text of a bundle. `known` is the configuration in effect, which has the secrets that stay."""
    azure, before = config.get("azure") or {}, known.get("azure") or {}
    if not isinstance(azure, dict):
        return _render_document(config, version)  # whoever checks it says what is wrong
    azure = dict(azure)
    principal = azure.get("servicePrincipal")
    if isinstance(principal, dict):
        secret = client_secret or client_secret_in(known, str(principal.get("clientId", "")))
        azure["servicePrincipal"] = {**principal, **({"clientSecret": secret} if secret else {})}
    if "bootstrapToken" in before and "bootstrapToken" not in azure:
        azure["bootstrapToken"] = before["bootstrapToken"]  # used up, and part of what the machine was made with
    return _render_document({**config, "azure": azure}, version)


def _render_document(config: Mapping[str, Any], version: str) -> str:
    return json.dumps({"config": config, "configVersion": version}, indent=1) + "\n"


def client_secret_in(known: Mapping[str, Any], client_id: str = "") -> str:
    """The secret of the service principal in a configuration, if it is that one."""
    principal = (known.get("azure") or {}).get("servicePrincipal") or {}
    if client_id and str(principal.get("clientId", "")).lower() != client_id.lower():
        return ""
    return str(principal.get("clientSecret") or "")


def client_id_in(config: Mapping[str, Any]) -> str:
    """The service principal in a configuration; nothing when there is none."""
    azure = config.get("azure")
    principal = azure.get("servicePrincipal") if isinstance(azure, dict) else None
    return str(principal.get("clientId", "")).lower() if isinstance(principal, dict) else ""


def provider_settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that says how the provider is reached."""
    azure = config.get("azure")
    named = ("cloud", "resourceManager", "authorityHost", "caCertData", "tenantId")
    there = {name: azure.get(name) for name in named} if isinstance(azure, dict) else {}
    return {"azure": there, "provider": config.get("provider") or {}, "proxy": config.get("proxy") or {}}


def parse_config(text: str) -> dict[str, Any]:
    """The configuration in a bundle's text; empty when there is none."""
    try:
        found = json.loads(text).get("config")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def parse_version(text: str) -> str:
    try:
        return str(json.loads(text).get("configVersion") or "")
    except (ValueError, AttributeError):
        return ""
