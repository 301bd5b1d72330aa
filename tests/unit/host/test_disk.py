"""Tests of reading files that the kernel refuses to read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aks_flex_node.host.real import RootedHost


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EIO, errno.EINVAL])
def test_kernel_file_that_cannot_be_read_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_path: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert RootedHost(tmp_path).read("/proc/1/environ") is None


def test_other_errors_of_reading_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError):
        RootedHost(tmp_path).read("/etc/shadow")
