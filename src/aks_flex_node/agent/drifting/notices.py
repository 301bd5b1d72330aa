"""The kernel's own notices about directories (inotify), by way of the C library: three calls, and records to read."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOSE_WRITE, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x8, 0x4, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, UNMOUNT, OVERFLOW, IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
ONLY_DIRECTORY, AND_MORE = 0x1000000, 0x20000000
COMING, GOING = MOVED_TO | CREATE, MOVED_FROM | DELETE
COMING_AND_GOING = COMING | GOING | DELETE_SELF | MOVE_SELF
EVERYTHING = COMING_AND_GOING | CLOSE_WRITE | ATTRIB
LOST = DELETE_SELF | MOVE_SELF | UNMOUNT | IGNORED  # the directory is not at its path any more
HEADER = struct.Struct("iIII")
BLOCK = 1 << 16


@dataclass(frozen=True)
class Notice:
    watch: int
    mask: int
    name: str  # nothing when it is about the directory itself


def opened() -> int:
    """A descriptor to read notices from."""
    return _checked(_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")


def watched(descriptor: int, path: str, mask: int) -> int:
    """Ask for notices about a directory; by the number that comes back they are known.

    A directory that is reached by two paths has one number, and is watched for what both want.
    """
    wanted = mask | ONLY_DIRECTORY | AND_MORE
    return _checked(_library().inotify_add_watch(descriptor, os.fsencode(path), wanted), path)


def unwatched(descriptor: int, watch: int) -> None:
    _library().inotify_rm_watch(descriptor, watch)  # one that is gone by itself is gone


def taken(descriptor: int) -> Iterator[Notice]:
    """All notices that are there now."""
    while True:
        try:
            block = os.read(descriptor, BLOCK)
        except BlockingIOError:
            return
        yield from parsed(block)


def parsed(block: bytes) -> Iterator[Notice]:
    at = 0
    while at < len(block):
        watch, mask, _, length = HEADER.unpack_from(block, at)
        at += HEADER.size
        yield Notice(watch, mask, os.fsdecode(block[at : at + length].rstrip(b"\0")))
        at += length


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, about: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), about)
    return result
