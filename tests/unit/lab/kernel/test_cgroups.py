"""Tests of reading the host's control groups."""

from __future__ import annotations

from pathlib import Path

from aks_flex_lab.kernel.cgroups import parse_hierarchies

OLD_MOUNTS = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
OLD_OWN = """\
4:name=systemd:/
3:memory:/session/7
2:cpu,cpuacct:/
0::/
"""


def test_cgroup_v1_hierarchies_are_joined_below_current_group() -> None:
    found = {str(each.mount): each for each in parse_hierarchies(OLD_MOUNTS, OLD_OWN)}

    assert found["/sys/fs/cgroup/memory"].base == Path("/sys/fs/cgroup/memory/session/7")
    assert found["/sys/fs/cgroup/cpu,cpuacct"].controllers == {"cpu", "cpuacct"}
    assert found["/sys/fs/cgroup/systemd"].base == Path("/sys/fs/cgroup/systemd")
    assert len(found) == 4


def test_unified_hierarchy_beside_v1_is_not_the_only_hierarchy() -> None:
    beside = next(each for each in parse_hierarchies(OLD_MOUNTS, OLD_OWN) if each.unified)

    assert not beside.is_only_hierarchy


def test_cgroup_v2_gives_single_group_to_join() -> None:
    found = list(parse_hierarchies("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/user.slice/session-1.scope\n"))

    assert [each.mount for each in found] == [Path("/sys/fs/cgroup")]
    assert found[0].current == "/user.slice/session-1.scope"
