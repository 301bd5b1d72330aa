"""A reset leaves a machine as it was before the join, also when it is killed at any action and run again."""

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


@every_moment
def test_the_next_reset_finishes_one_that_was_killed(fresh: Path, joined: Path, copy: Copy, when: When) -> None:
    expected = world.tree(fresh)
    for point, root in crashes(world.reset, joined, copy, when):
        remains = world.reset(CrashingHost(root))

        assert (remains, world.changes(expected, world.tree(root))) == ([], {}), point


@every_moment
def test_a_join_makes_a_node_again_of_a_reset_that_was_killed(joined: Path, copy: Copy, when: When) -> None:
    expected = world.tree(joined)
    for point, root in crashes(world.reset, joined, copy, when):
        world.join(CrashingHost(root))

        assert world.changes(expected, world.tree(root)) == {}, point
        assert differences(world.engine(CrashingHost(root))) == [], point


def test_a_machine_can_join_again_right_after_a_reset(joined: Path, copy: Copy) -> None:
    root = copy(joined)
    world.reset(CrashingHost(root))

    world.join(CrashingHost(root))

    assert world.changes(world.tree(joined), world.tree(root)) == {}


def test_a_second_reset_finds_nothing_to_do(fresh: Path, joined: Path, copy: Copy) -> None:
    root = copy(joined)
    assert world.reset(CrashingHost(root)) == []

    assert world.reset(CrashingHost(root)) == []

    assert world.changes(world.tree(fresh), world.tree(root)) == {}


def test_a_reset_changes_nothing_on_a_machine_that_never_joined(fresh: Path, copy: Copy) -> None:
    root = copy(fresh)
    for folder in ("etc/kubernetes/manifests", "opt/cni/bin", "var/lib/kubelet", "run/containerd", "run/netns"):
        (root / folder).mkdir(parents=True)
    before = world.tree(root)

    assert world.reset(CrashingHost(root)) == []

    assert world.changes(before, world.tree(root)) == {}


def test_directories_of_the_agent_that_were_there_before_stay(fresh: Path, copy: Copy) -> None:
    root = copy(fresh)
    for folder in ("var/lib/aks-flex-node", "var/log/aks-flex-node", "opt/aks-flex-node"):
        (root / folder).mkdir(0o755)
    before = world.tree(root)

    world.join(CrashingHost(root))
    assert world.reset(CrashingHost(root)) == []

    assert world.changes(before, world.tree(root)) == {}
