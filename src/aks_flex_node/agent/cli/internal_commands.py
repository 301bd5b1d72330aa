"""`daemon`, `job KIND`, `azure-token`, `node-assertions`: internal entry points of the daemon, its jobs and the
processes that sign in for it.

Parsed without typer, so that the daemon does not load it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run_daemon_command() -> None:
    from aks_flex_node.agent.daemon.controller import run_daemon
    from aks_flex_node.agent.public_status import StatusPublisher

    run_daemon(StatusPublisher())


def azure_token() -> None:
    from aks_flex_node.agent.cli.azure_token import print_azure_token

    print_azure_token()


def node_assertions() -> None:
    from aks_flex_node.agent.cli.assertion_printer import print_assertions

    print_assertions()


def run_job_command(kind: str, rest: Sequence[str] = ()) -> None:
    from aks_flex_node.agent import context
    from aks_flex_node.agent.cli.terminal_progress import TerminalProgress
    from aks_flex_node.agent.jobs import registry

    job = registry.find_job(kind)
    context.require_root()
    context.require_node()
    registry.run_job(job, rest, TerminalProgress())


def main(arguments: Sequence[str]) -> bool:
    """Runs an internal command; returns False if the arguments name none."""
    commands: dict[str, Callable[[], None]] = {
        "daemon": run_daemon_command,
        "azure-token": azure_token,
        "node-assertions": node_assertions,
        "job": lambda: run_job_command(arguments[1] if len(arguments) > 1 else "", arguments[2:]),
    }
    if not arguments or arguments[0] not in commands:
        return False
    try:
        commands[arguments[0]]()
    except FlexError as error:
        from aks_flex_node.agent.cli.terminal import print_error

        print_error(error)
        sys.exit(error.exit_code)
    return True
