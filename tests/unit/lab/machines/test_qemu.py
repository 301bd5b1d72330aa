"""Tests of QEMU's command lines."""

from __future__ import annotations

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import HostError
from aks_flex_lab.machines import qemu


def test_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(HostError, match="qemu-system-arm, nbdkit, e2fsprogs") as refused:
        qemu.require_programs(Architecture.ARM64)
    assert refused.value.name == "program-not-found"
