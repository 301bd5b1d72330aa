"""Runs `aks-flex-lab` in this process, for a lab whose layout the test chooses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from aks_flex_lab.cli import app
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aks_flex_lab.layout import LabLayout

ERROR_NAME = re.compile(r"^ +([a-z-]+): run `aks-flex-lab explain \1`", re.MULTILINE)
# Builds runc and pause if the module proxy is set.
FAKE_GO = """case "$1" in
version) echo "go version go99.1 linux/amd64" ;;
build)
    [ "$GOPROXY" = https://proxy.example ] || { echo "go: dial tcp: lookup proxy: no such host"; exit 1; }
    while [ "$1" != -o ]; do shift; done
    touch "$2/runc" "$2/pause" ;;
esac"""


def failure(run: Any, *words: Any, **named: Any) -> FlexError:
    """Returns the error with which a call fails."""
    with pytest.raises(FlexError) as caught:
        run(*words, **named)
    return caught.value


def error_name(text: str) -> str:
    """Returns the name of the error that the lab printed."""
    found = ERROR_NAME.search(text)
    assert found, text
    return found[1]


def put_program(room: Path, name: str, script: str) -> Path:
    """Writes a shell script as an executable program."""
    room.mkdir(exist_ok=True)
    program = room / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


@dataclass(frozen=True)
class LabPrompt:
    """A command prompt for one lab."""

    layout: LabLayout
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str) -> str:
        """Runs a command that must succeed; returns its output."""
        code, text = self.invoke(*words)
        assert code == 0, text
        return text

    def error(self, *words: str) -> str:
        """Runs a command that must fail; returns the name of its error."""
        code, text = self.invoke(*words)
        assert code != 0, text
        return error_name(text)

    def invoke(self, *words: str) -> tuple[int, str]:
        """Runs a command; returns its exit code and output."""
        here = {"AKS_FLEX_LAB_HOME": str(self.layout.labs_directory), "AKS_FLEX_LAB_CACHE": str(self.layout.cache)}
        select = () if "--lab" in words else ("--lab", self.layout.name)
        result = CliRunner(env={**here, **self.env}).invoke(app, [*select, *words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output
