"""An unbootstrap works with one copy of the ledger, and without the ledger by markers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.crash import harness
from tests.crash.crash_points import SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.crash.harness import Change
    from tests.crash.sweeps import Copy

FIRST, SECOND = "var/lib/aks-flex-node/ledger.json", "opt/aks-flex-node/ledger.json"
OLD_CONFIG = "/etc/containerd/config.toml"
OLD_LINK = "/usr/local/bin/ctr"
# Restored at the next boot, because nothing on the disk changes it.
UNTIL_BOOT = ("/proc/", "/.simulated.json")


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(b"\0\xff garbage")


def replace_by_another_document(path: Path) -> None:
    path.write_text('{"format": 1, "components": ["system"]}\n')


def changes_after_reset(fresh: Path, root: Path) -> dict[str, Change]:
    """Unbootstraps a machine; returns what differs from one that was never a node."""
    before = harness.tree(fresh)
    assert harness.reset(SimulatedHost(root)) == []
    return harness.changes(before, harness.tree(root))


every_loss = pytest.mark.parametrize("lose", [delete, truncate, empty, garble, replace_by_another_document])


@every_loss
@pytest.mark.parametrize("lost", [FIRST, SECOND])
def test_unbootstrap_needs_only_one_intact_ledger_copy(
    fresh: Path, joined: Path, copy: Copy, lose: Callable[[Path], None], lost: str
) -> None:
    root = copy(joined)
    lose(root / lost)

    assert changes_after_reset(fresh, root) == {}


@every_loss
def test_unbootstrap_without_ledger_removes_only_agent_resources(
    fresh: Path, joined: Path, copy: Copy, lose: Callable[[Path], None]
) -> None:
    root = copy(joined)
    lose(root / FIRST)
    lose(root / SECOND)

    assert lasting(changes_after_reset(fresh, root)) == {OLD_CONFIG, OLD_LINK}
    assert not (root / OLD_CONFIG[1:]).exists()


def lasting(changes: dict[str, Change]) -> set[str]:
    """Returns changed files and links; without a ledger, it is unknown which empty directories existed."""
    kinds = {path: {entry[0] for entry in change if entry} for path, change in changes.items()}
    return {path for path in changes if kinds[path] != {"directory"} and not path.startswith(UNTIL_BOOT)}


def test_machine_can_rejoin_and_unbootstrap_after_ledger_loss(fresh: Path, joined: Path, copy: Copy) -> None:
    root = copy(joined)
    delete(root / FIRST)
    delete(root / SECOND)
    harness.reset(SimulatedHost(root))
    before = harness.tree(root)

    harness.join(SimulatedHost(root))
    assert harness.reset(SimulatedHost(root)) == []

    assert harness.changes(before, harness.tree(root)) == {}


def test_join_rewrites_damaged_ledger_copy(joined: Path, copy: Copy) -> None:
    root = copy(joined)
    garble(root / FIRST)

    harness.join(SimulatedHost(root))

    assert harness.changes(harness.tree(joined), harness.tree(root)) == {}


def test_unbootstrap_without_state_directory_loses_only_file_backups(fresh: Path, joined: Path, copy: Copy) -> None:
    root = copy(joined)
    shutil.rmtree(root / "var/lib/aks-flex-node")

    assert set(changes_after_reset(fresh, root)) == {OLD_CONFIG}
    assert not (root / OLD_CONFIG[1:]).exists()


def test_unbootstrap_without_agent_directories_removes_marked_resources(
    fresh: Path, joined: Path, copy: Copy
) -> None:
    root = copy(joined)
    shutil.rmtree(root / "var/lib/aks-flex-node")
    shutil.rmtree(root / "opt/aks-flex-node")

    assert lasting(changes_after_reset(fresh, root)) == {OLD_CONFIG, OLD_LINK}
