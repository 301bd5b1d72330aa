"""Tests of the disk checks: free space, by purpose and file system."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aks_flex_node.agent.preflight.disk_checks import file_system_type, threshold_bytes, volumes
from aks_flex_node.agent.preflight.interfaces import FileSystemInfo
from tests.unit.agent.preflight.builders import GIB, ROOM, config, fit, host, severities, told

NODE = frozenset({"kubelet.service"})


@pytest.mark.parametrize(("free", "expected"), [(1.0, ["error"]), (4.0, ["warning"]), (50.0, ["ok"])])
def test_preflight_requires_enough_free_space_on_a_single_disk(free: float, expected: list[str]) -> None:
    small = FileSystemInfo(1, int(free * GIB), int(free * GIB) + 1)

    assert severities(fit(file_system=lambda _: small), "disk") == expected


def test_preflight_does_not_require_install_space_on_a_joined_node() -> None:
    assert severities(fit(file_system=lambda _: FileSystemInfo(1, GIB, 2 * GIB), owned_services=NODE), "disk") == [
        "ok"
    ]


def test_preflight_checks_each_file_system_against_its_own_needs() -> None:
    def room(path: str) -> FileSystemInfo | None:
        if path == "/var/lib":
            return FileSystemInfo(2, 100 << 20, 200 << 20)
        return ROOM if path == "/" else None

    situation = fit(file_system=room)

    assert [len(volume.needs) for volume in volumes(situation)] == [2, 3]
    assert "100 MiB is free for /var/lib/aks-flex-node, /var/lib/containerd and 1 more" in told(situation, "disk")


def test_preflight_reports_disk_that_would_be_under_eviction_pressure() -> None:
    assert "imagefs.available < 15%" in told(
        fit(file_system=lambda _: FileSystemInfo(1, 12 * GIB, 100 * GIB)), "disk"
    )
    assert "nodefs.inodesFree < 5%" in told(fit(file_system=lambda _: replace(ROOM, inodes_free=20_000)), "disk")


def test_preflight_reports_low_inodes_only_where_inodes_are_counted() -> None:
    assert "Only 5 inodes are free" in told(fit(file_system=lambda _: replace(ROOM, inodes_free=5)), "disk")
    assert severities(fit(file_system=lambda _: replace(ROOM, inodes_free=0, inodes=0)), "disk") == ["ok"]


def test_preflight_reports_read_only_and_noexec_disks() -> None:
    assert "is read-only" in told(fit(file_system=lambda _: replace(ROOM, read_only=True)), "disk")
    assert "mounted noexec" in told(fit(file_system=lambda _: replace(ROOM, noexec=True)), "disk")


@pytest.mark.parametrize(("kind", "severity"), [("overlay", "error"), ("nfs4", "error"), ("tmpfs", "warning")])
def test_preflight_reports_file_system_unsuitable_for_overlayfs(kind: str, severity: str) -> None:
    mounts = f"1 1 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /var/lib rw - {kind} x rw\n"

    assert severities(fit(host=host({"/proc/self/mountinfo": mounts})), "disk") == [severity]
    moved = config({"paths": {"containerdDir": "/data/containerd"}})
    assert severities(fit(host=host({"/proc/self/mountinfo": mounts}), config=moved), "disk") == ["ok"]


def test_file_system_type_comes_from_the_nearest_latest_mount() -> None:
    mounts = (
        "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 8:2 / /var rw shared:1 master:2 - xfs /dev/sda2 rw\n"
        "3 1 8:3 / /var/libx rw - btrfs /dev/sda3 rw\n"
        "4 1 8:2 / /var rw - f2fs /dev/sda4 rw\n"
    )

    assert file_system_type(mounts, "/var/lib/containerd") == "f2fs"
    assert file_system_type(mounts, "/var/libx") == "btrfs"
    assert file_system_type(mounts, "/opt") == "ext4"
    assert file_system_type("", "/opt") == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("10%", 100), ("1Gi", 1 << 30), ("500", 500), ("2k", 2000), ("", 0), ("much", 0)]
)
def test_eviction_threshold_is_parsed(text: str, expected: float) -> None:
    assert threshold_bytes(text, 1000) == expected
