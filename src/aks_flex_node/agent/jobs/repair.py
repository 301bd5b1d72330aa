"""The repair job: applies every component again, and verifies that no drift is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components import agent
from aks_flex_node.agent.drift.detection import detect_drift
from aks_flex_node.agent.jobs.job_result import JobResult, JobStatus
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.drift.detection import Drift
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine

MAX_LISTED = 10
MAX_PASSES = 2  # systemd sees some of what has changed only after it was told to look


def repair_drift(engine: Engine, compared: Callable[[Engine], Sequence[Component]]) -> JobResult:
    """Bring everything back, and prove it by looking again. What others have put beside ours stays, and is told.

    What the machine is `compared` by is asked when it is known what is ours.
    """
    try:
        rebuild_ledger(engine)
        engine.apply(agent.COMPONENT)
        components = compared(engine)
        found = _ours(detect_drift(engine, components))
        for _ in range(MAX_PASSES):
            _apply(engine, components)
            left = _ours(detect_drift(engine, components))
            if not left:
                return _repaired(found)
    except FlexError as error:
        return JobResult("repair", JobStatus.FAILED.value, error.name, error.message, error.hint, again=error.again)
    return JobResult(
        "repair", JobStatus.FAILED.value, "DriftRemains", f"After a repair, {summarize(left)}.", again=True
    )


def _apply(engine: Engine, components: Sequence[Component]) -> None:
    engine.prepare(components)
    for component in components:
        engine.apply(component)
    engine.sync_to_disk()


def _ours(found: Sequence[Drift]) -> list[Drift]:
    return [drift for drift in found if not drift.foreign]


def _repaired(found: Sequence[Drift]) -> JobResult:
    if not found:
        return JobResult("repair", JobStatus.DONE.value)
    return JobResult("repair", JobStatus.DONE.value, "Repaired", f"Repaired: {summarize(found)}.")


def summarize(found: Sequence[Drift]) -> str:
    words = [drift.description for drift in found[:MAX_LISTED]]
    return "; ".join([*words, *([f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else [])])
