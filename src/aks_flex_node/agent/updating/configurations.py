"""Configurations as they are kept on this machine: the text with its secrets, and what it says."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.agent.config import loader
from aks_flex_node.agent.fetching.bundles import Bundle, read_bundle
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Configuration:
    bundle: Bundle
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


def version_of(host: Host, path: str) -> str:
    """The version of what is kept there, though the rest of it may be wrong."""
    with contextlib.suppress(ConfigError):
        return read_bundle(host.read(path) or b"", path).version
    return ""


def read(host: Host, path: str, env: Mapping[str, str]) -> Configuration | None:
    """What is kept there; None when nothing is. Raises ConfigError when it is no configuration."""
    content = host.read(path)
    if content is None:
        return None
    bundle = read_bundle(content, path)
    return Configuration(bundle, loader.load_text(bundle.text, path, env, {}).config, content)
