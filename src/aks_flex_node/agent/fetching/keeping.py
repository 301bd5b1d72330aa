"""What was fetched is kept, so that no later run needs the URL again, which soon is dead.

A URL always delivers the same, so a command that is repeated with the same URL goes on with what is here. Of the
URL there is only a hash: the URL itself stays with whoever gave it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.agent import CURRENT, FETCHED_FROM, VERSION
from aks_flex_node.host.actions import Remove, WriteFile

if TYPE_CHECKING:
    from aks_flex_node.agent.fetching.bundles import Bundle
    from aks_flex_node.api.config_urls import ConfigUrl
    from aks_flex_node.host.host import Host


def keep(host: Host, bundle: Bundle, url: ConfigUrl) -> None:
    """The hash of the URL comes last: where it is, the rest is, too."""
    host.do(WriteFile(CURRENT, bundle.text.encode(), 0o600, secret=True))
    host.do(WriteFile(VERSION, f"{bundle.version}\n".encode(), 0o600) if bundle.version else Remove(VERSION))
    host.do(WriteFile(FETCHED_FROM, f"{_hash(url)}\n".encode(), 0o600))


def has(host: Host, url: ConfigUrl) -> bool:
    """Whether what is kept came from this URL."""
    known = (host.read(FETCHED_FROM) or b"").decode(errors="replace").strip()
    return known == _hash(url) and host.look(CURRENT) is not None


def _hash(url: ConfigUrl) -> str:
    return hashlib.sha256(url.address.encode()).hexdigest()
