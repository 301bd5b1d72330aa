"""`follow`, `work KIND`, `azure-token`: entry points of the daemon, its jobs and its sign-in child. Not for users.

They are parsed without typer, so that the daemon does not load it.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from aks_flex_node.errors import BusyError, CommandUsageError, FlexError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

JOB_KINDS = ("update", "repair", "recover", "leave", "connect")


def run_daemon() -> None:
    """Stay until systemd, or somebody at a terminal, says stop."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.components.agent import DAEMON_LOCK
    from aks_flex_node.agent.daemon import managed_node
    from aks_flex_node.agent.daemon.controller import Controller, SystemdNotifier
    from aks_flex_node.agent.reconcile.lock import exclusive, is_held

    context.require_root("follow a node's configuration")
    _require_node()
    if is_held(DAEMON_LOCK):
        raise BusyError(
            "already-following",
            "Another aks-flex-node follows the configuration of this machine already.",
            "`systemctl status aks-flex-node` shows it; stop it first to follow in the foreground.",
        )
    with exclusive(DAEMON_LOCK):
        follower = Controller(managed_node.open_managed_node, SystemdNotifier())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: follower.stop())
        follower.run()


def _require_node() -> None:
    from pathlib import Path

    from aks_flex_node.agent.components.agent import CURRENT_CONFIG

    if not Path(CURRENT_CONFIG).exists():
        raise MachineError(
            "nothing-to-follow",
            f"There is no {CURRENT_CONFIG}: this machine is no node that is followed.",
            "Join first: `aks-flex-node agent --config-url URL`.",
        )


def azure_token() -> None:
    from aks_flex_node.agent.cli.azure_token import print_azure_token

    print_azure_token()


def run_job(kind: str, rest: Sequence[str] = ()) -> None:
    """Do one piece of work, and write down what became of it."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.jobs import registry

    if kind not in JOB_KINDS:
        raise CommandUsageError("work-unknown", f"There is no work {kind!r}.", f"There are: {', '.join(JOB_KINDS)}.")
    context.require_root()
    _require_node()
    registry.run_job(kind, rest)


def main(words: Sequence[str]) -> bool:
    """Whether these are words for us; if so, they are done."""
    doors: dict[str, Callable[[], None]] = {
        "follow": run_daemon,
        "azure-token": azure_token,
        "work": lambda: run_job(words[1] if len(words) > 1 else "", words[2:]),
    }
    if not words or words[0] not in doors:
        return False
    try:
        doors[words[0]]()
    except FlexError as error:
        from aks_flex_node.agent.terminal import print_error

        print_error(error)
        sys.exit(error.exit_code)
    return True
