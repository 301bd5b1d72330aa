"""Stores the node's current configuration, its version and the hash of its URL on the machine. Files that belong
together are first written into one journal file, so that a crash is finished by the next run.
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

JOURNAL_FILE = f"{STATE_DIR}/together.json"


def save_fetched(host: Host, bundle: ConfigBundle, url: ConfigUrl) -> None:
    """What a join goes by from now on. What waited until now is older."""
    _write_atomically(host, {**_current(bundle), CONFIG_URL_DIGEST: f"{_hash(url)}\n", NEXT_CONFIG: None})


def save_local(host: Host, text: str) -> None:
    """A node that was made from a file goes by this until its provider says more."""
    _write_atomically(host, {CURRENT_CONFIG: text, CONFIG_VERSION_FILE: None})


def commit_update(host: Host, bundle: ConfigBundle, config: NodeConfig, waiting: bytes) -> None:
    """A configuration that waited is in effect: it is the current one, and the file that it waited in goes."""
    _write_atomically(host, {**_current(bundle), APPLIED_CONFIG: applied_config_text(config)}, _digest(waiting))


def finish_interrupted(host: Host) -> None:
    """Finish what a crash has interrupted."""
    content = host.read(JOURNAL_FILE)
    if content is None:
        return
    document = json.loads(content)
    _write(host, document["files"], str(document["taken"]))


def is_fetched_from(host: Host, url: ConfigUrl) -> bool:
    """Whether what is kept came from this URL."""
    known = (host.read(CONFIG_URL_DIGEST) or b"").decode(errors="replace").strip()
    return known == _hash(url) and host.stat(CURRENT_CONFIG) is not None


def applied_config_text(config: NodeConfig) -> str:
    """A configuration without its secrets, for commands that come without one."""
    document = to_document(config, "defaults")
    document.get("azure", {}).pop("bootstrapToken", None)
    document.get("azure", {}).pop("servicePrincipal", None)
    document.get("proxy", {}).clear()
    return json.dumps({"config": document}, indent=1) + "\n"


def _current(bundle: ConfigBundle) -> dict[str, str | None]:
    return {CURRENT_CONFIG: bundle.text, CONFIG_VERSION_FILE: f"{bundle.version}\n" if bundle.version else None}


def _write_atomically(host: Host, files: Mapping[str, str | None], taken: str = "") -> None:
    """`taken` is the digest of what waited, if something did."""
    document = {"files": dict(files), "taken": taken}
    host.apply(WriteFile(JOURNAL_FILE, json.dumps(document).encode(), 0o600, secret=True))
    _write(host, files, taken)


def _write(host: Host, files: Mapping[str, str | None], taken: str) -> None:
    for path, text in files.items():
        host.apply(
            Remove(path) if text is None else WriteFile(path, text.encode(), 0o600, secret=path == CURRENT_CONFIG)
        )
    # What came while we were at work is a newer one, and waits.
    waiting = host.read(NEXT_CONFIG)
    if taken and waiting is not None and _digest(waiting) == taken:
        host.apply(Remove(NEXT_CONFIG))
    host.apply(Remove(JOURNAL_FILE))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash(url: ConfigUrl) -> str:
    return hashlib.sha256(url.address.encode()).hexdigest()
