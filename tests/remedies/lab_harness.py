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

    from aks_flex_lab.layout import LabLayout

ERROR_NAME = re.compile(r"^ +([a-z]+(?:-[a-z0-9]+)+)$", re.MULTILINE)


def failure(run: Any, *words: Any, **named: Any) -> FlexError:
    """Returns the error with which a call fails."""
    with pytest.raises(FlexError) as caught:
        run(*words, **named)
    return caught.value


def error_name(text: str) -> str:
    """Returns the name of the error that the lab printed."""
    names = ERROR_NAME.findall(text)
    assert names, text
    return str(names[-1])


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
