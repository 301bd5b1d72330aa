"""A join that is killed at any action is finished by the next one, or taken back by a reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.joining import differences
from tests.crash import world
from tests.crash.crashing import CrashingHost
from tests.crash.sweeps import crashes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.crashing import When
    from tests.crash.sweeps import Copy

every_moment = pytest.mark.parametrize("when", ["before", "amid", "after"])


def test_a_join_leaves_nothing_to_do(joined: Path) -> None:
    assert differences(world.engine(CrashingHost(joined))) == []


def test_a_second_join_changes_nothing_but_what_it_remembers_of_itself(fresh: Path, copy: Copy) -> None:
    root = copy(fresh)
    world.join(CrashingHost(root))

    again = world.join(CrashingHost(root))

    assert {str(action).split()[1] for action in again.done} == {"/var/lib/aks-flex-node/state.json"}


@every_moment
def test_the_next_join_finishes_one_that_was_killed(fresh: Path, joined: Path, copy: Copy, when: When) -> None:
    expected = world.tree(joined)
    for point, root in crashes(world.join, fresh, copy, when):
        world.join(CrashingHost(root))

        assert world.changes(expected, world.tree(root)) == {}, point
        assert differences(world.engine(CrashingHost(root))) == [], point


@every_moment
def test_a_reset_takes_back_a_join_that_was_killed(fresh: Path, copy: Copy, when: When) -> None:
    expected = world.tree(fresh)
    for point, root in crashes(world.join, fresh, copy, when):
        remains = world.reset(CrashingHost(root))

        assert (remains, world.changes(expected, world.tree(root))) == ([], {}), point


@every_moment
def test_a_reset_takes_back_a_join_that_finished_one_that_was_killed(fresh: Path, copy: Copy, when: When) -> None:
    expected = world.tree(fresh)
    for point, root in crashes(world.join, fresh, copy, when):
        world.join(CrashingHost(root))
        remains = world.reset(CrashingHost(root))

        assert (remains, world.changes(expected, world.tree(root))) == ([], {}), point


@every_moment
def test_the_next_join_finishes_a_repair_that_was_killed(joined: Path, copy: Copy, when: When) -> None:
    expected = world.tree(joined)

    def repair(host: CrashingHost) -> None:
        for program in ("containerd/2.4.2/bin/ctr", "runc/1.5.2/bin/runc"):
            host.disk.at(f"/opt/aks-flex-node/{program}").write_text("damaged\n")
        world.join(host)

    for point, root in crashes(repair, joined, copy, when, least=10):
        world.join(CrashingHost(root))

        assert world.changes(expected, world.tree(root)) == {}, point
