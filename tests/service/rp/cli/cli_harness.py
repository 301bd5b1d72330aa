"""Runs the command in this process; returns exit code, output and messages."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from aks_flex_rp.cli import app

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def properties(self) -> Any:
        return self.json["properties"]


@dataclass(frozen=True)
class Person:
    """A user on the machine of a service, who passes only its state directory."""

    state: Path

    def types(
        self, line: str, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None
    ) -> Outcome:
        """Runs a command line, with further words; a failure raises no exception."""
        words = (*shlex.split(line), *words)
        done = CliRunner().invoke(app, words, input=stdin, env={"AKS_FLEX_RP_STATE": str(self.state), **(env or {})})
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    def does(self, line: str, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Outcome:
        """Runs a command that must succeed."""
        done = self.types(line, *words, stdin=stdin, env=env)
        assert done.code == 0, done.err
        return done
