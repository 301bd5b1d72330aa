"""The first boot of the base system of virtual machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import ToolError
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.machines.virtual_base import (
    ELF_MASK,
    END_ON_KERNEL_FAILURE,
    FIRST_BOOTS,
    VirtualBase,
    registration_line,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class UnreliableBase(VirtualBase):
    boots: list[bool] = field(default_factory=list)  # whether each boot ends with a power-off

    def _boots_and_powers_off(self) -> bool:
        return self.boots.pop(0)


def base(directory: Path, *boots: bool) -> UnreliableBase:
    [other] = [arch for arch in Architecture if not arch.is_native]  # which is always emulated
    made = UnreliableBase(DebianRelease.TRIXIE, directory, other, list(boots))
    made.log.parent.mkdir(parents=True)
    made.log.write_text("smp: Bringing up secondary CPUs ...\n")
    return made


def test_base_system_boots_again_when_its_kernel_fails(tmp_path: Path) -> None:
    made = base(tmp_path, False, True, True)
    made.boot_once()
    assert made.boots == [True]


def test_base_system_that_never_boots_is_an_error_with_the_last_line(tmp_path: Path) -> None:
    made = base(tmp_path, *[False] * (FIRST_BOOTS + 1))
    with pytest.raises(ToolError, match="does not boot: smp: Bringing up secondary CPUs"):
        made.boot_once()
    assert made.boots == [False]


def test_kernel_of_the_first_boot_ends_when_it_fails(tmp_path: Path) -> None:
    argv = base(tmp_path).hardware.qemu(END_ON_KERNEL_FAILURE)
    assert {"panic=-1", "oops=panic"} <= set(argv[argv.index("-append") + 1].split())
    assert "-no-reboot" in argv


def test_registration_matches_executables_of_the_machine() -> None:
    line = registration_line(Architecture.ARM64)

    _, name, kind, offset, magic, mask, program, flags = line.split(":")
    assert (name, kind, offset, program, flags) == (
        "aks-flex-lab-aarch64",
        "M",
        "",
        "/usr/bin/qemu-aarch64-static",
        "F",
    )
    # e_machine is the last number: 183 is AArch64.
    assert magic.endswith("\\x02\\x00\\xb7\\x00")
    assert magic.count("\\x") == mask.count("\\x") == len(ELF_MASK) == 20
    assert len(line) < 256  # the kernel refuses longer ones
