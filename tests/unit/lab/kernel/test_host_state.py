"""The machine's own settings are put back when the last lab goes."""

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


def test_what_a_kubelet_changed_is_put_back(root: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    host_state.record_sysctls(record, root)
    (root / "kernel/panic").write_text("10\n")

    assert host_state.restore_sysctls(record, root) == ["kernel/panic"]
    assert (root / "kernel/panic").read_text() == "1"
    assert not record.exists()


def test_a_second_lab_does_not_take_the_first_ones_changes_for_the_machines_own(root: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    host_state.record_sysctls(record, root)
    (root / "kernel/panic").write_text("10\n")
    host_state.record_sysctls(record, root)

    assert host_state.restore_sysctls(record, root) == ["kernel/panic"]


def test_a_machine_that_was_started_anew_keeps_its_new_settings(root: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    host_state.record_sysctls(record, root)
    (root / "kernel/random/boot_id").write_text("b\n")
    (root / "kernel/panic").write_text("10\n")

    assert host_state.restore_sysctls(record, root) == []
    assert (root / "kernel/panic").read_text() == "10\n"


def test_what_moves_by_itself_is_not_a_setting(root: Path) -> None:
    assert set(host_state.read_sysctls(root)) == {"kernel/panic", "vm/overcommit_memory"}


def test_limits_that_many_machines_would_reach_are_raised_and_put_back(root: Path, tmp_path: Path) -> None:
    limit = root / "fs/inotify/max_user_instances"
    limit.parent.mkdir()
    limit.write_text("128\n")
    host_state.record_sysctls(tmp_path / "record.json", root)

    host_state.raise_limits(root)
    assert int(limit.read_text()) == 8192
    host_state.restore_sysctls(tmp_path / "record.json", root)
    assert limit.read_text() == "128"


def test_what_every_kubelet_wants_holds_for_all_machines_and_is_put_back(root: Path, tmp_path: Path) -> None:
    host_state.record_sysctls(tmp_path / "record.json", root)

    host_state.raise_limits(root)
    assert (root / "kernel/panic").read_text() == "10"
    host_state.restore_sysctls(tmp_path / "record.json", root)

    assert (root / "kernel/panic").read_text() == "1"
