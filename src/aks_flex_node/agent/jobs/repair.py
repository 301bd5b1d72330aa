"""The repair job: applies all components again and verifies that no drift is left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, self_update
from aks_flex_node.agent.components import agent, vpn
from aks_flex_node.agent.drift.detection import Drift, detect_drift
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine

MAX_LISTED = 10
MAX_PASSES = 2  # some drift is visible only after a reload of systemd


def run_repair(ignored: Sequence[str]) -> JobResult:
    """Repairs this machine, except subjects that another program keeps changing."""
    with context.current_engine() as engine:
        engine.ignored_paths = frozenset(ignored)
        stager = engine.stager = ProgramStager(engine.config)
        try:
            outcome = repair_drift(engine, components_to_repair)
        finally:
            stager.close()
        store_address(engine)
        return outcome


def components_to_repair(engine: Engine) -> Sequence[Component]:
    """Returns all components except a VPN that is not configured, because the cluster may be unreachable without it.

    Only an update removes the VPN, because it checks the node's health afterwards and can roll back.
    """
    found = self_update.compared_components(engine)
    return found if engine.config.azure.vpn.enabled else tuple(one for one in found if one is not vpn.COMPONENT)


def store_address(engine: Engine) -> None:
    """Stores the node's address, which the VPN may have changed."""
    state = node_state.load(engine.host, engine.config)
    if state.address and state.address != engine.machine.address:
        node_state.save(engine.host, engine.config, replace(state, address=engine.machine.address))


def repair_drift(engine: Engine, compared: Callable[[Engine], Sequence[Component]]) -> JobResult:
    """Applies all components and verifies the result by another drift detection. Keeps foreign files.

    `compared` is called after the ledger is complete, and returns the components to compare.
    """
    try:
        rebuild_ledger(engine)
        engine.apply(agent.COMPONENT)
        components = compared(engine)
        found = _ours(detect_drift(engine, components))
        for _ in range(MAX_PASSES):
            # Applies all components, also after one that failed.
            engine.prepare(components)
            failures: list[FlexError] = []
            for component in components:
                try:
                    engine.apply(component)
                except FlexError as failure:
                    failures.append(failure)
            engine.sync_to_disk()
            if failures:
                raise failures[0]
            left = _ours(detect_drift(engine, components))
            if not left:
                if not found:
                    return JobResult(JobKind.REPAIR, JobStatus.DONE)
                return JobResult(JobKind.REPAIR, JobStatus.DONE, "Repaired", f"Repaired: {summarize(found)}.")
    except FlexError as error:
        return JobResult.of(JobKind.REPAIR, error, retryable=error.retryable)
    return JobResult(
        JobKind.REPAIR,
        JobStatus.FAILED,
        "RepairIncomplete",
        f"Drift remains after the repair: {summarize(left)}.",
        "Check with `aks-flex-node verify` what differs, and stop the program that changes it. The daemon retries.",
        retryable=True,
    )


def _ours(found: Sequence[Drift]) -> list[Drift]:
    return [drift for drift in found if not drift.foreign]


def summarize(found: Sequence[Drift]) -> str:
    descriptions = [drift.description for drift in found[:MAX_LISTED]]
    return "; ".join([*descriptions, *([f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else [])])
