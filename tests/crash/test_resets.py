"""An unbootstrap restores the machine, also when it is killed at any point and run again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import service
from aks_flex_node.agent.paths import COMPLETION_LINK, COMPLETION_UNIT
from aks_flex_node.host.actions import ReloadUnits, Remove, Run, StartUnit, WriteFile
from tests.crash import harness
from tests.crash.action_trace import LEFT_BY
from tests.crash.crash_points import SimulatedHost
from tests.crash.sweeps import mistakes

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import UnitState
    from tests.crash.crash_points import Point
    from tests.crash.sweeps import Copy


def test_unbootstrap_completes_when_rerun_after_crash(
    fresh: Path, killed_resets: list[Point], pool: Executor
) -> None:
    """The machine is byte-identical to its state before the join, so it can join again."""
    assert list(mistakes(pool, killed_resets, harness.reset, harness.tree(fresh))) == []


class BootingHost(SimulatedHost):
    """Records the actions before which a reboot would start neither the daemon nor the rest of the unbootstrap."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.unattended: list[Action] = []

    def apply(self, action: Action) -> None:
        daemon = COMPLETION_LINK.replace(COMPLETION_UNIT.rpartition("/")[2], service.UNIT_NAME)
        if not any(self.stat(link) for link in (daemon, COMPLETION_LINK)):
            self.unattended.append(action)
        super().apply(action)


def test_unbootstrap_continues_after_power_loss_at_any_point(fresh: Path, joined: Path, copy: Copy) -> None:
    """Only the removal of what continues it is left to nobody."""
    root = copy(joined)
    harness.engine(SimulatedHost(root)).apply(service.COMPONENT)
    host = BootingHost(root)

    assert harness.reset(host) == []

    assert host.unattended == [Remove(COMPLETION_UNIT), ReloadUnits()]
    assert harness.changes(harness.tree(fresh), harness.tree(root)) == {}


class KilledDaemonHost(SimulatedHost):
    """A host whose daemon was killed while it was stopped, so that systemd remembers it as failed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: list[tuple[str, ...]] = []

    def unit(self, name: str) -> UnitState:
        found = super().unit(name)
        return replace(found, active="failed") if name == service.UNIT_NAME else found

    def apply(self, action: Action) -> None:
        if isinstance(action, Run):
            self.commands.append(action.argv)
            if "reset-failed" in action.argv:
                return
        super().apply(action)


def test_unbootstrap_resets_the_unit_of_a_killed_daemon(joined: Path, copy: Copy) -> None:
    host = KilledDaemonHost(copy(joined))

    assert harness.reset(host) == []

    assert ("systemctl", "reset-failed", service.UNIT_NAME) in host.commands


def test_killed_unbootstrap_does_not_block_next_join(fresh: Path, killed_resets: list[Point], pool: Executor) -> None:
    assert list(mistakes(pool, killed_resets[::6], harness.join_and_reset, harness.tree(fresh))) == []


def changes_by_reset(root: Path) -> dict[str, harness.Change]:
    before = harness.tree(root)
    assert harness.reset(SimulatedHost(root)) == []
    return harness.changes(before, harness.tree(root))


def test_join_after_unbootstrap_restores_joined_state(joined: Path, copy: Copy) -> None:
    root = copy(joined)
    harness.reset(SimulatedHost(root))

    harness.join(SimulatedHost(root))

    assert harness.changes(harness.tree(joined), harness.tree(root)) == {}


def test_second_unbootstrap_changes_nothing(joined: Path, copy: Copy) -> None:
    root = copy(joined)
    assert harness.reset(SimulatedHost(root)) == []
    assert changes_by_reset(root) == {}


def test_unbootstrap_changes_nothing_on_machine_that_never_joined(fresh: Path, copy: Copy) -> None:
    root = copy(fresh)
    folders = "etc/kubernetes/manifests opt/cni/bin var/lib/kubelet run/containerd run/netns var/lib/aks-flex-node"
    for folder in folders.split():
        (root / folder).mkdir(parents=True)
    assert changes_by_reset(root) == {}


def test_unbootstrap_keeps_foreign_services_on_machine_that_never_joined(fresh: Path, copy: Copy) -> None:
    host = SimulatedHost(copy(fresh))
    for name in LEFT_BY:
        host.apply(WriteFile(f"/etc/systemd/system/{name}", b"[Service]\n"))
        host.apply(StartUnit(name))
    assert changes_by_reset(host.disk.root) == {}


def test_unbootstrap_keeps_preexisting_agent_directories(fresh: Path, copy: Copy) -> None:
    root = copy(fresh)
    for folder in ("var/lib/aks-flex-node", "opt/aks-flex-node"):
        (root / folder).mkdir(0o755)
    before = harness.tree(root)

    harness.join(SimulatedHost(root))
    assert harness.reset(SimulatedHost(root)) == []

    assert harness.changes(before, harness.tree(root)) == {}
