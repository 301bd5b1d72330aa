"""The registry of jobs, most urgent first: how each runs, when it is required, and its log message.

Used by the command line, the scheduler and the daemon's log. Jobs import their modules when they run, in their own
process, so that the daemon does not load them.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from aks_flex_node.agent.job_records import job_result
from aks_flex_node.agent.job_records.job_result import (
    WAITING_FOR_NODE_DELETION,
    JobKind,
    JobResult,
    JobStatus,
)
from aks_flex_node.errors import CommandUsageError, FlexError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.host.records import RecordFile

KEEP_NODE_OPTION = "--keep-node"  # of an unbootstrap: the Node lives on another machine
NODE_RELEASED_OPTION = "--node-released"  # of an update: the config source deleted the Node to allow a disturbance
IGNORE_OPTION = "--ignore="  # of a repair: a subject that another program keeps changing


@frozen
class SchedulerInput:
    """The facts by which the scheduler decides."""

    deleted: bool = False  # the node resource was deleted
    replaced: bool = False  # the node was moved to another machine
    unbootstrapping: bool = False  # an unbootstrap was interrupted
    may_unbootstrap: bool = True  # agent.unbootstrapOnDelete
    unbootstrap_forbidden: bool = False  # by the policy of the machine
    next_version: str = ""  # the pending configuration version
    unfinished: bool = False  # an update was interrupted, or a self-update is pending
    window_open: bool = True  # the maintenance window
    credentials_lost: bool = False  # the node cannot authenticate to its cluster
    drifted: bool = False
    repair_enabled: bool = True  # driftPolicy
    paused: bool = False
    vpn_due: bool = False  # the VPN certificate must be renewed, or the VPN settings changed
    operation_pending: bool = False  # a MachineOperation in the cluster is for this machine
    node_released: bool = False  # the config source deleted the Node to allow a disturbance
    staging: str = ""  # what is to be staged: the identity of the next configuration


@frozen
class Job:
    kind: JobKind
    start_message: str
    is_required: Callable[[SchedulerInput, JobResult | None], bool]  # second argument: the last result of this kind
    run: Callable[[Sequence[str], ProgressReporter], JobResult | None]  # None: the daemon was removed
    on_success: Callable[[JobResult, ProgressReporter], JobResult | None] | None = (
        None  # runs after success, and while the job waits for AKS; returns a failed result or None
    )
    while_leaving: bool = False  # runs also during unbootstrap
    result_file: RecordFile[JobResult] = job_result.RESULT


def find_job(name: str) -> Job:
    """Returns the job with this name. Raises CommandUsageError when it does not exist."""
    known = {job.kind.value: job for job in JOBS}
    if name not in known:
        names = ", ".join(kind.value for kind in JobKind if kind.value in known)
        raise CommandUsageError("job-unknown", f"Job {name!r} does not exist.", f"Use one of: {names}.")
    return known[name]


def run_job(job: Job, arguments: Sequence[str], progress: ProgressReporter) -> None:
    """Runs a job in this process and stores its result for the daemon."""
    from aks_flex_node.host.real import RealHost

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        outcome = job.run(arguments, progress)
    except FlexError as error:
        outcome = JobResult.of(job.kind, error)
    if outcome is None:
        return
    job.result_file.write(RealHost(), outcome)
    progress.message(str(outcome))
    is_settled = outcome.is_done or outcome.reason == WAITING_FOR_NODE_DELETION
    if is_settled and job.on_success and (failure := job.on_success(outcome, progress)):
        job.result_file.write(RealHost(), failure)


def _unbootstrap_required(inputs: SchedulerInput, _last: JobResult | None) -> bool:
    ordered = inputs.replaced or (inputs.deleted and inputs.may_unbootstrap)
    return inputs.unbootstrapping or (ordered and not inputs.unbootstrap_forbidden)


def _run_unbootstrap(arguments: Sequence[str], progress: ProgressReporter) -> None:
    """Runs `unbootstrap --yes`. It removes the agent's service, and this process is not part of that service."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap.unbootstrap import unbootstrap_node

    config, _ = context.load_config_or_default(context.ConfigSelection())
    seconds = float(config.update_policy.drain_timeout_seconds)
    unbootstrap_node(config, progress, keep_artifacts=False, seconds=seconds, keep_node=KEEP_NODE_OPTION in arguments)


def _update_required(inputs: SchedulerInput, last: JobResult | None) -> bool:
    if inputs.unfinished or not inputs.next_version:
        return inputs.unfinished
    if last is None or last.version != inputs.next_version:
        return True
    may_retry = {
        JobStatus.DEFERRED: _may_resume(inputs, last),
        JobStatus.FAILED: last.retryable,
        JobStatus.REFUSED: last.retryable,  # the cluster may have been upgraded
    }
    return may_retry.get(last.result, False)


def _may_resume(inputs: SchedulerInput, deferred: JobResult) -> bool:
    if deferred.reason == WAITING_FOR_NODE_DELETION:
        return inputs.node_released
    return inputs.window_open and not inputs.paused


def _run_update(arguments: Sequence[str], progress: ProgressReporter) -> JobResult:
    from aks_flex_node.agent.jobs.update.job import run_update

    return run_update(progress, node_released=NODE_RELEASED_OPTION in arguments)


def _update_agent(result: JobResult, progress: ProgressReporter) -> JobResult | None:
    from aks_flex_node.agent.self_update import run_self_update

    return run_self_update(result.version, progress)


def _run_recovery(_arguments: Sequence[str], progress: ProgressReporter) -> JobResult:
    from aks_flex_node.agent.jobs.recovery import run_recovery

    return run_recovery(progress)


def _run_repair(arguments: Sequence[str], _progress: ProgressReporter) -> JobResult:
    from aks_flex_node.agent.jobs.repair import run_repair

    return run_repair(
        [argument.removeprefix(IGNORE_OPTION) for argument in arguments if argument.startswith(IGNORE_OPTION)]
    )


def _run_machine_operation(_arguments: Sequence[str], progress: ProgressReporter) -> JobResult | None:
    from aks_flex_node.agent.jobs.machine_operation import run_machine_operation

    return run_machine_operation(progress, lambda: _run_unbootstrap((), progress))


def _run_vpn_renewal(_arguments: Sequence[str], progress: ProgressReporter) -> JobResult:
    """Connects the configured VPN and renews its certificate."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.vpn.connection import VpnConnection

    with context.current_engine() as engine:
        VpnConnection(engine, progress.note).run()
    return JobResult(JobKind.RENEW_VPN, JobStatus.DONE, message="VPN connected.")


def _stage_required(inputs: SchedulerInput, last: JobResult | None) -> bool:
    """Staging only downloads, so it does not wait for the maintenance window."""
    if not inputs.staging or inputs.paused or inputs.unfinished:
        return False
    return last is None or last.version != inputs.staging or last.is_done or last.retryable


def _run_stage(_arguments: Sequence[str], progress: ProgressReporter) -> JobResult:
    from aks_flex_node.agent.jobs.stage import run_stage

    return run_stage(progress)


JOBS = (
    Job(
        JobKind.UNBOOTSTRAP,
        "The node resource or the Machine was deleted, or the node was moved to another machine. Removing the node.",
        _unbootstrap_required,
        _run_unbootstrap,
        while_leaving=True,
    ),
    Job(JobKind.UPDATE, "Applying the new configuration.", _update_required, _run_update, _update_agent),
    Job(
        JobKind.RECOVER,
        "Recovering the node.",
        lambda inputs, _: inputs.credentials_lost,
        _run_recovery,
    ),
    Job(
        JobKind.MACHINE_OPERATION,
        "Carrying out a MachineOperation of the cluster.",
        lambda inputs, _: inputs.operation_pending and not inputs.paused,
        _run_machine_operation,
    ),
    Job(
        JobKind.REPAIR,
        "Repairing drift.",
        lambda inputs, _: inputs.drifted and inputs.repair_enabled and not inputs.paused,
        _run_repair,
    ),
    Job(
        JobKind.RENEW_VPN,
        "Renewing the VPN certificate.",
        lambda inputs, _: inputs.vpn_due,  # even if updates are paused, because the node may need the VPN
        _run_vpn_renewal,
    ),
    Job(
        JobKind.STAGE,
        "Downloading the artifacts of the next configuration.",
        _stage_required,
        _run_stage,
        result_file=job_result.STAGING,
    ),
)
