"""Tests of secret arguments, with real processes."""

from __future__ import annotations

import subprocess
import sys

from aks_flex_node.agent.argument_eraser import erase_argument
from aks_flex_node.api.node_summary import join_command

URL = "https://rp.example:8443/configs/canary-5f1e#ca=sha256:00"
PROGRAM = (
    "import sys, pathlib; from aks_flex_node.agent.argument_eraser import erase_argument;"
    "print(erase_argument(sys.argv[2])); print(pathlib.Path('/proc/self/cmdline').read_bytes()); print(sys.argv[2])"
)


def test_url_in_arguments_is_hidden_from_other_users() -> None:
    """Attack: another user of the machine reads /proc/PID/cmdline."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--config-url", URL, "after"], check=True, capture_output=True, text=True
    )

    erased, shown, kept = done.stdout.splitlines()
    assert erased == "True"
    assert "canary" not in shown
    assert "--config-url" in shown
    assert "after" in shown
    assert kept == URL, "the program itself still has it"


def test_argument_that_is_not_there_is_reported() -> None:
    assert not erase_argument("no such argument of this process: " + "x" * 20)
    assert not erase_argument("")


def test_join_line_passes_the_url_in_standard_input() -> None:
    """Attack: sudo logs the arguments of the command, and all users see them."""
    fake = 'aks-flex-node() { echo "$@"; cat; }; '
    done = subprocess.run(["bash", "-c", fake + join_command(URL)], check=True, capture_output=True, text=True)

    assert done.stdout == f"agent --config-url-file -\n{URL}\n"
