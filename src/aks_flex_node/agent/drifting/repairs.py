"""What has drifted is brought back by what made it: every component is applied once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components import agent
from aks_flex_node.agent.drifting.drifts import drifts
from aks_flex_node.agent.recovering import recover
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.drifting.drifts import Drift
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine

MOST_NAMED = 10
ROUNDS = 2  # systemd sees some of what has changed only after it was told to look


def repair(engine: Engine, compared: Callable[[Engine], Sequence[Component]]) -> Outcome:
    """Bring everything back, and prove it by looking again. What others have put beside ours stays, and is told.

    What the machine is `compared` by is asked when it is known what is ours.
    """
    try:
        recover(engine)
        engine.apply(agent.COMPONENT)
        components = compared(engine)
        found = _ours(drifts(engine, components))
        for _ in range(ROUNDS):
            _apply(engine, components)
            left = _ours(drifts(engine, components))
            if not left:
                return _done(found)
    except FlexError as error:
        return Outcome("repair", Result.FAILED.value, error.name, error.message, error.hint, again=error.again)
    return Outcome("repair", Result.FAILED.value, "DriftRemains", f"After a repair, {named(left)}.", again=True)


def _apply(engine: Engine, components: Sequence[Component]) -> None:
    engine.prepare(components)
    for component in components:
        engine.apply(component)
    engine.settle()


def _ours(found: Sequence[Drift]) -> list[Drift]:
    return [drift for drift in found if not drift.foreign]


def _done(found: Sequence[Drift]) -> Outcome:
    if not found:
        return Outcome("repair", Result.DONE.value)
    return Outcome("repair", Result.DONE.value, "Repaired", f"Repaired: {named(found)}.")


def named(found: Sequence[Drift]) -> str:
    words = [drift.what for drift in found[:MOST_NAMED]]
    return "; ".join([*words, *([f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else [])])
