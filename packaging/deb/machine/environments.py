"""Creates the Python environment of the command from the wheels of the package.

Runs on the machine with its system Python when the package is configured and when that Python changes. Unpacks the
wheels to a new directory, compiles them, switches the link `current`, and then removes unused environments. It can be
interrupted and run again at any point.
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
COMPILERS = 0  # one per processor
TAG = "cp{}{}".format(*sys.version_info[:2])


class NotSupportedError(Exception):
    """The package has no wheels for this Python."""


class DamagedError(Exception):
    """A file of the package was changed or is missing."""


def build(home: Path, tag: str, sync: Callable[[], None] = os.sync) -> Path:
    """Creates the environment for a Python if it is missing or incomplete, and makes it current."""
    index = json.loads((home / "wheels" / "index.json").read_text())
    if tag not in index["wheels"]:
        raise NotSupportedError(f"no wheels for {tag}; available: {', '.join(sorted(index['wheels']))}")
    environments = home / "env"
    environments.mkdir(mode=0o755, exist_ok=True)
    path = environments / f"{index['version']}-{index['digest']}-{tag}"
    wheels = [home / "wheels" / name for name in index["wheels"][tag]]
    if not _whole(wheels, path):
        _check(wheels, index["sha256"])
        _unpack(wheels, path, sync)
    _point(environments / "current", path.name)
    _tidy(environments, path)
    return path


def _whole(wheels: list[Path], path: Path) -> bool:
    """Whether all files exist, so that reinstalling the package repairs deleted files."""
    if not path.exists():
        return False
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                if not all((path / name).exists() for name in archive.namelist()):
                    return False
        except (FileNotFoundError, zipfile.BadZipFile):
            return False  # _check reports the wheel
    return True


def _check(wheels: list[Path], sums: dict[str, str]) -> None:
    """Verifies the checksums of the wheels before they are unpacked."""
    for wheel in wheels:
        try:
            found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        except FileNotFoundError:
            raise DamagedError(f"{wheel} is missing") from None
        if found != sums[wheel.name]:
            raise DamagedError(f"{wheel} was changed: its checksum does not match")


def _unpack(wheels: list[Path], path: Path, sync: Callable[[], None]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o755)
    try:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
        # These files do not change, so Python does not need to compare them with their sources at each start.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(
            partial, quiet=2, workers=COMPILERS, stripdir=partial, prependdir=path, invalidation_mode=mode
        )
        sync()  # prevents empty files after a power failure
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # frees the space on a full disk
        raise
    if path.exists():
        path.rename(path.with_name(f".{path.name}.damaged"))
    partial.rename(path)


def _point(link: Path, name: str) -> None:
    if link.is_symlink() and link.readlink() == Path(name):
        return
    fresh = link.with_name(".current")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)


def _tidy(environments: Path, current: Path) -> None:
    """Removes other environments, except those that a running process has locked."""
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
            f"aks-flex-node: the Python environment could not be created: {error}.\n"
            "The previous environment is unchanged. Fix the cause and run: sudo dpkg --configure -a"
        )
