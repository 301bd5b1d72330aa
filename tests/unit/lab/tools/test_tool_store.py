"""Tests of the tool store: a tool's directory name depends on all its inputs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.tools import catalog
from aks_flex_lab.tools.tool_store import recipe_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.tools.recipes import BuildRecipe, GoTool

RUNC = next(tool for tool in catalog.TOOLS if tool.name == "runc")


def with_recipe(**changes: object) -> Callable[[GoTool], GoTool]:
    def change(tool: GoTool) -> GoTool:
        recipe: BuildRecipe = dataclasses.replace(tool.recipe, **changes)  # type: ignore[arg-type]
        return dataclasses.replace(tool, recipe=recipe)

    return change


CHANGES: dict[str, Callable[[GoTool], GoTool]] = {
    "version": lambda tool: dataclasses.replace(tool, version="9.9.9"),
    "stamp": with_recipe(stamps=("main.version=other",)),
    "tags": with_recipe(tags=("seccomp",)),
    "cgo": with_recipe(cgo=False),
    "folders": with_recipe(folders=(("module", "folder"),)),
    "commands": lambda tool: dataclasses.replace(tool, commands=()),
    "release": lambda tool: dataclasses.replace(tool, release=()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_recipe_key_changes_with_recipe(change: Callable[[GoTool], GoTool]) -> None:
    assert recipe_key(change(RUNC), "amd64") != recipe_key(RUNC, "amd64")


def test_recipe_key_changes_with_architecture_and_is_deterministic() -> None:
    assert recipe_key(RUNC, "amd64") != recipe_key(RUNC, "arm64")
    assert recipe_key(RUNC, "amd64") == recipe_key(dataclasses.replace(RUNC), "amd64")


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "commands.go"])
def test_recipe_key_changes_with_each_go_module_file(tmp_path: Path, name: str) -> None:
    for source in RUNC.recipe.directory.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    copied = with_recipe(module=str(tmp_path))(RUNC)
    assert recipe_key(copied, "amd64") == recipe_key(RUNC, "amd64")
    with (tmp_path / name).open("a") as file:
        file.write("// another line\n")
    assert recipe_key(copied, "amd64") != recipe_key(RUNC, "amd64")


def test_recipe_key_ignores_build_requirements() -> None:
    assert recipe_key(with_recipe(megabytes=1, requirements=())(RUNC), "amd64") == recipe_key(RUNC, "amd64")
