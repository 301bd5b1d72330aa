"""The environment on a machine: made from wheels, turned over at once, and kept as long as somebody runs from it."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from deb.machine.environments import NotSupportedError, build

if TYPE_CHECKING:
    from pathlib import Path

TAG = "cp{}{}".format(*sys.version_info[:2])


def ship(home: Path, version: str, tags: tuple[str, ...] = (TAG,)) -> None:
    """What unpacking the package of a version leaves."""
    shelf = home / "wheels"
    shelf.mkdir(exist_ok=True)
    with zipfile.ZipFile(shelf / f"one-{version}.whl", "w") as wheel:
        wheel.writestr("one/__init__.py", f"VERSION = {version!r}\n")
    index = {"version": version, "digest": "d", "wheels": {tag: [f"one-{version}.whl"] for tag in tags}}
    (shelf / "index.json").write_text(json.dumps(index))


def environments(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "env").iterdir() if not path.is_symlink())


def test_wheels_become_an_environment_that_is_current(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    place = build(tmp_path, TAG)
    assert (tmp_path / "env/current").resolve() == place
    assert (place / "one/__init__.py").read_text() == "VERSION = '1'\n"
    assert list((place / "one/__pycache__").glob("__init__.*.pyc"))


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    first = build(tmp_path, TAG).stat().st_ino
    assert build(tmp_path, TAG).stat().st_ino == first


def test_another_version_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for version in ("1", "2"):
        ship(tmp_path, version)
        build(tmp_path, TAG)
    assert environments(tmp_path) == [f"2-d-{TAG}"]


def test_an_environment_that_somebody_runs_from_stays_until_the_next_time(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    runs = os.open(build(tmp_path, TAG), os.O_RDONLY)
    fcntl.flock(runs, fcntl.LOCK_SH)
    ship(tmp_path, "2")
    build(tmp_path, TAG)
    assert environments(tmp_path) == [f"1-d-{TAG}", f"2-d-{TAG}"]
    os.close(runs)
    build(tmp_path, TAG)
    assert environments(tmp_path) == [f"2-d-{TAG}"]


def test_another_python_gets_an_environment_of_its_own(tmp_path: Path) -> None:
    ship(tmp_path, "1", ("cp39", TAG))
    build(tmp_path, "cp39")
    build(tmp_path, TAG)
    assert environments(tmp_path) == [f"1-d-{TAG}"]


def test_what_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    left = tmp_path / f"env/.1-d-{TAG}.partial"
    left.mkdir(parents=True)
    (left / "half").write_text("")
    (tmp_path / "env/.current").symlink_to("nowhere")
    place = build(tmp_path, TAG)
    assert not (place / "half").exists()
    assert environments(tmp_path) == [place.name]


def test_what_is_damaged_is_made_anew(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    module = build(tmp_path, TAG) / "one/__init__.py"
    module.unlink()
    build(tmp_path, TAG)
    assert module.exists()


def test_a_python_without_wheels_is_named(tmp_path: Path) -> None:
    ship(tmp_path, "1")
    with pytest.raises(NotSupportedError, match=f"no wheels for cp27; there are: {TAG}"):
        build(tmp_path, "cp27")
