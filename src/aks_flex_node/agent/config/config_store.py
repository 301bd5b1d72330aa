"""Stores the current configuration of the node, its version and the hash of its URL. Files that belong together are
first written to a journal file, so that the next run completes an interrupted write.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.base_model import to_document
from aks_flex_node.agent.paths import (
    APPLIED_CONFIG,
    CONFIG_URL_DIGEST,
    CONFIG_VERSION_FILE,
    CURRENT_CONFIG,
    NEXT_CONFIG,
    STATE_DIR,
)
from aks_flex_node.host.actions import Remove, WriteFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_node.api.config_urls import ConfigUrl
    from aks_flex_node.host.host import Host

JOURNAL_FILE = f"{STATE_DIR}/together.json"  # the name that earlier versions wrote


def save_fetched(host: Host, bundle: ConfigBundle, url: ConfigUrl) -> None:
    """Stores a fetched configuration as the current one. Removes an older pending configuration."""
    _write_atomically(host, {**_current(bundle), CONFIG_URL_DIGEST: f"{_hash(url)}\n", NEXT_CONFIG: None})


def save_local(host: Host, text: str) -> None:
    """Stores a configuration from a local file as the current one, until the provider sends a newer one."""
    _write_atomically(host, {CURRENT_CONFIG: text, CONFIG_VERSION_FILE: None})


def save_standalone(host: Host, text: str, version: str) -> None:
    """Stores the configuration that a standalone node keeps. `version` is empty if it does not come from a provider;
    the URL of an earlier configuration is then forgotten."""
    document = {**json.loads(text), **({"configVersion": version} if version else {})}
    files: dict[str, str | None] = {
        CURRENT_CONFIG: json.dumps(document, indent=1) + "\n",
        CONFIG_VERSION_FILE: f"{version}\n" if version else None,
        NEXT_CONFIG: None,
    }
    _write_atomically(host, files if version else {**files, CONFIG_URL_DIGEST: None})


def commit_update(host: Host, bundle: ConfigBundle, config: NodeConfig, pending: bytes) -> None:
    """Stores an applied pending configuration as the current one, and removes its pending file."""
    _write_atomically(host, {**_current(bundle), APPLIED_CONFIG: applied_config_text(config)}, _digest(pending))


def finish_interrupted(host: Host) -> None:
    """Completes a write that a crash interrupted."""
    content = host.read(JOURNAL_FILE)
    if content is None:
        return
    document = json.loads(content)
    _write(host, document["files"], str(document["taken"]))


def is_fetched_from(host: Host, url: ConfigUrl) -> bool:
    """Returns whether the stored configuration was fetched from this URL."""
    known = (host.read(CONFIG_URL_DIGEST) or b"").decode(errors="replace").strip()
    return known == _hash(url) and host.stat(CURRENT_CONFIG) is not None


def applied_config_text(config: NodeConfig) -> str:
    """Returns a configuration without secrets, for commands that run without a configuration."""
    document = to_document(config, "defaults")
    if arc := document.get("azure", {}).get("arc"):
        arc["enabled"] = config.azure.arc.enabled  # without it, other settings of the section would enable Arc
    document.get("azure", {}).pop("bootstrapToken", None)
    document.get("azure", {}).pop("servicePrincipal", None)
    document.get("proxy", {}).clear()
    return json.dumps({"config": document}, indent=1) + "\n"


def _current(bundle: ConfigBundle) -> dict[str, str | None]:
    return {CURRENT_CONFIG: bundle.text, CONFIG_VERSION_FILE: f"{bundle.version}\n" if bundle.version else None}


def _write_atomically(host: Host, files: Mapping[str, str | None], taken: str = "") -> None:
    """Writes files through the journal. `taken` is the digest of the pending configuration to remove, if any."""
    document = {"files": dict(files), "taken": taken}
    host.apply(WriteFile(JOURNAL_FILE, json.dumps(document).encode(), 0o600, secret=True))
    _write(host, files, taken)


def _write(host: Host, files: Mapping[str, str | None], taken: str) -> None:
    for path, text in files.items():
        host.apply(
            Remove(path) if text is None else WriteFile(path, text.encode(), 0o600, secret=path == CURRENT_CONFIG)
        )
    # A configuration that arrived in the meantime is newer and remains pending.
    pending = host.read(NEXT_CONFIG)
    if taken and pending is not None and _digest(pending) == taken:
        host.apply(Remove(NEXT_CONFIG))
    host.apply(Remove(JOURNAL_FILE))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash(url: ConfigUrl) -> str:
    return hashlib.sha256(url.address.encode()).hexdigest()
