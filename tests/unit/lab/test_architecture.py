"""Tests of the names of architectures, and of what depends on the architecture of a machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import ToolError
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.machines.inventory import load_machine, machine_of
from aks_flex_lab.machines.machine import MachineRecord
from aks_flex_lab.node_agent import tree_name

if TYPE_CHECKING:
    from pathlib import Path


def record(arch: Architecture | None) -> MachineRecord:
    return MachineRecord("edge-1", DebianRelease.TRIXIE, "site-1", 10, "198.18.10.10", arch=arch)


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", Architecture.AMD64), ("aarch64", Architecture.ARM64)])
def test_architecture_of_host_is_native(monkeypatch: pytest.MonkeyPatch, machine: str, arch: Architecture) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)

    assert Architecture.of_host() is arch
    assert [one for one in Architecture if one.is_native] == [arch]


def test_unsupported_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")

    with pytest.raises(ToolError, match="riscv64"):
        Architecture.of_host()


@pytest.mark.parametrize(("arch", "text"), [(None, ""), (Architecture.ARM64, "arm64")])
def test_record_of_machine_is_read_as_it_was_saved(tmp_path: Path, arch: Architecture | None, text: str) -> None:
    layout = LabLayout("test", tmp_path, tmp_path)
    machine = machine_of(layout, record(arch))

    machine.save()

    assert json.loads((machine.directory / "machine.json").read_text())["arch"] == text
    assert load_machine(layout, "edge-1") == machine


@pytest.mark.parametrize(
    ("host", "arch", "name"),
    [
        ("x86_64", Architecture.AMD64, "trixie"),
        ("x86_64", Architecture.ARM64, "trixie-aarch64"),
    ],
)
def test_agent_tree_is_named_after_a_foreign_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, arch: Architecture | None, name: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: host)

    assert tree_name(machine_of(LabLayout("test", tmp_path, tmp_path), record(arch))) == name
