"""Asking a second time: a server that stumbles once is no reason to refuse a machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.seams import Cause, Unheard

if TYPE_CHECKING:
    from aks_flex_node.agent.preflight.seams import Heard, Network, Request

PASSING = frozenset((408, 425, 429))
QUICK_SECONDS = 1.0  # whoever took longer to fail would take as long again
PAUSE_SECONDS = 0.2


def is_passing(status: int) -> bool:
    """Whether time heals it."""
    return status in PASSING or status >= 500


def ask_twice(network: Network, request: Request) -> Heard:
    """The answer, or the second one when the first was a quick failure that may not come again."""
    start = time.monotonic()
    try:
        heard = network.ask(request)
        if not is_passing(heard.status):
            return heard
    except Unheard as silence:
        if silence.cause is not Cause.SILENCE or time.monotonic() - start > QUICK_SECONDS:
            raise
    time.sleep(PAUSE_SECONDS)
    return network.ask(request)
