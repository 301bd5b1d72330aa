"""Tests of the exclusions of a snapshot."""

from __future__ import annotations

import pytest

from aks_flex_lab.snapshots.collector import exclusions
from aks_flex_lab.snapshots.collector.exclusions import Exclusion, matcher

LISTS = {name: value for name, value in vars(exclusions).items() if name.isupper() and isinstance(value, tuple)}


@pytest.mark.parametrize("name", LISTS)
def test_every_exclusion_has_pattern_and_reason(name: str) -> None:
    assert all(entry.pattern and entry.why for entry in LISTS[name])


def test_exclusion_pattern_must_match_whole_path() -> None:
    match = matcher((Exclusion("/run/utmp", "-"), Exclusion("fuse*", "-")))

    assert match("/run/utmp")
    assert match("fuse.sshfs")
    assert not match("/run/utmp2")
    assert not match("/var/run/utmp")


@pytest.mark.parametrize(
    "path",
    [
        "/var/log/journal/3a9f/system.journal",
        "/run/systemd/units/invocation:dbus.service",
        "/tmp/systemd-private-3a9f-systemd-logind.service-x",  # noqa: S108
        "/var/backups/dpkg.status.1.gz",
        "/run/user/0",
    ],
)
def test_files_that_differ_between_boots_are_excluded(path: str) -> None:
    assert matcher(exclusions.FILES)(path)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/machine-id",
        "/var/log/journal",
        "/var/log/pods/x",
        "/var/backups/mine",
        "/run/containerd",
        "/run/netns/cni-1",
        "/run/systemd/system/kubelet.service",
        "/run/sshd.pid",
        "/var/lib/systemd/timers/stamp-x.timer",
        "/tmp/left",  # noqa: S108
    ],
)
def test_leftover_files_are_not_excluded(path: str) -> None:
    assert not matcher(exclusions.FILES)(path)


def test_only_content_of_pid_files_under_run_is_excluded() -> None:
    assert matcher(exclusions.FILE_CONTENTS)("/run/containerd/containerd.pid")
    assert not matcher(exclusions.FILE_CONTENTS)("/etc/x.pid")
