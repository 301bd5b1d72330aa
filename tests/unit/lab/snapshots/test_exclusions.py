"""What a snapshot leaves out."""

from __future__ import annotations

import pytest

from aks_flex_lab.snapshots.collector import exclusions
from aks_flex_lab.snapshots.collector.exclusions import Exclusion, matcher

LISTS = {name: value for name, value in vars(exclusions).items() if name.isupper() and isinstance(value, tuple)}


@pytest.mark.parametrize("name", LISTS)
def test_every_entry_says_why(name: str) -> None:
    assert all(entry.pattern and entry.why for entry in LISTS[name])


@pytest.mark.parametrize("name", LISTS)
def test_no_entry_stands_twice(name: str) -> None:
    patterns = [entry.pattern for entry in LISTS[name]]

    assert len(patterns) == len(set(patterns))


def test_an_empty_list_ignores_nothing() -> None:
    assert not matcher(())("anything")


def test_a_pattern_is_matched_as_a_whole() -> None:
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
        "/var/tmp/systemd-private-3a9f-systemd-logind.service-x",  # noqa: S108
        "/var/backups/dpkg.status.1.gz",
        "/run/user/0",
    ],
)
def test_what_differs_between_boots_is_left_out(path: str) -> None:
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
        "/run/flannel/subnet.env",
        "/run/systemd/system/kubelet.service",
        "/run/systemd/system.control/x.conf",
        "/run/sshd.pid",
        "/var/lib/systemd/timers/stamp-x.timer",
        "/tmp/left",  # noqa: S108
    ],
)
def test_what_somebody_left_behind_is_not(path: str) -> None:
    assert not matcher(exclusions.FILES)(path)


def test_of_a_file_with_a_process_number_only_the_content_is_left_out() -> None:
    assert matcher(exclusions.FILE_CONTENTS)("/run/containerd/containerd.pid")
    assert not matcher(exclusions.FILE_CONTENTS)("/etc/x.pid")
