"""Mirrors of image registries, in containerd's own syntax."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.marks import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable


def hosts_toml(mirrors: Iterable[str]) -> bytes:
    """Ask each mirror in turn, then the registry itself: containerd knows where that is, `_default` or not."""
    lines = [f"# {MARK}"]
    for mirror in mirrors:
        lines += ["", f"[host.{json.dumps(mirror)}]", '  capabilities = ["pull", "resolve"]']
    return ("\n".join(lines) + "\n").encode()
