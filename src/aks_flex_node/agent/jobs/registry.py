"""All job kinds, and what each does in its own process.

The result of a job is stored for the daemon that started it.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, terminal, terminal_progress
from aks_flex_node.agent.bootstrap import workflow
from aks_flex_node.agent.bootstrap.service_install import install_service
from aks_flex_node.agent.cluster import node_health
from aks_flex_node.agent.cluster.client import node_api
from aks_flex_node.agent.cluster.readiness import LiveNodeReadiness
from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.agent import CURRENT_CONFIG, JOB_RESULT
from aks_flex_node.agent.components.catalog import SEQUENCE, managed_components
from aks_flex_node.agent.config import config_store, loader
from aks_flex_node.agent.daemon import managed_node
from aks_flex_node.agent.jobs import job_result, self_update
from aks_flex_node.agent.jobs.job_result import JobResult, JobStatus
from aks_flex_node.agent.jobs.recovery import CredentialRecovery
from aks_flex_node.agent.jobs.repair import repair_drift
from aks_flex_node.agent.jobs.update.job import UpdateJob
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.agent.reconcile.program_stager import StoreProgramStager
from aks_flex_node.agent.vpn import local_state
from aks_flex_node.errors import FlexError
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine

IGNORE_OPTION = "--leave-alone="


def run_job(kind: str, words: Sequence[str]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    doing: dict[str, Callable[[], JobResult | None]] = {
        "update": run_update,
        "repair": lambda: _run_repair(
            [word.removeprefix(IGNORE_OPTION) for word in words if word.startswith(IGNORE_OPTION)]
        ),
        "recover": run_recovery,
        "leave": run_unbootstrap,
        "connect": run_vpn_renewal,
    }
    try:
        outcome = doing[kind]()
    except FlexError as error:
        outcome = JobResult(kind, JobStatus.FAILED.value, error.name, error.message, error.hint, again=True)
    if outcome is None:
        return  # there is nobody left to tell
    job_result.write_result(RealHost(), JOB_RESULT, outcome)
    terminal.print_message(f"{outcome.kind} {outcome.result}: {outcome.message}".rstrip(": "))
    if kind == "update" and outcome.result == JobStatus.DONE.value:
        run_self_update(outcome.version)


def run_update() -> JobResult:
    """Take on the configuration that waits; or go on with what a crash interrupted."""
    with exclusive():
        return UpdateJob(NodeOperations(RealHost(), _job_engine, terminal_progress.TerminalProgress())).run()


def run_self_update(version: str) -> None:
    """The agent's own service and version come last: whoever started us may be replaced by it."""
    with exclusive():
        engine = _job_engine(loader.load(Path(CURRENT_CONFIG), {}, {}).config)
        if managed_components(engine.ledger, engine.config) is SEQUENCE:
            return  # it stays in the foreground, where somebody looks after it
        outcome = install_service(engine)
    if outcome.result != JobStatus.DONE.value:
        terminal.print_message(f"the agent itself {outcome.result}: {outcome.message}")
        job_result.write_result(RealHost(), JOB_RESULT, replace(outcome, version=version))


def _job_engine(config: NodeConfig) -> Engine:
    engine = context.make_engine(config)
    engine.machine = local_state.with_stable_address(engine.host, engine.config, engine.machine)
    context.open_log_file(engine)
    return engine


def _run_repair(left_alone: Sequence[str]) -> JobResult:
    with exclusive():
        config_store.finish_interrupted(RealHost())
        engine = _job_engine(loader.load(Path(CURRENT_CONFIG), {}, {}).config)
        engine.ignored_paths = frozenset(left_alone)
        workshop = engine.stager = StoreProgramStager(engine.config)
        try:
            outcome = repair_drift(engine, components_to_repair)
        finally:
            workshop.close()
        store_address(engine)
        return outcome


def components_to_repair(engine: Engine) -> Sequence[Component]:
    """All but a tunnel that the configuration does not know: that may be the only way to the cluster.

    An update proves that a node works without it, or goes back; a repair could do neither.
    """
    found = self_update.compared_components(engine)
    return found if engine.config.azure.vpn.enabled else tuple(one for one in found if one is not vpn.COMPONENT)


def store_address(engine: Engine) -> None:
    """By which the node is known from now on; a tunnel may have given it another."""
    path = f"{engine.config.paths.data_dir}/state.json"
    known = node_state.read(engine.host, path)
    if known.address and known.address != engine.machine.address:
        node_state.write(engine.host, path, replace(known, address=engine.machine.address))


def run_recovery() -> JobResult:
    with exclusive():
        config_store.finish_interrupted(RealHost())
        site = managed_node.open_managed_node()
        lines = terminal_progress.TerminalProgress()
        proof = LiveNodeReadiness(site.host, site.config, site.node, lines.note)
        api = node_api(site.config)
        look = lambda: node_health.check_node_health(site.host, site.config, site.node, api)  # noqa: E731
        return CredentialRecovery(site.engine, site.provider, proof, look).run()


def run_vpn_renewal() -> JobResult:
    """Have the tunnel that the configuration means, with a certificate that lasts."""
    from aks_flex_node.agent.vpn.connection import VpnConnection

    with exclusive():
        config_store.finish_interrupted(RealHost())
        engine = _job_engine(loader.load(Path(CURRENT_CONFIG), {}, {}).config)
        VpnConnection(engine, terminal_progress.TerminalProgress().note).run()
    return JobResult("connect", JobStatus.DONE.value, message="The tunnel has what it needs.")


def run_unbootstrap() -> JobResult | None:
    """The same as `unbootstrap --yes`: the agent's own service goes first, and this process is not part of it."""
    config, _ = context.load_config_or_default(context.ConfigSelection())
    workflow.unbootstrap_node(config, keep_artifacts=False, seconds=float(config.update_policy.drain_timeout_seconds))
    return None
