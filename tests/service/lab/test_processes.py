"""Tests of how the lab starts processes."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from aks_flex_lab import processes
from aks_flex_lab.errors import LabError


def test_command_of_a_failure_can_be_pasted_into_a_shell() -> None:
    with pytest.raises(LabError) as caught:
        processes.run("sh", "-c", 'echo "it is $NAME" >&2; exit 3', env={"NAME": "a b"})
    shown = caught.value.message.split("`")[1]
    repeated = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=False)
    assert (repeated.returncode, repeated.stderr) == (3, "it is a b\n")
    assert shlex.split(shown)[:2] == ["env", "NAME=a b"]
