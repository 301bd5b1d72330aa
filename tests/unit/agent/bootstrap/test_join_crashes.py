"""A join or unbootstrap that is killed at any action is completed or removed by the next run.

The lab's tests kill at every action on a real machine; this test uses samples and takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.host.actions import WriteFile
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.bootstrap.test_join import join, leave, snapshot
from tests.unit.agent.builders import SYSTEM_FOLDERS, pending_actions

if TYPE_CHECKING:
    from aks_flex_node.host.actions import Action


class Killed(BaseException):
    """Not caught by any handler, like a power cut."""


class CrashingHost(RecordedHost):
    left: int | None = None

    def apply(self, action: Action) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1
        super().apply(action)


def machine() -> CrashingHost:
    host = CrashingHost({f"{folder}/.keep": "" for folder in SYSTEM_FOLDERS})
    host.apply(WriteFile("/proc/filesystems", b"nodev\toverlay\n"))
    host.apply(WriteFile("/etc/fstab", b"/swap none swap sw 0 0\n"))
    host.apply(WriteFile("/usr/local/bin/kubectl", b"theirs", 0o755))
    return host


def killed_after(count: int) -> CrashingHost:
    host = machine()
    host.left = count
    with pytest.raises(Killed):
        join(host)
    host.left = None
    return host


MOMENTS = [0, 1, 2, 3, 5, 8, 11, *range(15, 110, 12)]


@pytest.mark.parametrize("count", MOMENTS)
def test_interrupted_join_is_completed_by_the_next_join(count: int) -> None:
    host = killed_after(count)
    assert pending_actions(join(host)) == []


@pytest.mark.parametrize("count", MOMENTS)
def test_interrupted_join_is_reverted_completely_by_unbootstrap(count: int) -> None:
    before = snapshot(machine())
    host = killed_after(count)
    assert leave(host) == []
    assert snapshot(host) == before


@pytest.mark.parametrize("count", MOMENTS)
def test_interrupted_unbootstrap_is_completed_by_the_next_one(count: int) -> None:
    before = snapshot(machine())
    host = machine()
    join(host)
    host.left = count
    try:
        leave(host)
    except Killed:
        host.left = None
        assert leave(host) == []
    host.left = None
    assert snapshot(host) == before
