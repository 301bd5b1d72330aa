"""Tests of Python tools: pinned by hash, for the right Python, complete or absent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import ToolError
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.node_agent import PYTHONS
from aks_flex_lab.tools import catalog, python_tools
from aks_flex_lab.tools.python_tools import PythonTool
from aks_flex_lab.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from pathlib import Path

AZ = catalog.PYTHON_TOOLS[0]


@pytest.mark.parametrize("tool", catalog.PYTHON_TOOLS, ids=lambda tool: tool.title)
def test_python_requirements_are_pinned_by_hash_and_contain_no_urls(tool: PythonTool) -> None:
    text = tool.requirements.read_text()
    pins = re.findall(r"^[a-z0-9_.-]+(?:\[[a-z,]+\])?==", text, re.MULTILINE | re.IGNORECASE)
    assert f"{tool.name}=={tool.release} " in text
    assert len(pins) <= text.count("--hash=sha256:")
    assert "://" not in text


def test_azure_cli_is_cataloged_for_lab_and_machine_pythons() -> None:
    assert {tool.python for tool in catalog.PYTHON_TOOLS} == {
        python_tools.OWN_PYTHON,
        PYTHONS[DebianRelease.BOOKWORM],
    }
    assert catalog.find_tool("azure-cli") == AZ
    assert AZ.python == python_tools.OWN_PYTHON


def test_install_command_requires_hashes_and_binary_wheels(tmp_path: Path) -> None:
    words = python_tools.install_command(AZ, tmp_path)
    assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(words)
    assert words[words.index("--python-version") + 1] == AZ.python


def test_python_tool_uses_interpreter_of_its_python_version(tmp_path: Path) -> None:
    other = PythonTool("azure-cli", AZ.release, "azure.cli", ("az",), ("version",), python="3.9")
    assert python_tools.pythons(other) == ["/usr/bin/python3.9", "python3.9"]
    assert len(python_tools.pythons(AZ)) == 3


def test_python_tool_is_found_only_when_installed(tmp_path: Path) -> None:
    box = Toolbox(tmp_path, "amd64", (AZ,))
    with pytest.raises(ToolError) as missing:
        box.path("azure-cli", "az")
    assert missing.value.name == "tool-missing"
    place = box.python_tool_directory(AZ).path
    place.mkdir(parents=True)
    (place / "az").write_text("az")
    assert box.path("azure-cli", "az") == place / "az"
    assert box.is_ready(AZ)
