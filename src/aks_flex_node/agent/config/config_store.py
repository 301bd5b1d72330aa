"""Stores the current configuration of the node, its version and the hash of its URL. Files that belong together are
first written to a journal file, so that the next run completes an interrupted write. The current configuration has a
copy, from which it is restored if it is damaged.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.paths import (
    APPLIED_CONFIG,
    CONFIG_COPY,
    CONFIG_JOURNAL,
    CONFIG_URL_DIGEST,
    CONFIG_VERSION_FILE,
    CURRENT_CONFIG,
    NEXT_CONFIG,
    STAGING_CONFIG,
)
from aks_flex_node.host.actions import Remove, SetAside, WriteFile, aside_path
from aks_flex_node.host.host import EntryKind, Host, read_text
from aks_flex_node.settings.base import to_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_node.api.config_urls import ConfigUrl
    from aks_flex_node.settings.models import NodeConfig


def save_fetched(host: Host, bundle: ConfigBundle, url: ConfigUrl) -> None:
    """Stores a fetched configuration as the current one. Removes an older pending configuration."""
    earlier = {NEXT_CONFIG: None, STAGING_CONFIG: None}
    write_atomically(host, {**_current(bundle), CONFIG_URL_DIGEST: f"{_hash(url)}\n", **earlier})


def save_local(host: Host, text: str) -> None:
    """Stores a configuration from a local file as the current one, until the provider sends a newer one."""
    write_atomically(host, {CURRENT_CONFIG: text, CONFIG_VERSION_FILE: None})


def save_standalone(host: Host, text: str, version: str) -> None:
    """Stores the configuration that a standalone node keeps. `version` is empty if it does not come from a provider;
    the URL of an earlier configuration is then forgotten."""
    document = {**json.loads(text), **({"configVersion": version} if version else {})}
    files: dict[str, str | None] = {
        CURRENT_CONFIG: json.dumps(document, indent=1) + "\n",
        CONFIG_VERSION_FILE: f"{version}\n" if version else None,
        NEXT_CONFIG: None,
        STAGING_CONFIG: None,
    }
    write_atomically(host, files if version else {**files, CONFIG_URL_DIGEST: None})


def commit_update(host: Host, bundle: ConfigBundle, config: NodeConfig, pending: bytes) -> None:
    """Stores an applied pending configuration as the current one, and removes its pending file."""
    write_atomically(host, {**_current(bundle), APPLIED_CONFIG: applied_config_text(config)}, _digest(pending))


def finish_interrupted(host: Host) -> None:
    """Completes a write that a crash interrupted."""
    content = host.read(CONFIG_JOURNAL)
    if content is None:
        return
    try:
        document = json.loads(content)
        files, pending_digest = dict(document["files"]), str(document["pending_digest"])
        if not all(isinstance(text, str | None) for text in files.values()):
            raise TypeError("the content of a file is not text")
    except (ValueError, KeyError, TypeError, RecursionError):  # damaged: the files are as before the write
        host.apply(SetAside(CONFIG_JOURNAL))
        return
    _write(host, files, pending_digest)


def restore_damaged(host: Host) -> bool:
    """Replaces a damaged current configuration with its last good copy; returns whether it did. The damaged one is
    set aside.

    A configuration that does not exist is not restored: the machine is no node any more.
    """
    copy = host.read(CONFIG_COPY)
    if not exists(host) or is_bundle(host.read(CURRENT_CONFIG)) or copy is None or not is_bundle(copy):
        return False
    host.apply(SetAside(CURRENT_CONFIG))
    host.apply(WriteFile(CURRENT_CONFIG, copy, 0o600, secret=True))
    return True


def exists(host: Host) -> bool:
    """Returns whether this machine has a current configuration, even if it is damaged.

    A configuration that was set aside counts: a crash, or a full disk, can prevent that it is restored at once.
    """
    return any(host.stat(path) is not None for path in (CURRENT_CONFIG, aside_path(CURRENT_CONFIG)))


def keep_copy(host: Host) -> None:
    """Copies the current configuration if it is not damaged and the copy differs."""
    content = host.read(CURRENT_CONFIG)
    if content is not None and is_bundle(content) and host.read(CONFIG_COPY) != content:
        host.apply(WriteFile(CONFIG_COPY, content, 0o600, secret=True))


def is_bundle(content: bytes | None) -> bool:
    """Returns whether the content of a stored configuration can be parsed."""
    try:
        document = json.loads(content or b"")
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and isinstance(document.get("config"), dict)


def is_fetched_from(host: Host, url: ConfigUrl) -> bool:
    """Returns whether the stored configuration was fetched from this URL."""
    known = read_text(host, CONFIG_URL_DIGEST).strip()
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


def write_atomically(host: Host, files: Mapping[str, str | None], pending_digest: str = "") -> None:
    """Writes files through the journal. `pending_digest` is that of the pending configuration to remove, if any."""
    if CURRENT_CONFIG in files:
        files = {**files, CONFIG_COPY: files[CURRENT_CONFIG]}
    document = {"files": dict(files), "pending_digest": pending_digest}
    host.apply(WriteFile(CONFIG_JOURNAL, json.dumps(document).encode(), 0o600, secret=True))
    _write(host, files, pending_digest)


def _write(host: Host, files: Mapping[str, str | None], pending_digest: str) -> None:
    for path, text in files.items():
        entry = host.stat(path)
        if entry and entry.kind is EntryKind.DIRECTORY:
            host.apply(SetAside(path))
        is_secret = path in {CURRENT_CONFIG, CONFIG_COPY, NEXT_CONFIG}
        host.apply(Remove(path) if text is None else WriteFile(path, text.encode(), 0o600, secret=is_secret))
    # A configuration that arrived in the meantime is newer and remains pending.
    pending = host.read(NEXT_CONFIG)
    if pending_digest and pending is not None and _digest(pending) == pending_digest:
        host.apply(Remove(NEXT_CONFIG))
    host.apply(Remove(CONFIG_JOURNAL))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash(url: ConfigUrl) -> str:
    return hashlib.sha256(url.address.encode()).hexdigest()
