"""Tests of the daemon's memory: it must be small, because the machine's memory is for pods."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# All that `aks-flex-node daemon` imports until its controller runs.
PROGRAM = """
import json, sys
from aks_flex_node.agent.cli import internal_commands
from aks_flex_node.agent.daemon import controller, systemd_notifier
from aks_flex_node.agent.managed_node import open_managed_node

systemd_notifier.SystemdNotifier()
print(json.dumps(sorted(sys.modules)))
"""
HEAVY = (
    *("pydantic", "pydantic_core", "rich", "typer", "yaml", "urllib3", "requests", "azure", "msal"),
    *("asyncio", "cryptography", "email", "http.server", "isal", "tarfile"),
)


@pytest.fixture(scope="module")
def imported() -> frozenset[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True)
    return frozenset(json.loads(done.stdout))


@pytest.mark.parametrize("name", HEAVY)
def test_daemon_imports_nothing_heavy(imported: frozenset[str], name: str) -> None:
    assert not [each for each in imported if each == name or each.startswith(f"{name}.")]


def test_daemon_imports_its_controller_and_its_configuration(imported: frozenset[str]) -> None:
    assert {"aks_flex_node.agent.daemon.controller", "aks_flex_node.agent.config.loader", "msgspec"} <= imported
