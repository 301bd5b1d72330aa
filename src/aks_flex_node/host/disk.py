"""Files of a machine: of this one, or below a root directory.

Writes are atomic and synced. Removals never cross mounts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_node import atomic_file
from aks_flex_node.errors import MachineError
from aks_flex_node.host import mounts
from aks_flex_node.host.actions import (
    MakeDirectory,
    MakeLink,
    PlaceTree,
    Remove,
    RemoveTree,
    SetAside,
    WriteFile,
    aside_path,
)
from aks_flex_node.host.host import EntryKind, FileEntry
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT_PATH = Path("/")
MAX_SYMLINKS = 40  # limit of the kernel
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
KINDS = ((stat.S_ISLNK, EntryKind.LINK), (stat.S_ISDIR, EntryKind.DIRECTORY), (stat.S_ISREG, EntryKind.FILE))
FileAction: TypeAlias = MakeDirectory | WriteFile | MakeLink | Remove | RemoveTree | SetAside | PlaceTree


def temporary_path(path: Path) -> Path:
    """Returns the path of the temporary file that is renamed over its target."""
    return path.with_name(f".{path.name}.flex-new")


def backup_path(path: Path) -> Path:
    """Returns the path to which a directory tree is moved while it is replaced."""
    return path.with_name(f".{path.name}.flex-old")


@frozen
class HostDisk:
    root: Path = ROOT_PATH

    def at(self, path: str) -> Path:
        """Returns the real path of a path on the machine. Follows links of parent directories inside the root, but
        not the last component.
        """
        if self.root == ROOT_PATH:
            return Path(path)
        root = resolved = str(self.root)
        parts, links = [part for part in path.split("/") if part], 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                resolved = resolved.rpartition("/")[0] if resolved != root else resolved
            elif parts and (target := _target(f"{resolved}/{part}")):
                links += 1
                if links > MAX_SYMLINKS:
                    raise OSError(errno.ELOOP, "Too many links", path)
                resolved = root if target.startswith("/") else resolved
                parts = [*(each for each in target.split("/") if each and each != "."), *parts]
            elif part != ".":
                resolved = f"{resolved}/{part}"
        return Path(resolved)

    def _followed(self, path: str) -> Path:
        current = self.at(path)
        for _ in range(MAX_SYMLINKS):
            if self.root == ROOT_PATH or not current.is_symlink():
                return current
            target = str(current.readlink())
            inside = "/" + str(current.parent.relative_to(self.root))
            current = self.at(target if target.startswith("/") else f"{inside}/{target}")
        raise OSError(errno.ELOOP, "Too many links", path)

    def read(self, path: str) -> bytes | None:
        try:
            with FileIO(path if self.root == ROOT_PATH else self._followed(path)) as file:
                return file.readall()
        except MISSING:
            return None
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EINVAL, errno.EIO, errno.ENODEV, errno.ESRCH}:
                return None  # a loop of links, or a kernel file that cannot be read, also of a process that has ended
            raise

    def digest(self, path: str) -> str:
        total = hashlib.sha256()
        block = memoryview(bytearray(1 << 20))
        with contextlib.suppress(*MISSING), _ignore_link_loop(), self._followed(path).open("rb", buffering=0) as file:
            while count := file.readinto(block):
                total.update(block[:count])
            return total.hexdigest()
        return ""

    def look(self, path: str) -> FileEntry | None:
        # The daemon checks hundreds of paths repeatedly, and strings are cheaper than Path objects.
        try:
            real_path = path if self.root == ROOT_PATH else str(self.at(path))
            found = os.lstat(real_path)
            target = _target(real_path) if stat.S_ISLNK(found.st_mode) else ""
        except MISSING:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None  # below a loop of links
            raise
        kind = next((kind for test, kind in KINDS if test(found.st_mode)), EntryKind.OTHER)
        mode = stat.S_IMODE(found.st_mode)
        return FileEntry(kind, mode, found.st_uid, found.st_gid, found.st_size, target, found.st_ctime_ns)

    def names(self, path: str) -> tuple[str, ...]:
        with contextlib.suppress(*MISSING), _ignore_link_loop():
            return tuple(sorted(entry.name for entry in self._followed(path).iterdir()))
        return ()

    def do(self, action: FileAction) -> None:
        try:
            self._do(action)
        except OSError as error:
            raise _explained(error, str(action)) from error

    def _do(self, action: FileAction) -> None:
        match action:
            case MakeDirectory(path, mode):
                self._make_directory(self.at(path), mode)
            case WriteFile(path, content, mode):
                file = self.at(path)
                new = temporary_path(file)
                new.unlink(missing_ok=True)
                atomic_file.write(file, content, mode, temporary=new)
            case MakeLink(path, target):
                link = self.at(path)
                new = temporary_path(link)
                new.unlink(missing_ok=True)
                new.symlink_to(target)
                new.replace(link)
            case Remove(path) | RemoveTree(path):
                with _ignore_link_loop():  # nothing can be below it
                    self._remove(path) if isinstance(action, Remove) else self._remove_tree(path)
            case SetAside(path):
                self._set_aside(path)
            case PlaceTree(source, path):
                self._place(self.at(source), path)

    def _make_directory(self, path: Path, mode: int) -> None:
        if path.is_symlink() and not path.is_dir() and self.root == ROOT_PATH:
            raise OSError(errno.ENOTDIR, f"it is a link to {path.readlink()}, which is not a directory")
        path.mkdir(mode=mode, exist_ok=True)
        found = path.stat()
        if (found.st_uid, found.st_gid) != (0, 0) and os.geteuid() == 0:  # otherwise it is a test
            os.chown(path, 0, 0)
        if stat.S_IMODE(found.st_mode) != mode:
            path.chmod(mode)

    def _remove(self, path: str) -> None:
        target = self.at(path)
        with contextlib.suppress(NotADirectoryError):
            temporary_path(target).unlink(missing_ok=True)
        if target.is_dir() and not target.is_symlink():
            if not _mounted_below(target):
                with contextlib.suppress(FileNotFoundError):
                    try:
                        target.rmdir()
                    except OSError as error:
                        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                            raise  # other content is not removed
            return
        with contextlib.suppress(NotADirectoryError):
            target.unlink(missing_ok=True)

    def _remove_tree(self, path: str) -> None:
        target = self.at(path)
        if target.is_symlink() or not target.is_dir():
            return self._remove(path)
        _require_no_mounts(path, target, "removed")
        shutil.rmtree(target)
        return None

    def _set_aside(self, path: str) -> None:
        target, aside = self.at(path), aside_path(path)
        if not os.path.lexists(target):
            return
        _require_no_mounts(path, target, "moved")
        self._remove(aside)
        if os.path.lexists(self.at(aside)):
            raise aside_occupied_error(path)
        if target.is_file() and not target.is_symlink():
            target.chmod(0o600)  # it may contain a part of a secret
        target.rename(self.at(aside))

    def _place(self, source: Path, path: str) -> None:
        target = self.at(path)
        old = backup_path(target)
        if source.exists():
            if os.path.lexists(target):
                _remove_any(old)
                target.rename(old)
            source.rename(target)
        _remove_any(old)


def aside_occupied_error(path: str) -> MachineError:
    aside = aside_path(path)
    return MachineError(
        "file-access-failed",
        f"{path} was not moved: {aside} is a directory with files.",
        f"Move {aside} to another place, then run the same command again.",
    )


def _mounted_below(path: Path) -> list[str]:
    """Returns the mounts at or below a path. The kernel lists them without links."""
    return mounts.mounts_below(mounts.current_mounts(), str(path.parent.resolve() / path.name))


def _require_no_mounts(path: str, target: Path, done: str) -> None:
    if mounted := _mounted_below(target):
        raise MachineError(
            "mount-below-path",
            f"{path} was not {done}: {', '.join(mounted[:3])} is still mounted.",
            "Unmount it, then run the same command again.",
        )


@contextlib.contextmanager
def _ignore_link_loop() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise


def _target(path: str) -> str:
    """Returns the target of a link, or an empty string if the path is not a link."""
    try:
        return os.readlink(path)  # noqa: PTH115 - asked for every part of every path
    except OSError:
        return ""


def _remove_any(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _explained(error: OSError, doing: str) -> MachineError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return MachineError(
            "disk-full",
            f"The disk is full: could not {doing}.",
            "Free space on this file system, then run the same command again. It continues where it stopped.",
        )
    if error.errno == errno.EROFS:
        return MachineError(
            "filesystem-read-only",
            f"The file system is read-only: could not {doing}.",
            "Mount it writable, then run the same command again.",
        )
    if error.errno == errno.EPERM and error.filename:  # root may do everything else
        filename = error.filename2 or error.filename  # the second one is what a rename replaces
        return MachineError(
            "file-access-failed",
            f"Could not {doing}: {filename} may be immutable: {error.strerror}.",
            "Check it and its directory with `lsattr -d`, and permit changes with `chattr -i`. "
            "Then run the same command again.",
        )
    return MachineError(
        "file-access-failed",
        f"Could not {doing}: {error.strerror or error}.",
        "Check the path, its owner and its mode, then run the same command again.",
    )
