"""The page that maps the commands of the original README, and the commands that it says still work."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from aks_flex_node.agent.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/original-commands.md"
COMMANDS = (  # in the order of the original README, without options
    "aks-flex-node arc register",
    "aks-flex-node arc status",
    "aks-flex-node bootstrap-vpn",
    "aks-flex-node bootstrap-node",
    "aks-flex-node reset",
    "aks-flex-node version",
    "aks-flex-node status",
    "aks-flex-node health",
)
OTHERS = (
    "az login",
    "azcmagent show",
    "make build",
    "sudo make install",
    "sudo systemctl enable aks-flex-node",
    "sudo systemctl status aks-flex-node",
    "sudo systemctl stop aks-flex-node",
    "sudo journalctl -u aks-flex-node -f",
    "sudo cp new-aks-flex-node /usr/local/bin/",
    "sudo systemctl start aks-flex-node",
)


@pytest.mark.parametrize("command", [*COMMANDS, *OTHERS])
def test_page_maps_every_command_of_the_original_readme(command: str) -> None:
    assert command in PAGE.read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_original_readme_exists(command: str) -> None:
    found = get_command(app)
    for name in command.split()[1:]:
        found = found.commands[name]  # type: ignore[attr-defined]
    assert found.help


@pytest.mark.parametrize("target", ["build", "install", "uninstall"])
def test_make_target_of_the_original_readme_exists(target: str) -> None:
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()
