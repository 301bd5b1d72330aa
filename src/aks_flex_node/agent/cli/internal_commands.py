"""`daemon`, `job KIND`, `azure-token`, `node-assertions`: internal entry points of the daemon, its jobs and the
processes that sign in for it.

Parsed without typer, so that the daemon does not load it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run_daemon_command() -> None:
    from aks_flex_node.agent.daemon.controller import run_daemon
    from aks_flex_node.agent.public_status import StatusPublisher

    run_daemon(StatusPublisher())


def refuse_terminal(what: str) -> None:
    if sys.stdout.isatty():
        print(f"This command is internal. It prints {what} and does not run on a terminal.", file=sys.stderr)
        sys.exit(2)


def azure_token() -> None:
    """Signs in to Entra ID for the daemon: reads a configuration, and prints a token or the error."""
    from aks_flex_node.agent.config.loader import load_text
    from aks_flex_node.agent.identity import azure_sign_in
    from aks_flex_node.agent.provider.provider_client import provider_scope

    refuse_terminal("a token")
    try:
        config = load_text(sys.stdin.read(), "the node's configuration").config
        token = azure_sign_in.sign_in(config, provider_scope(config))
        document: dict[str, Any] = {"token": token.value, "seconds": max(0.0, token.expires - time.time())}
    except FlexError as error:
        about = {"name": error.name, "message": error.message, "hint": error.hint, "retryable": error.retryable}
        document = {"error": about}
    print(json.dumps(document))


def node_assertions() -> None:
    """Signs with the node key for the daemon: reads what to assert, and prints the assertions of the next hour."""
    from aks_flex_node.agent.provider.node_assertions import sign_assertions
    from aks_flex_node.host.real import RealHost

    refuse_terminal("credentials")
    print(json.dumps(sign_assertions(RealHost(), json.loads(sys.stdin.read()))))


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
