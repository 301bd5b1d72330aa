"""Tests of reading files that the kernel refuses to read."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.host import disk
from aks_flex_node.host.real import RootedHost

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EIO, errno.EINVAL])
def test_kernel_file_that_cannot_be_read_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_path: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, "FileIO", refuse)
    assert RootedHost(tmp_path).read("/proc/1/environ") is None


def test_other_errors_of_reading_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(disk, "FileIO", refuse)
    with pytest.raises(PermissionError):
        RootedHost(tmp_path).read("/etc/shadow")
