"""The agent that stays, and the works that it has done: `follow`, `work KIND`, `azure-token`. Nobody types these.

They are not part of the words that typer knows, so that the process that stays does not carry it.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from aks_flex_node.errors import BusyError, FlexError, MachineError, WordsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KINDS = ("update", "repair", "recover", "leave", "connect")


def follow() -> None:
    """Stay until systemd, or somebody at a terminal, says stop."""
    from aks_flex_node.agent.cli import door, sites
    from aks_flex_node.agent.components.agent import FOLLOWS
    from aks_flex_node.agent.engine.locking import alone, is_held
    from aks_flex_node.agent.following.follower import Follower
    from aks_flex_node.agent.following.notify import Notifier

    door.require_root("follow a node's configuration")
    _require_node()
    if is_held(FOLLOWS):
        raise BusyError(
            "already-following",
            "Another aks-flex-node follows the configuration of this machine already.",
            "`systemctl status aks-flex-node` shows it; stop it first to follow in the foreground.",
        )
    with alone(FOLLOWS):
        follower = Follower(sites.open_site, Notifier())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: follower.stop())
        follower.run()


def _require_node() -> None:
    from pathlib import Path

    from aks_flex_node.agent.components.agent import CURRENT

    if not Path(CURRENT).exists():
        raise MachineError(
            "nothing-to-follow",
            f"There is no {CURRENT}: this machine is no node that is followed.",
            "Join first: `aks-flex-node agent --config-url URL`.",
        )


def azure_token() -> None:
    from aks_flex_node.agent.following.signing_in import answer

    answer()


def work(kind: str, rest: Sequence[str] = ()) -> None:
    """Do one piece of work, and write down what became of it."""
    from aks_flex_node.agent.cli import door, jobs

    if kind not in KINDS:
        raise WordsError("work-unknown", f"There is no work {kind!r}.", f"There are: {', '.join(KINDS)}.")
    door.require_root()
    _require_node()
    jobs.run(kind, rest)


def main(words: Sequence[str]) -> bool:
    """Whether these are words for us; if so, they are done."""
    doors: dict[str, Callable[[], None]] = {
        "follow": follow,
        "azure-token": azure_token,
        "work": lambda: work(words[1] if len(words) > 1 else "", words[2:]),
    }
    if not words or words[0] not in doors:
        return False
    try:
        doors[words[0]]()
    except FlexError as error:
        from aks_flex_node.agent.cli.screen import complain

        complain(error)
        sys.exit(error.exit_code)
    return True
