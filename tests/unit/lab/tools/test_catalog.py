"""Tests of the tool catalog: complete, pinned, and searchable by name."""

from __future__ import annotations

import re

import pytest

from aks_flex_lab.demo import DEMO_TOOLS
from aks_flex_lab.errors import UsageError
from aks_flex_lab.tools import catalog, recipes
from aks_flex_lab.versions import NodeVersions


@pytest.mark.parametrize("tool", catalog.TOOLS, ids=lambda tool: tool.title)
def test_go_module_of_tool_requires_its_version_and_imports_commands(tool: recipes.GoTool) -> None:
    go_mod = (tool.recipe.directory / "go.mod").read_text()
    sources = "".join(path.read_text() for path in tool.recipe.directory.glob("*.go"))
    if tool.recipe.module == tool.name:  # written for the lab
        assert "func main()" in sources
        return
    assert re.search(rf"^require \S+ v{re.escape(tool.version)}$", go_mod, re.MULTILINE)
    assert (tool.recipe.directory / "go.sum").exists()
    for command in tool.commands:
        own = command.package.startswith("flexlab/")
        assert ("func main()" if own else f'_ "{command.package}"\n') in sources


@pytest.mark.parametrize("tool", catalog.TOOLS, ids=lambda tool: tool.title)
def test_every_tool_has_a_version_check_for_its_exact_version(tool: recipes.GoTool) -> None:
    assert re.fullmatch(r"\d+(\.\d+){1,2}", tool.version)
    assert tool.version_text.endswith(tool.version)
    # The sample API server cannot print its version, which its module pins.
    assert tool.name == "sample-apiserver" or any(command.ask is not None for command in tool.commands)


@pytest.mark.parametrize("tool", catalog.TOOLS, ids=lambda tool: tool.title)
def test_release_files_contain_every_command_of_the_tool(tool: recipes.GoTool) -> None:
    if tool.release:
        released = {command for file in tool.release for command in file.commands}
        assert released == {command.name for command in tool.commands}
        assert all(file.checksums for file in tool.release)
        assert {folder for file in tool.release for folder in file.folders} == {f for _, f in tool.recipe.folders}


def test_go_module_files_contain_no_urls() -> None:
    for path in recipes.MODULES.rglob("*"):
        if path.is_file():
            assert not re.search(r"https?://", path.read_text()), path


def test_default_tool_version_is_the_newest() -> None:
    for name in {tool.name for tool in catalog.TOOLS}:
        known = [[int(part) for part in tool.version.split(".")] for tool in catalog.TOOLS if tool.name == name]
        assert known[0] == max(known), name


def test_select_tools_accepts_name_or_name_with_version() -> None:
    assert [tool.title for tool in catalog.select_tools(["runc", "kubernetes@1.35.4", "runc@1.4.0"])] == [
        "runc 1.5.2",
        "runc 1.4.0",
        "kubernetes 1.35.4",
    ]


def test_tools_on_demand_are_selected_only_with_their_version() -> None:
    on_demand = [tool for tool in catalog.TOOLS if tool.on_demand]
    assert [tool.title for tool in on_demand] == [
        "kubernetes 1.34.4",
        "kubernetes 1.33.13",
        "podnet 1.0",
        "etcd 3.6.8",
        "coredns 1.15.0",
        "sample-apiserver 0.29.2",
        "kubernetes-e2e 1.36.3",
    ]
    assert set(catalog.ALL_TOOLS) - set(catalog.select_tools()) == set(on_demand)
    assert [tool.version for tool in catalog.select_tools(["kubernetes"])] == ["1.36.3", "1.35.4"]
    assert [tool.version for tool in catalog.select_tools(["kubernetes@1.33.13"])] == ["1.33.13"]


def test_default_build_has_one_control_plane_and_two_minor_versions() -> None:
    built = [tool for tool in catalog.select_tools(["kubernetes"]) if isinstance(tool, recipes.GoTool)]
    servers = [tool.version for tool in built if "kube-apiserver" in {command.name for command in tool.commands}]
    assert (len(built), servers) == (2, [NodeVersions().kubernetes])


def test_demo_runs_fewer_tools_than_the_tests() -> None:
    """What only tests run need not be built before the first demo."""
    demo = catalog.select_tools((*catalog.LAB_TOOLS, *DEMO_TOOLS))
    others = [tool.title for tool in catalog.select_tools(catalog.suite_tools()) if tool not in demo]
    pythons = [tool.title for tool in catalog.PYTHON_TOOLS]
    assert others == [*pythons, "cni-plugins 1.7.1", "kube-proxy 1.36.3", "kube-proxy 1.35.4"]
    assert set(catalog.select_tools(catalog.suite_tools())) == set(catalog.select_tools())


def test_builds_that_take_minutes_have_a_measured_duration() -> None:
    assert set(catalog.BUILD_MINUTES) <= {tool.title for tool in catalog.TOOLS}
    assert {tool.title for tool in catalog.TOOLS if tool.recipe.megabytes >= 400} <= set(catalog.BUILD_MINUTES)


def test_unknown_tool_or_version_error_lists_known_ones() -> None:
    with pytest.raises(UsageError, match="has no tool 'kubelet'") as unknown:
        catalog.find_tool("kubelet")
    assert "kubernetes" in unknown.value.hint
    with pytest.raises(UsageError, match=r"runc 1\.0 is not in the catalog") as version:
        catalog.select_tools(["runc@1.0"])
    assert version.value.hint == "The catalog has 1.5.2, 1.4.0."
