"""Tests of the command `aks-flex-node` as a process: exit codes and pipes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import settings

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = [sys.executable, "-c", "from aks_flex_node.agent.cli import main; main()"]


def test_verify_says_when_the_machine_is_not_a_node(tmp_path: Path) -> None:
    """Also with a configuration file: differences of a machine that never joined are no drift."""
    file = tmp_path / "config.yaml"
    file.touch(mode=0o600)
    file.write_text(settings({**JOIN, "paths.dataDir": f"{tmp_path}/data"}))
    found = subprocess.run(
        [*PROGRAM, "verify", "--config", file],
        capture_output=True,
        text=True,
        check=False,
    )
    if os.geteuid() == 0:
        assert found.returncode == 4
        assert "machine-not-joined" in found.stderr
    else:
        assert "root-required" in found.stderr


def test_output_into_a_closed_pipe_is_silent() -> None:
    command = shlex.join([*PROGRAM, "explain", "--json"])
    found = subprocess.run(["sh", "-c", f"{command} | head -c 1"], capture_output=True, text=True, check=False)
    assert found.stderr == ""
