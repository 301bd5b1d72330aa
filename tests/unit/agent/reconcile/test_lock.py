"""Tests of the lock of the agent's processes."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.reconcile.lock import exclusive, is_held, read_waiting, record_waiting
from aks_flex_node.errors import BusyError, MachineError

if TYPE_CHECKING:
    from pathlib import Path


def test_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive(str(path)):
        assert is_held(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(BusyError, match=f"PID {os.getpid()}") as caught, exclusive(str(path)):
            pass
    assert (caught.value.name, caught.value.retryable, caught.value.exit_code) == ("agent-locked", True, 7)
    assert not is_held(str(path))
    assert not path.exists()


def test_lock_is_released_when_the_command_fails(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), exclusive(str(path)):
        _ = 1 // 0
    assert not path.exists()


def test_second_process_is_told_that_the_first_waits_for_an_approval(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    record_waiting("1a2b-3c4d", path)
    assert read_waiting(path) is None
    with exclusive(path):
        record_waiting("1a2b-3c4d", path)
        with pytest.raises(BusyError) as caught, exclusive(path):
            pass
        assert read_waiting(path) == (str(os.getpid()), "1a2b-3c4d")
        record_waiting("", path)
        assert read_waiting(path) is None
        with pytest.raises(BusyError, match="is changing this machine"), exclusive(path):
            pass
    assert "waits for the approval of this machine" in caught.value.message
    assert "1a2b-3c4d" in caught.value.message
    assert f"`kill {os.getpid()}`" in caught.value.hint
    (tmp_path / "lock").write_text(f"{os.getpid()}\n1a2b-3c4d")  # of a process that was killed
    assert read_waiting(path) is None


@pytest.mark.parametrize("kind", ["directory", "link", "loop"])
def test_link_or_empty_directory_in_place_of_the_lock_is_removed(tmp_path: Path, kind: str) -> None:
    place, elsewhere = tmp_path / "lock", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    if kind == "directory":
        place.mkdir()
    else:
        place.symlink_to(elsewhere if kind == "link" else place)
    with exclusive(str(place)):
        assert place.is_file()
    assert elsewhere.read_text() == "mine"


def test_directory_with_files_is_set_aside(tmp_path: Path) -> None:
    place, aside = tmp_path / "lock", tmp_path / "lock.damaged"
    place.mkdir()
    (place / "file").touch()
    with exclusive(str(place)):
        assert place.is_file()
    assert (aside / "file").exists()


def test_directory_that_cannot_be_set_aside_is_kept_and_named(tmp_path: Path) -> None:
    place, aside = tmp_path / "lock", tmp_path / "lock.damaged"
    for folder in (place, aside):
        folder.mkdir()
        (folder / "file").touch()
    with pytest.raises(MachineError) as caught, exclusive(str(place)):
        pass
    assert caught.value.name == "file-access-failed"
    assert (place / "file").exists()


def test_lock_of_another_process_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has replaced the directory since it was found to be full."""
    place = tmp_path / "lock"
    place.mkdir()
    (place / "file").touch()

    make = type(place).mkdir

    def make_and_replace(folder: Path, *_: Any, **__: Any) -> None:
        make(folder)
        (place / "file").unlink()
        place.rmdir()
        place.write_text("held")

    monkeypatch.setattr(type(place), "mkdir", make_and_replace)
    with pytest.raises(MachineError), exclusive(str(place)):
        pass
    assert place.read_text() == "held"


def test_lock_file_that_cannot_be_opened_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "lock"
    place.touch()

    def refuse(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MachineError, match="Too many open files"), exclusive(str(place)):
        pass
    assert place.exists()
