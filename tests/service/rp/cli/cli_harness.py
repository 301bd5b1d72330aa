"""The command as a person types it, in this process: its words in; exit code, answer and notes out."""

from __future__ import annotations

import json
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


@dataclass(frozen=True)
class Person:
    """Somebody on the machine of a service, who names its directory and nothing else."""

    state: Path

    def types(self, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Outcome:
        """Each word is as the shell would give it; a failure is not an exception here."""
        done = CliRunner().invoke(app, words, input=stdin, env={"AKS_FLEX_RP_STATE": str(self.state), **(env or {})})
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    def does(self, *words: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Outcome:
        """The same, of which nothing but success is expected."""
        done = self.types(*words, stdin=stdin, env=env)
        assert done.code == 0, done.err
        return done
