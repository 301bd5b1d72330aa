"""Tests of QEMU's command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import HostError
from aks_flex_lab.machines import qemu
from aks_flex_lab.machines.command_channel import PORTS
from aks_flex_lab.machines.qemu import VirtualHardware


def hardware(
    arch: Architecture = Architecture.AMD64, accelerator: str = qemu.EMULATION, tap: str = ""
) -> VirtualHardware:
    folder = Path("/lab/machines/edge-1")
    return VirtualHardware(folder, arch, Path("/base/vmlinuz"), Path("/base/initrd.img"), accelerator, tap, "02:00")


def test_disk_keeps_writes_in_a_cache_until_they_are_flushed() -> None:
    argv = hardware().disk_server()

    # The outer filter has the cache; flushes need not reach the disk of the host.
    assert argv.index("--filter=cache") < argv.index("--filter=fua")
    assert argv[argv.index("file") :] == [
        "file",
        "/lab/machines/edge-1/disk.img",
        "cache=writeback",
        "fuamode=discard",
    ]
    assert "nbd,node-name=disk,server.type=unix,server.path=/lab/machines/edge-1/disk.sock" in hardware().qemu()


@pytest.mark.parametrize(
    ("arch", "program", "board", "console"),
    [
        (Architecture.AMD64, "qemu-system-x86_64", "q35", "ttyS0"),
        (Architecture.ARM64, "qemu-system-aarch64", "virt", "ttyAMA0"),
    ],
)
def test_machine_has_the_board_of_its_architecture(
    arch: Architecture, program: str, board: str, console: str
) -> None:
    argv = hardware(arch).qemu()

    assert argv[0] == program
    assert argv[argv.index("-machine") + 1] == board
    assert f"console={console}" in argv[argv.index("-append") + 1].split()
    assert sum(word.startswith("virtserialport,") for word in argv) == PORTS


def test_machine_without_tap_device_has_no_network() -> None:
    assert "-netdev" not in hardware().qemu()
    assert "tap,id=net,ifname=port10,script=no,downscript=no" in hardware(tap="port10").qemu()


def test_kvm_is_used_only_when_it_works() -> None:
    assert "tcg,thread=multi" in hardware().qemu()
    assert "kvm" in hardware(accelerator=qemu.VIRTUALIZATION).qemu()


def test_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(HostError, match="qemu-system-arm, nbdkit, e2fsprogs") as refused:
        qemu.require_programs(Architecture.ARM64)
    assert refused.value.name == "program-not-found"
