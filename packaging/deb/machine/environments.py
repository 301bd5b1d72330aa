"""Makes the environment that the command runs from, out of the wheels that the package carries.

It runs on the machine, by the machine's own Python and nothing else, when the package is configured and when that
Python changes. The steps are: unpack next to what is there, compile, turn the link `current`, and only then remove
what nothing runs from any more. Stopped at any point, it can be run again.
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import json
import os
import py_compile
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HOME = Path("/usr/lib/aks-flex-node")
COMPILERS = 0  # as many as there are processors
TAG = "cp{}{}".format(*sys.version_info[:2])


class NotSupportedError(Exception):
    """The package has no wheels for this Python."""


class DamagedError(Exception):
    """A file of the package is not what the package came with."""


def build(home: Path, tag: str, sync: Callable[[], None] = os.sync) -> Path:
    """The environment of the package's version for a Python, made unless it is there, and current from now on."""
    index = json.loads((home / "wheels" / "index.json").read_text())
    if tag not in index["wheels"]:
        raise NotSupportedError(f"no wheels for {tag}; there are: {', '.join(sorted(index['wheels']))}")
    environments = home / "env"
    environments.mkdir(mode=0o755, exist_ok=True)
    place = environments / f"{index['version']}-{index['digest']}-{tag}"
    wheels = [home / "wheels" / name for name in index["wheels"][tag]]
    if not _whole(wheels, place):
        _check(wheels, index["sha256"])
        _unpack(wheels, place, sync)
    _point(environments / "current", place.name)
    _tidy(environments, place)
    return place


def _whole(wheels: list[Path], place: Path) -> bool:
    """Whether every file is there; so installing the package again repairs what somebody deleted."""
    if not place.exists():
        return False
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                if not all((place / name).exists() for name in archive.namelist()):
                    return False
        except (FileNotFoundError, zipfile.BadZipFile):
            return False  # and is named by the check that follows
    return True


def _check(wheels: list[Path], sums: dict[str, str]) -> None:
    """Before anything is made of them."""
    for wheel in wheels:
        try:
            found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        except FileNotFoundError:
            raise DamagedError(f"{wheel} is missing") from None
        if found != sums[wheel.name]:
            raise DamagedError(f"{wheel} was changed: it is not what the package came with")


def _unpack(wheels: list[Path], place: Path, sync: Callable[[], None]) -> None:
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o755)
    try:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
        # Nobody changes these files, so nothing needs to compare them with their sources at each start.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(
            partial, quiet=2, workers=COMPILERS, stripdir=partial, prependdir=place, invalidation_mode=mode
        )
        sync()  # a power cut right after the rename must not find empty files
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk is not left fuller
        raise
    if place.exists():
        place.rename(place.with_name(f".{place.name}.damaged"))
    partial.rename(place)


def _point(link: Path, name: str) -> None:
    if link.is_symlink() and link.readlink() == Path(name):
        return
    fresh = link.with_name(".current")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)


def _tidy(environments: Path, current: Path) -> None:
    """Remove other environments, but for those that a process holds on to: they go the next time."""
    for other in sorted(environments.iterdir()):
        if other.is_symlink() or other == current:
            continue
        handle = os.open(other, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)


if __name__ == "__main__":
    os.umask(0o022)
    try:
        build(HOME, TAG)
    except NotSupportedError as error:
        sys.exit(f"aks-flex-node: {error}")
    except DamagedError as error:
        sys.exit(f"aks-flex-node: {error}.\nRepair it with: sudo apt install --reinstall aks-flex-node")
    except OSError as error:
        sys.exit(
            f"aks-flex-node: its environment could not be made: {error}.\n"
            "What was there before stays as it was. When that is mended: sudo dpkg --configure -a"
        )
