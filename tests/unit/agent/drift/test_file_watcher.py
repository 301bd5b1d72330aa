"""Tests of the file watcher on a real disk: changes of our files are reported, others are not."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.drift import file_watcher
from aks_flex_node.agent.drift.file_watcher import PathWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 10.0  # seconds: a notification normally arrives immediately
NOT_AT_ALL = 0.05


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """Returns a directory with two of our files and one of another program."""
    for name in ("etc/ours.conf", "etc/theirs.conf", "etc/deep/er/ours.conf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as it should be")
    return tmp_path / "etc"


@pytest.fixture
def sentinel(etc: Path) -> Iterator[PathWatcher]:
    with PathWatcher([f"{etc}/ours.conf", f"{etc}/deep/er/ours.conf", f"{etc}/all.d/"]) as made:
        yield made


def replaced(path: Path) -> None:
    new = path.with_name(".new")
    new.write_text("another")
    new.replace(path)


def masked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


TOUCHES: dict[str, Callable[[Path], object]] = {
    "written": lambda path: path.write_text("other"),
    "appended to": lambda path: path.open("a").close(),
    "replaced": replaced,
    "removed": lambda path: path.unlink(),
    "moved away": lambda path: path.rename(path.with_name("elsewhere")),
    "made readable by all": lambda path: path.chmod(0o666),
    "replaced by a link": masked,
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_changed_watched_file_is_reported(sentinel: PathWatcher, etc: Path, touch: str) -> None:
    TOUCHES[touch](etc / "ours.conf")
    assert sentinel.wait(PATIENCE) == {f"{etc}/ours.conf"}


@pytest.mark.parametrize("touch", TOUCHES)
def test_changed_unwatched_file_in_the_same_directory_is_not_reported(
    sentinel: PathWatcher, etc: Path, touch: str
) -> None:
    TOUCHES[touch](etc / "theirs.conf")
    assert sentinel.wait(NOT_AT_ALL) == frozenset()


def test_reading_a_watched_file_is_not_reported(sentinel: PathWatcher, etc: Path) -> None:
    (etc / "ours.conf").read_text()
    assert sentinel.wait(NOT_AT_ALL) == frozenset()


@pytest.mark.parametrize("folder", ["deep", "deep/er"])
def test_file_in_a_removed_directory_is_reported_and_watched_again(
    sentinel: PathWatcher, etc: Path, folder: str
) -> None:
    shutil.rmtree(etc / folder)
    assert f"{etc}/deep/er/ours.conf" in sentinel.wait(PATIENCE)
    sentinel.wait(NOT_AT_ALL)

    (etc / "deep" / "er").mkdir(parents=True)
    sentinel.wait(PATIENCE)
    sentinel.wait(NOT_AT_ALL)
    (etc / "deep" / "er" / "ours.conf").write_text("back")

    assert sentinel.wait(PATIENCE) == {f"{etc}/deep/er/ours.conf"}


@pytest.mark.parametrize("folder", ["deep", "deep/er"])
def test_replaced_directory_is_watched_in_place_of_the_old_one(sentinel: PathWatcher, etc: Path, folder: str) -> None:
    shutil.copytree(etc / folder, etc / "copy")
    (etc / folder).rename(etc / "old")
    (etc / "copy").rename(etc / folder)
    assert f"{etc}/deep/er/ours.conf" in sentinel.wait(PATIENCE)
    sentinel.wait(NOT_AT_ALL)

    shutil.rmtree(etc / "old")
    assert sentinel.wait(NOT_AT_ALL) == frozenset()
    (etc / "deep" / "er" / "ours.conf").chmod(0o600)
    assert sentinel.wait(PATIENCE) == {f"{etc}/deep/er/ours.conf"}


def test_watched_directory_created_later_is_watched(sentinel: PathWatcher, etc: Path) -> None:
    (etc / "all.d").mkdir()
    sentinel.wait(PATIENCE)
    (etc / "all.d" / "anything.conf").write_text("by anybody")
    assert sentinel.wait(PATIENCE) == {f"{etc}/all.d/anything.conf"}


def test_directory_reached_through_two_paths_is_watched_for_both(etc: Path) -> None:
    (etc / "way").symlink_to("deep")
    with PathWatcher([f"{etc}/deep/one", f"{etc}/way/two"]) as sentinel:
        (etc / "deep" / "one").touch()
        assert sentinel.wait(PATIENCE) == {f"{etc}/deep/one"}
        (etc / "deep" / "two").touch()
        assert sentinel.wait(PATIENCE) == {f"{etc}/way/two"}
        (etc / "deep" / "three").touch()
        assert sentinel.wait(NOT_AT_ALL) == frozenset()


def test_inotify_overflow_reports_every_watched_path(sentinel: PathWatcher, etc: Path) -> None:
    lost = file_watcher.InotifyEvent(-1, file_watcher.OVERFLOW, "")
    assert sentinel._paths_of(lost) == {f"{etc}/ours.conf", f"{etc}/deep/er/ours.conf", f"{etc}/all.d/"}
    sentinel.wait(NOT_AT_ALL)
    (etc / "ours.conf").write_text("still watched")
    assert sentinel.wait(PATIENCE) == {f"{etc}/ours.conf"}


def test_close_from_another_thread_ends_current_and_later_waits(sentinel: PathWatcher) -> None:
    timer = threading.Timer(NOT_AT_ALL, sentinel.close)
    timer.start()
    assert sentinel.wait(PATIENCE * 100) == frozenset()
    assert sentinel.wait(PATIENCE * 100) == frozenset()
    timer.join()


def open_now() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_path_watcher_closes_its_file_descriptors(etc: Path) -> None:
    before = open_now()
    with PathWatcher([f"{etc}/ours.conf"]):
        pass
    assert open_now() == before


def test_block_of_inotify_events_is_parsed_to_its_end() -> None:
    block = file_watcher.HEADER.pack(1, file_watcher.CREATE, 0, 16) + b"kubelet\0".ljust(16, b"\0")
    block += file_watcher.HEADER.pack(2, file_watcher.IGNORED, 0, 0)
    assert list(file_watcher.parse_events(block)) == [
        file_watcher.InotifyEvent(1, file_watcher.CREATE, "kubelet"),
        file_watcher.InotifyEvent(2, file_watcher.IGNORED, ""),
    ]
