"""Tests of the environment on a machine: built from wheels, switched atomically, kept while in use."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from deb.machine import environments as made
from deb.machine.environments import DamagedError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TAG = "cp{}{}".format(*sys.version_info[:2])


def ship(home: Path, version: str, tags: tuple[str, ...] = (TAG,)) -> None:
    """Creates the files of an unpacked package of this version."""
    shelf = home / "wheels"
    shelf.mkdir(exist_ok=True)
    with zipfile.ZipFile(shelf / f"one-{version}.whl", "w") as wheel:
        wheel.writestr("one/__init__.py", f"VERSION = {version!r}\n")
    name = f"one-{version}.whl"
    sums = {name: hashlib.sha256((shelf / name).read_bytes()).hexdigest()}
    index = {"version": version, "digest": "d", "wheels": {tag: [name] for tag in tags}, "sha256": sums}
    (shelf / "index.json").write_text(json.dumps(index))


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "COMPILERS", 1)


def build(home: Path, tag: str) -> Path:
    return made.build(home, tag, sync=lambda: None)


def environments(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "env").iterdir() if not path.is_symlink())


def test_build_unpacks_wheels_and_sets_current_environment(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    place = build(tmp_path, TAG)
    assert (tmp_path / "env/current").resolve() == place
    assert (place / "one/__init__.py").read_text() == "VERSION = '1'\n"
    assert list((place / "one/__pycache__").glob("__init__.*.pyc"))


def test_environment_is_synced_to_disk_before_it_is_renamed(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    ship(tmp_path, "1")
    made.build(tmp_path, TAG, sync=lambda: seen.append(environments(tmp_path)))
    assert seen == [[f".1-d-{TAG}.partial"]]


def test_rebuilding_same_environment_changes_nothing(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    first = build(tmp_path, TAG).stat().st_ino
    assert build(tmp_path, TAG).stat().st_ino == first


def test_new_version_replaces_previous_environment(tmp_path: Path) -> None:
    for version in ("1", "2"):
        ship(tmp_path, version)
        build(tmp_path, TAG)
    assert environments(tmp_path) == [f"2-d-{TAG}"]


def test_environment_in_use_is_kept_until_next_build(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    runs = os.open(build(tmp_path, TAG), os.O_RDONLY)
    fcntl.flock(runs, fcntl.LOCK_SH)
    ship(tmp_path, "2")
    build(tmp_path, TAG)
    assert environments(tmp_path) == [f"1-d-{TAG}", f"2-d-{TAG}"]
    os.close(runs)
    build(tmp_path, TAG)
    assert environments(tmp_path) == [f"2-d-{TAG}"]


def test_environment_for_another_python_replaces_previous_one(tmp_path: Path) -> None:
    ship(tmp_path, "1", ("cp39", TAG))
    build(tmp_path, "cp39")
    build(tmp_path, TAG)
    assert environments(tmp_path) == [f"1-d-{TAG}"]


def test_build_succeeds_after_killed_build(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    left = tmp_path / f"env/.1-d-{TAG}.partial"
    left.mkdir(parents=True)
    (left / "half").write_text("")
    (tmp_path / "env/.current").symlink_to("nowhere")
    place = build(tmp_path, TAG)
    assert not (place / "half").exists()
    assert environments(tmp_path) == [place.name]


def test_damaged_environment_is_rebuilt(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    module = build(tmp_path, TAG) / "one/__init__.py"
    module.unlink()
    build(tmp_path, TAG)
    assert module.exists()


def test_python_without_wheels_is_refused(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    with pytest.raises(NotSupportedError, match=f"no wheels for cp27; available: {TAG}"):
        build(tmp_path, "cp27")


def other_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w") as changed:
        changed.writestr("one/__init__.py", "VERSION = 'somebody else'\n")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (other_wheel, "one-2.whl was changed"),
        (lambda wheel: wheel.write_bytes(wheel.read_bytes()[:-9]), "one-2.whl was changed"),
        (lambda wheel: wheel.unlink(), "one-2.whl is missing"),
    ],
    ids=["another", "cut off", "missing"],
)
def test_changed_or_missing_wheel_is_refused_and_environment_is_kept(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    ship(tmp_path, "1")
    before = build(tmp_path, TAG)
    ship(tmp_path, "2")
    spoil(tmp_path / "wheels/one-2.whl")
    with pytest.raises(DamagedError, match=words):
        build(tmp_path, TAG)
    assert (tmp_path / "env/current").resolve() == before
    assert environments(tmp_path) == [before.name]


def test_failed_unpack_removes_partial_environment(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    before = build(tmp_path, TAG)
    ship(tmp_path, "2")
    shelf = tmp_path / "wheels"
    with zipfile.ZipFile(shelf / "one-2.whl", "w") as wheel:  # a file below a file cannot be unpacked
        wheel.writestr("one", "")
        wheel.writestr("one/__init__.py", "")
    index = json.loads((shelf / "index.json").read_text())
    index["sha256"]["one-2.whl"] = hashlib.sha256((shelf / "one-2.whl").read_bytes()).hexdigest()
    (shelf / "index.json").write_text(json.dumps(index))
    with pytest.raises(OSError, match="one"):
        build(tmp_path, TAG)
    assert (tmp_path / "env/current").resolve() == before
    assert environments(tmp_path) == [before.name]
