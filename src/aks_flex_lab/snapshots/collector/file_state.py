"""Collects all files of the machine: type, mode, owner, attributes and content hashes.

One thread walks the tree, a few read contents. Times, inode numbers and directory sizes are excluded.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aks_flex_lab.snapshots.collector.exclusions import FILE_CONTENTS, FILE_SYSTEMS, FILES, matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.snapshots.collector.probe import Row, Rows

THREADS = 4
BATCH = 64  # files per task: most are so small that scheduling each would cost more than hashing
BLOCK = 1 << 20
ZEROS = bytes(BLOCK)
BIG = 256 << 20  # for larger files, blocks of zeros are skipped, because the file may be sparse
TRIES = 3
FLAGS_REQUEST = 0x80086601  # FS_IOC_GETFLAGS
FLAGS = {0x10: "immutable", 0x20: "append-only"}
TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


def file_rows(root: str, file_systems: dict[str, str]) -> Rows:
    """Returns rows for all files below `root`; `file_systems` maps mount points to types."""
    rows: Rows = {}
    contents: dict[tuple[int, int], list[str]] = {}
    restless = matcher(FILE_CONTENTS)
    for path, status in walk(root, file_systems):
        rows[path] = describe(path, status)
        if stat.S_ISREG(status.st_mode) and not restless(path):
            # The content of hard links and bind mounts is read only once.
            contents.setdefault((status.st_dev, status.st_ino), []).append(path)
    for paths, content in read_all(list(contents.values())):
        for path in paths:
            rows[path].update(content)
    return rows


def walk(root: str, file_systems: dict[str, str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yields each included path with its status. Files that disappear meanwhile are omitted."""
    ignored, foreign = matcher(FILES), matcher(FILE_SYSTEMS)
    pending = [root]
    yield root, os.lstat(root)
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            path = entry.path
            if ignored(path):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield path, status
            if stat.S_ISDIR(status.st_mode) and not foreign(file_systems.get(path, "")):
                pending.append(path)


def describe(path: str, status: os.stat_result) -> Row:
    """Returns the attributes of a file that can be read without opening it."""
    kind = stat.S_IFMT(status.st_mode)
    row = {
        "type": TYPES.get(kind, oct(kind)),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": f"{status.st_uid}:{status.st_gid}",
    }
    if kind in {stat.S_IFCHR, stat.S_IFBLK}:
        row["device"] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    try:
        if kind == stat.S_IFLNK:
            row["target"] = os.readlink(path)  # noqa: PTH115 - a name need not be text
        for name in os.listxattr(path, follow_symlinks=False):
            row[f"xattr {name}"] = os.getxattr(path, name, follow_symlinks=False).hex()
    except OSError:
        pass  # it was removed meanwhile, or its file system does not support extended attributes
    return row


def read_all(groups: list[list[str]]) -> Iterator[tuple[list[str], Row]]:
    """Reads the contents of many files; each group contains the names of one file."""
    batches = [groups[start : start + BATCH] for start in range(0, len(groups), BATCH)]
    with ThreadPoolExecutor(THREADS) as pool:
        for batch, contents in pool.map(lambda batch: (batch, [file_content(paths[0]) for paths in batch]), batches):
            for index, paths in enumerate(batch):
                yield paths, contents[index]


def file_content(path: str) -> Row:
    """Returns size, hash and flags of a file, or that it changes while it is read."""
    try:
        # O_NONBLOCK, because the file may have been replaced by a FIFO; O_NOATIME, to keep its access time.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOATIME)
    except OSError as error:
        return {"sha256": f"unreadable: {error.strerror}"}
    try:
        return {**file_flags(handle), **stable_content(handle)}
    except OSError as error:
        return {"sha256": f"unreadable: {error.strerror}"}
    finally:
        os.close(handle)


def digest(handle: int, size: int) -> Row:
    return {"sha256 of blocks": sparse_digest(handle)} if size > BIG else {"sha256": plain_digest(handle, size)}


def stable_content(handle: int, look: Callable[[int, int], Row] = digest) -> Row:
    """Reads a file until it does not change meanwhile, with a limited number of attempts."""
    for _ in range(TRIES):
        before = os.fstat(handle)
        seen = look(handle, before.st_size)
        after = os.fstat(handle)
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            return {"size": str(after.st_size), **seen}
    return {"sha256": "changing while it was read"}


def plain_digest(handle: int, size: int) -> str:
    found = hashlib.sha256()
    step = min(size + 1, BLOCK)
    offset = 0
    while True:
        block = os.pread(handle, step, offset)
        if not block:
            return found.hexdigest()
        found.update(block)
        offset += len(block)


def sparse_digest(handle: int) -> str:
    """Returns a hash over the offsets and hashes of non-zero blocks, which is independent of holes."""
    found = hashlib.sha256()
    for offset in data_blocks(handle):
        block = os.pread(handle, BLOCK, offset)
        if block != ZEROS[: len(block)]:
            found.update(offset.to_bytes(8, "big"))
            found.update(block)
    return found.hexdigest()


def data_blocks(handle: int) -> Iterator[int]:
    """Yields the offsets of blocks that contain data."""
    offset = 0
    while True:
        try:
            start = os.lseek(handle, offset, os.SEEK_DATA)
        except OSError:
            return  # only a hole until the end
        end = os.lseek(handle, start, os.SEEK_HOLE)
        offset = max(offset, start - start % BLOCK)
        while offset < end:
            yield offset
            offset += BLOCK


def file_flags(handle: int) -> Row:
    """Returns the flags that prevent even root from changing a file."""
    answer = array.array("L", [0])
    try:
        fcntl.ioctl(handle, FLAGS_REQUEST, answer)
    except OSError:
        return {}  # not supported by every file system
    names = [name for bit, name in FLAGS.items() if answer[0] & bit]
    return {"flags": " ".join(names)} if names else {}
