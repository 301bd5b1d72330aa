"""Checks that every condition and every reason in the code is documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scripts.reference.names import names_page

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
WORD = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
# The arguments that are visible names: type and reason of a condition, reason of a result.
NAMES = {"condition": (0, 1), "_condition": (0, 2), "_cause": (1,), "_result": (1,), "JobResult": (2,)}
PACKAGES = (
    *("aks_flex_node/agent/daemon", "aks_flex_node/agent/jobs", "aks_flex_node/agent/drift"),
    *("aks_flex_rp/resource", "aks_flex_rp/nodes"),
)
FILES = sorted(file for package in PACKAGES for file in (SOURCES / package).rglob("*.py"))


def words_in(node: ast.AST) -> set[str]:
    found = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return {each for each in found if WORD.fullmatch(each)}


def names_in(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for place in NAMES.get(node.func.id, ()):
                found |= words_in(node.args[place]) if place < len(node.args) else set()
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found |= {name for key, value in pairs if is_reason(key) for name in words_in(value)}
        elif isinstance(node, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id in {"REASONS", "CONDITION_REASONS"} for to in node.targets
        ):
            found |= words_in(node.value)
    return found


def is_reason(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "reason"


def test_every_condition_and_reason_is_documented() -> None:
    names = set().union(*(names_in(ast.parse(file.read_text())) for file in FILES))

    assert {"Ready", "NodeNotReporting", "DrainTimedOut", "MaintenanceWindowClosed", "NoFailure"} <= names
    page = names_page()
    headings = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    assert sorted(name for name in names if f"`{name}`" not in page and name not in headings) == []
