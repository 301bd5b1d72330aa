"""What the programs import at their start. An import that a command does not need is CPU time of every command."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.cli.cli_harness import Person

if TYPE_CHECKING:
    from pathlib import Path

LIBRARIES = "aiohttp asyncio asyncpg cryptography httpx jwt msgspec pydantic urllib3 uvicorn yaml".split()
PROBE = """
import sys
from {module} import main
sys.argv = ["program", "{argument}"]
try:
    main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("module", "argument", "own"),
    [
        pytest.param("aks_flex_rp.cli", "--help", {"cli"}, id="provider-help"),
        pytest.param("aks_flex_node.agent.cli", "version", {"agent"}, id="agent-version"),
        pytest.param("aks_flex_node.agent.cli", "--help", {"agent"}, id="agent-help"),
    ],
)
def test_help_and_version_import_no_libraries(module: str, argument: str, own: set[str]) -> None:
    probe = PROBE.format(module=module, argument=argument)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stderr.split())
    assert not loaded.intersection(LIBRARIES)
    ours = {name.split(".")[1] for name in loaded if name.startswith(f"{module.split('.', maxsplit=1)[0]}.")}
    assert ours - {"errors", "version_option"} == own


@pytest.mark.parametrize("command", ["node", "node create", "pool enrolment create"])
def test_help_of_a_group_that_is_imported_later_is_plain(command: str, tmp_path: Path) -> None:
    """Boxes would cut the names of options."""
    shown = Person(tmp_path).does(f"{command} --help").out
    assert shown.lstrip().startswith("Usage: ")
    assert "│" not in shown
