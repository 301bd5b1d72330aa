"""Tests of the registration of programs of another architecture."""

from __future__ import annotations

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.machines.binfmt import ELF_MASK, registration_line


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
