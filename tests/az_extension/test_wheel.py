"""Tests of the wheel of `az aks flex-node`: no dependencies besides az, and all shared modules included."""

from __future__ import annotations

import ast
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from aks_flex_node.api import (
    allow_lists,
    audiences,
    contract,
    documents,
    enrolments,
    node_changes,
    node_summary,
    rollout_options,
    rollout_summary,
    table_rows,
)
from tests.azure_cli import build_extension

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = {
    "azext_aks_flex_node/vendored/allow_lists.py": allow_lists.__file__,
    "azext_aks_flex_node/vendored/audiences.py": audiences.__file__,
    "azext_aks_flex_node/vendored/contract.py": contract.__file__,
    "azext_aks_flex_node/vendored/documents.py": documents.__file__,
    "azext_aks_flex_node/vendored/enrolments.py": enrolments.__file__,
    "azext_aks_flex_node/vendored/node_changes.py": node_changes.__file__,
    "azext_aks_flex_node/vendored/node_summary.py": node_summary.__file__,
    "azext_aks_flex_node/vendored/rollout_options.py": rollout_options.__file__,
    "azext_aks_flex_node/vendored/rollout_options.json": str(Path(rollout_options.__file__).with_suffix(".json")),
    "azext_aks_flex_node/vendored/rollout_summary.py": rollout_summary.__file__,
    "azext_aks_flex_node/vendored/table_rows.py": table_rows.__file__,
    "azext_aks_flex_node/vendored/settings.json": str(Path(node_changes.__file__).with_name("settings.json")),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    with ZipFile(build_extension(tmp_path_factory.mktemp("wheel"))) as wheel:
        yield wheel


@pytest.mark.parametrize("name", SHARED)
def test_wheel_vendors_shared_files_unchanged(wheel: ZipFile, name: str) -> None:
    assert wheel.read(name) == Path(SHARED[name]).read_bytes()


def test_wheel_imports_no_module_of_the_agent_or_provider(wheel: ZipFile) -> None:
    """They are not installed beside az: one such import, and az loads none of the commands."""
    sources = [ast.parse(wheel.read(name)) for name in wheel.namelist() if name.endswith(".py")]
    imported = {
        name.partition(".")[0]
        for each in (node for source in sources for node in ast.walk(source))
        for name in _imported_names(each)
    }
    assert imported
    assert not {name for name in imported if name.startswith("aks_flex")}


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def test_wheel_has_no_dependencies(wheel: ZipFile) -> None:
    [metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]

    assert "Requires-Dist" not in Parser().parsestr(wheel.read(metadata).decode())


def test_wheel_contains_no_symlinks(wheel: ZipFile) -> None:
    """A symlink would point outside the wheel."""
    assert {info.external_attr >> 28 for info in wheel.infolist()} <= {0, 0o10}
