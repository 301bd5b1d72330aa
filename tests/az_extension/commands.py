"""Runs `az aks flex-node` for the cluster of the site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aks_flex_lab.processes import CommandResult
    from tests.azure_cli import Az

ON = ("--cluster", "plant", "--resource-group", "edge")


def ran(az: Az, command: str, *words: str, **how: Any) -> CommandResult:
    """Runs a command, which must succeed."""
    return az.run("aks", "flex-node", *command.split(), *ON, *words, **how)


def flex(az: Az, command: str, *words: str) -> Any:
    """Returns the output of a command that must succeed."""
    return az("aks", "flex-node", *command.split(), *ON, *words)


def table(az: Az, command: str, *words: str) -> list[str]:
    """Returns the lines of the table that a command prints: the head, a rule, and the rows."""
    return ran(az, command, *words, "--output", "table").out.splitlines()


def refused(az: Az, command: str, *words: str, code: int = 1, **how: Any) -> str:
    """Returns the message of a command that must fail."""
    done = ran(az, command, *words, check=False, **how)
    assert done.code == code, done
    return done.err
