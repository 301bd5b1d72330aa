"""Tests of the cached trees of the agent."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from aks_flex_lab.node_agent import UNUSED_SECONDS, remove_unused

if TYPE_CHECKING:
    from pathlib import Path


def test_only_unused_trees_of_the_same_system_are_removed(tmp_path: Path) -> None:
    long_ago = time.time() - UNUSED_SECONDS - 60
    for name in ("bookworm-1", "bookworm-2", "trixie-1"):
        (tmp_path / name).mkdir()
    for name in ("bookworm-1", "trixie-1"):
        os.utime(tmp_path / name, (long_ago, long_ago))

    remove_unused(tmp_path, "bookworm")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["bookworm-2", "trixie-1"]
