"""Tests of dependencies: each distribution declares its imports, and the pinned requirements contain them."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from release.checkout import DISTRIBUTIONS, HOME, REQUIREMENTS
from release.sbom import normalized_name, pinned_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PINS = {"aks-flex-node": "base.txt", "aks-flex-rp": "rp.txt", "aks-flex-lab": "lab.txt"}
# Packages of several distributions, or of one that is released with the declared one.
DISTRIBUTION_OF = {
    "azure.core": "azure-core",
    "azure.identity": "azure-identity",
    "azure.storage": "azure-storage-blob",
    "pydantic_core": "pydantic",
}


def declared(name: str) -> set[str]:
    project = ProjectMetadata(str(DISTRIBUTIONS[name]), PluginManager())
    return {normalized_name(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in project.core.dependencies}


def nodes_at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a module without what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from nodes_at_run_time(ast.Module(node.orelse, []))
        else:
            yield node
            yield from nodes_at_run_time(node)


def imported(source: Path) -> Iterator[str]:
    for path in source.rglob("*.py"):
        for node in nodes_at_run_time(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module


def distributions_imported(name: str) -> set[str]:
    """Returns the imported distributions of others and of ours, except the package itself."""
    package, by_package = name.replace("-", "_"), packages_distributions()
    found = set()
    for module in imported(HOME / "src" / package):
        top, two = module.partition(".")[0], ".".join(module.split(".")[:2])
        if top not in sys.stdlib_module_names and top != package:
            known = DISTRIBUTION_OF.get(two) or DISTRIBUTION_OF.get(top)
            found.add(known or (top.replace("_", "-") if top.startswith("aks_flex_") else by_package[top][0]))
    return {normalized_name(each) for each in found}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_imported_distribution_is_declared(name: str) -> None:
    assert distributions_imported(name) - declared(name) == set()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_declared_dependency_is_pinned_by_hash(name: str) -> None:
    pinned = pinned_hashes((REQUIREMENTS / PINS[name]).read_text())
    assert declared(name) - set(DISTRIBUTIONS) <= {each for each, _ in pinned}
    assert all(pinned.values())


def test_agent_does_not_depend_on_provider_or_lab() -> None:
    assert not declared("aks-flex-node") & set(DISTRIBUTIONS)
    assert not distributions_imported("aks-flex-node") & set(DISTRIBUTIONS)


def test_requirements_files_name_no_package_source() -> None:
    for path in REQUIREMENTS.glob("*.txt"):
        assert not re.search(r"^--(?!hash)|file:|https?:", path.read_text(), re.MULTILINE), path.name
