"""Tests of the host's kernel settings: restored when the last lab is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.kernel import host_state

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    settings = {"kernel/panic": "1", "vm/overcommit_memory": "0", "kernel/random/boot_id": "a", "fs/file-nr": "7"}
    for key, value in settings.items():
        path = tmp_path / "sys" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    return tmp_path / "sys"


def test_changed_sysctls_are_restored(root: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    host_state.record_sysctls(record, root)
    (root / "kernel/panic").write_text("10\n")

    assert host_state.restore_sysctls(record, root) == ["kernel/panic"]
    assert (root / "kernel/panic").read_text() == "1"
    assert not record.exists()


def test_second_record_keeps_original_sysctl_values(root: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    host_state.record_sysctls(record, root)
    (root / "kernel/panic").write_text("10\n")
    host_state.record_sysctls(record, root)

    assert host_state.restore_sysctls(record, root) == ["kernel/panic"]


def test_sysctls_are_not_restored_after_reboot(root: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    host_state.record_sysctls(record, root)
    (root / "kernel/random/boot_id").write_text("b\n")
    (root / "kernel/panic").write_text("10\n")

    assert host_state.restore_sysctls(record, root) == []
    assert (root / "kernel/panic").read_text() == "10\n"


def test_volatile_kernel_values_are_not_recorded_as_sysctls(root: Path) -> None:
    assert set(host_state.read_sysctls(root)) == {"kernel/panic", "vm/overcommit_memory"}


def test_inotify_limit_is_raised_and_restored(root: Path, tmp_path: Path) -> None:
    limit = root / "fs/inotify/max_user_instances"
    limit.parent.mkdir()
    limit.write_text("128\n")
    host_state.record_sysctls(tmp_path / "record.json", root)

    host_state.raise_limits(root)
    assert int(limit.read_text()) == 8192
    host_state.restore_sysctls(tmp_path / "record.json", root)
    assert limit.read_text() == "128"
