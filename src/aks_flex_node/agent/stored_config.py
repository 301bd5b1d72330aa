"""Reads the configuration documents stored on this node (current and next) and composes the next one from the
provider's response and the secrets that only this node has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config import config_store, loader
from aks_flex_node.agent.config.parser import ConfigDocument
from aks_flex_node.agent.config.remote import ConfigBundle, parse_bundle
from aks_flex_node.agent.config.resolved import CLOUD_SETTINGS
from aks_flex_node.agent.config.sources import (
    complete,
    from_document,
    machine_paths,
    machine_settings,
    nest,
    to_config,
)
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.host import Host, read_text
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.settings.models import NodeConfig


@frozen
class StoredConfig:
    bundle: ConfigBundle
    config: NodeConfig = field(repr=False)
    content: bytes = field(repr=False)  # of the file it was read from

    @property
    def version(self) -> str:
        return self.bundle.version

    @property
    def fingerprint(self) -> str:
        """A digest of the settings that ignores version, secrets and formatting."""
        settings = json.loads(self.bundle.text)["config"]
        azure = settings.get("azure") or {}
        azure.pop("bootstrapToken", None)
        (azure.get("servicePrincipal") or {}).pop("clientSecret", None)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def identity(self) -> str:
        return f"{self.version or '-'} {self.fingerprint}"


@frozen
class ConfigVersions:
    """The versions of the configuration on this node: the current one and the next one. Each is read once."""

    host: Host

    @cached_property
    def current(self) -> str:
        return parse_version(stored_text(self.host, CURRENT_CONFIG))

    @cached_property
    def next(self) -> str:
        """The version that is not yet in effect; empty when there is none."""
        return parse_version(self._next_text)

    @cached_property
    def _next_text(self) -> str:
        return stored_text(self.host, NEXT_CONFIG)

    @property
    def newest(self) -> str:
        return self.next or self.current

    @property
    def has_left(self) -> bool:
        """Whether this machine is no longer a node: no configuration is in effect, and none must be written."""
        return not config_store.exists(self.host)

    def desired_config(self, current: NodeConfig) -> NodeConfig:
        """Returns the next configuration, or the current one when there is no valid next configuration."""
        text = self._next_text
        try:
            return loader.load_text(text, NEXT_CONFIG).config if text else current
        except ConfigError:
            return current


def stored_text(host: Host, path: str) -> str:
    return read_text(host, path)


def stored_version(host: Host, path: str) -> str:
    """Returns the version of a stored configuration, even if the rest of it is invalid; empty when unreadable."""
    with contextlib.suppress(ConfigError):
        return parse_bundle(host.read(path) or b"", path).version
    return ""


def read_stored(host: Host, path: str, env: Mapping[str, str]) -> StoredConfig | None:
    """Reads a stored configuration; None when the file does not exist. Raises ConfigError when it is invalid."""
    content = host.read(path)
    if content is None:
        return None
    bundle = parse_bundle(content, path)
    return StoredConfig(bundle, loader.load_text(bundle.text, path, env, {}).config, content)


def compose_document(
    config: Mapping[str, Any], version: str, known: Mapping[str, Any], client_secret: str = ""
) -> str:
    """Renders a configuration document, with what only this machine has: the secrets and the settings of the machine
    in `known`, the configuration in effect.
    """
    azure, before = config.get("azure") or {}, known.get("azure") or {}
    if not isinstance(azure, dict):
        return _render_document(config, version)  # validation reports the problem
    azure = dict(azure)
    principal = azure.get("servicePrincipal")
    if isinstance(principal, dict):
        secret = client_secret or client_secret_in(known, str(principal.get("clientId", "")))
        azure["servicePrincipal"] = {**principal, **({"clientSecret": secret} if secret else {})}
    if "bootstrapToken" in before and "bootstrapToken" not in azure:
        azure["bootstrapToken"] = before["bootstrapToken"]  # already used, but part of the applied configuration
    own = from_document(ConfigDocument(dict(known)), CURRENT_CONFIG).settings
    sent = _with_join_method({**config, "azure": azure}, known)
    return _render_document(complete(sent, nest(machine_settings(own))), version)


def store_machine_settings(host: Host, settings: Mapping[str, Any]) -> None:
    """Stores the settings of a run that only this machine may set, in the configuration in effect and in the next
    one, which may have been composed before. Others stay as they are.
    """
    wanted, files = machine_settings(settings), {}
    for path in (CURRENT_CONFIG, NEXT_CONFIG):
        text = stored_text(host, path)
        found = from_document(ConfigDocument(parse_config(text)), path).settings
        if found and machine_settings(found) != wanted:
            others = {name: value for name, value in found.items() if name not in machine_paths()}
            files[path] = _render_document(to_config(others | wanted), parse_version(text))
    if files:
        config_store.write_atomically(host, files)


def _with_join_method(config: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps the kubelet's authentication of the join if a configuration without `provider`, as the design documents
    have it, does not set it. Our provider sends `provider`, and `auth` unless the node uses a token.
    """
    method = ((known.get("node") or {}).get("kubelet") or {}).get("auth")
    is_settled = bool(config.get("provider")) or not method
    return config if is_settled else complete(config, {"node": {"kubelet": {"auth": method}}})


def _render_document(config: Mapping[str, Any], version: str) -> str:
    return json.dumps({"config": config, "configVersion": version}, indent=1) + "\n"


def client_secret_in(known: Mapping[str, Any], client_id: str = "") -> str:
    """Returns the client secret in a configuration; empty if it belongs to another client ID."""
    principal = (known.get("azure") or {}).get("servicePrincipal") or {}
    if client_id and str(principal.get("clientId", "")).lower() != client_id.lower():
        return ""
    return str(principal.get("clientSecret") or "")


def client_id_in(config: Mapping[str, Any]) -> str:
    """Returns the service principal's client ID in a configuration, in lower case; empty when there is none."""
    azure = config.get("azure")
    principal = azure.get("servicePrincipal") if isinstance(azure, dict) else None
    return str(principal.get("clientId", "")).lower() if isinstance(principal, dict) else ""


def provider_settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all settings that affect the connection to the provider."""
    azure = config.get("azure")
    there = {name: azure.get(name) for name in CLOUD_SETTINGS} if isinstance(azure, dict) else {}
    return {"azure": there, "provider": config.get("provider") or {}, "proxy": config.get("proxy") or {}}


def parse_config(text: str) -> dict[str, Any]:
    """Parses the configuration in a bundle's text; empty when there is none."""
    try:
        found = json.loads(text).get("config")
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=2)  # the daemon asks for the versions of the same documents again and again
def parse_version(text: str) -> str:
    try:
        return str(json.loads(text).get("configVersion") or "")
    except (ValueError, AttributeError):
        return ""
