"""A preloaded az: each command is a new process without the common start-up time."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.processes import CommandResult
from tests.azure_cli import Az

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORKING = Path(__file__).with_name("fork_server.py")


@dataclass(frozen=True)
class WarmAz(Az):
    process: subprocess.Popen[str]

    def run(
        self,
        *words: str,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in processes.run
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps({"words": words, "env": dict(env or {}), "input": input or ""}), file=self.process.stdin)
        self.process.stdin.flush()
        done = CommandResult(words, **json.loads(self.process.stdout.readline()))
        assert done.ok or not check, f"az {' '.join(words)}: exit {done.code}\n{done.out}\n{done.err}"
        return done


def python_of(az: Az) -> str:
    """Returns the Python that runs this az."""
    return az.program.read_text().partition("for python in ")[2].split(" ", 1)[0].rstrip(";")


@contextmanager
def warmed(az: Az) -> Iterator[WarmAz]:
    words = [python_of(az), "-I", str(FORKING), str(az.program.parent / "packages")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env={**os.environ, **az.environment}, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "warm\n"
        yield WarmAz(az.program, az.folder, az.ca, process)
        process.stdin.close()
