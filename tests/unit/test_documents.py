"""What the documents promise is there, and nothing of one machine stands in the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from aks_flex_lab.host_requirements import REQUIRED_PROGRAMS
from aks_flex_node.agent.provider.poll_result import ProviderState

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ERRORS = {
    *("LabError", "UsageError", "HostError", "ToolError", "ComponentError"),
    *(
        "FlexError",
        "CommandUsageError",
        "ConfigError",
        "InvalidConfigError",
        "MachineError",
        "ArtifactError",
        "ClusterError",
    ),
    *("BusyError", "AzureCallError", "StoreError", "ServiceUnreachable"),
}
KEBAB = re.compile(r"[a-z]+(-[a-z]+)+")


def error_names() -> set[str]:
    """The name of every error that the code can raise."""
    names = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            first = node.args[0]
            if isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                assert isinstance(first, ast.Constant), f"{source}:{node.lineno}: an error's name is a plain string"
                names.add(str(first.value))
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
                # An error of its own class names itself.
                own = str(first.value) if isinstance(first, ast.Constant) else ""
                names |= {own} if KEBAB.fullmatch(own) else set()
    return names


def test_every_error_can_be_looked_up_by_its_name() -> None:
    headings = re.findall(r"^### ([a-z0-9-]+)$", (ROOT / "docs/how-to/troubleshoot.md").read_text(), re.MULTILINE)

    assert sorted(error_names()) == sorted(headings)


def test_every_state_of_the_agent_that_stays_can_be_looked_up() -> None:
    headings = set(re.findall(r"^### ([A-Z]\w+)$", (ROOT / "docs/how-to/troubleshoot.md").read_text(), re.MULTILINE))

    assert {each.value for each in ProviderState} <= headings


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_setup_installs_every_program_that_the_lab_asks_for() -> None:
    packages = {line for line in (ROOT / "scripts/packages").read_text().splitlines() if not line.startswith("#")}

    assert set(REQUIRED_PROGRAMS.values()) <= packages


def test_the_makefile_has_every_target_that_is_promised() -> None:
    makefile = (ROOT / "Makefile").read_text()

    for target in ("help", "setup", "try", "test", "test-unit", "test-long", "lint", "bench", "clean"):
        assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE), target


def test_requirements_are_pinned_by_hash_and_name_no_address() -> None:
    for file in (ROOT / "requirements").glob("*.txt"):
        text = file.read_text()
        pins = re.findall(r"^[a-z0-9_.-]+(?:\[[a-z,]+\])?==", text, re.MULTILINE | re.IGNORECASE)

        assert pins
        assert len(pins) <= text.count("--hash=sha256:")
        assert "://" not in text
