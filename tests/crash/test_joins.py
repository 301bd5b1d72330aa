"""A join that is killed at any point is completed by the next join or removed by an unbootstrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash import harness
from tests.crash.crash_points import Crash, CrashingHost, SimulatedHost
from tests.crash.sweeps import mistakes, points
from tests.unit.agent.builders import pending_actions

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from tests.crash.crash_points import Point
    from tests.crash.sweeps import Copy


def test_no_actions_are_pending_after_join(joined: Path) -> None:
    assert pending_actions(harness.engine(SimulatedHost(joined))) == []


def test_second_join_writes_only_the_state_file(fresh: Path, copy: Copy) -> None:
    root = copy(fresh)
    harness.join(SimulatedHost(root))

    again = SimulatedHost(root)
    harness.join(again)

    assert {str(action).split()[1] for action in again.done} == {"/var/lib/aks-flex-node/state.json"}


def test_join_completes_when_rerun_after_crash(joined: Path, killed_joins: list[Point], pool: Executor) -> None:
    """The result is the same as that of a join without a crash, so an unbootstrap also removes it."""
    assert list(mistakes(pool, killed_joins, harness.join, harness.tree(joined))) == []


def test_unbootstrap_undoes_killed_join(fresh: Path, killed_joins: list[Point], pool: Executor) -> None:
    assert list(mistakes(pool, killed_joins, harness.reset, harness.tree(fresh))) == []


@pytest.mark.parametrize("amid", [False, True])
def test_crash_snapshots_match_disk_state_of_killed_join(
    fresh: Path, killed_joins: list[Point], copy: Copy, amid: bool
) -> None:
    """Other tests use snapshots of one run. Here processes are really killed."""
    for number in range(1, 140, 20):
        word = "amid" if amid else "before"
        for point in (one for one in killed_joins if one.name.startswith(f"{word} action {number}:")):
            root = copy(fresh)
            with pytest.raises(Crash):
                harness.join(CrashingHost(root, number, amid=amid))

            assert harness.changes(harness.tree(point.root), harness.tree(root)) == {}, point.name


def test_join_completes_killed_repair(room: Path, joined: Path, pool: Executor) -> None:
    killed = points(repair, joined, room / "killed-repairs")

    assert list(mistakes(pool, killed, harness.join, harness.tree(joined))) == []


def repair(host: SimulatedHost) -> list[str]:
    for program in ("containerd/2.4.2/bin/ctr", "runc/1.5.2/bin/runc"):
        host.disk.at(f"/opt/aks-flex-node/{program}").write_text("damaged\n")
    return harness.join(host)
