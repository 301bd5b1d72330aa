"""All jobs, most urgent first: what each does, when it is wanted, and what is said when it starts.

The command line, the scheduler and the daemon's log read this list. What a job needs is imported when it runs, in its
own process: the daemon only decides.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.job_records import job_result
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.paths import JOB_RESULT
from aks_flex_node.errors import CommandUsageError, FlexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.progress import ProgressReporter

IGNORE_OPTION = "--leave-alone="  # of a repair: a subject that somebody else will not let us have


@dataclass(frozen=True)
class SchedulerInput:
    """What is known of the node at one moment."""

    deleted: bool = False  # twice, an interval apart
    unbootstrapping: bool = False  # it has begun to leave, and was stopped half-way
    may_unbootstrap: bool = True  # agent.unbootstrapOnDelete
    next_version: str = ""  # the version that waits to be taken
    unfinished: bool = False  # an update was stopped half-way, or the agent's own version is still to come
    window_open: bool = True  # the maintenance window is open
    credentials_lost: bool = False  # the node cannot speak to its cluster any more
    drifted: bool = False
    repair_enabled: bool = True  # driftPolicy
    paused: bool = False
    vpn_due: bool = False  # the certificate of the tunnel to the cluster is about to end, or another tunnel is meant


@dataclass(frozen=True)
class Job:
    kind: JobKind
    start_message: str
    is_wanted: Callable[[SchedulerInput, JobResult | None], bool]  # the second is the last result of this kind
    run: Callable[[Sequence[str], ProgressReporter], JobResult | None]  # None: there is nobody left to tell
    on_success: Callable[[JobResult, ProgressReporter], JobResult | None] | None = (
        None  # after success; None: all is well
    )
    while_leaving: bool = False  # also on a node that is being taken apart


def find_job(word: str) -> Job:
    """The job of this name. Raises CommandUsageError when there is none."""
    known = {job.kind.value: job for job in JOBS}
    if word not in known:
        names = ", ".join(kind.value for kind in JobKind if kind.value in known)
        raise CommandUsageError("job-unknown", f"There is no work {word!r}.", f"There are: {names}.")
    return known[word]


def run_job(job: Job, arguments: Sequence[str], progress: ProgressReporter) -> None:
    """Runs one job in this process, and stores its result for the daemon that started it."""
    from aks_flex_node.host.real import RealHost

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        outcome = job.run(arguments, progress)
    except FlexError as error:
        outcome = JobResult(job.kind, JobStatus.FAILED, error.name, error.message, error.hint, retryable=True)
    if outcome is None:
        return
    job_result.write_result(RealHost(), JOB_RESULT, outcome)
    progress.message(str(outcome))
    if outcome.is_done and job.on_success and (failure := job.on_success(outcome, progress)):
        job_result.write_result(RealHost(), JOB_RESULT, failure)


def _leave_wanted(wants: SchedulerInput, _last: JobResult | None) -> bool:
    return wants.unbootstrapping or (wants.deleted and wants.may_unbootstrap)


def _run_leave(_arguments: Sequence[str], progress: ProgressReporter) -> None:
    """The same as `unbootstrap --yes`: the agent's own service goes first, and this process is not part of it."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.bootstrap.unbootstrap import unbootstrap_node

    config, _ = context.load_config_or_default(context.ConfigSelection())
    seconds = float(config.update_policy.drain_timeout_seconds)
    unbootstrap_node(config, progress, keep_artifacts=False, seconds=seconds)


def _update_wanted(wants: SchedulerInput, last: JobResult | None) -> bool:
    if wants.unfinished or not wants.next_version:
        return wants.unfinished
    if last is None or last.version != wants.next_version:
        return True
    may_again = {
        JobStatus.DEFERRED: wants.window_open and not wants.paused,
        JobStatus.FAILED: last.retryable,
        JobStatus.REFUSED: last.retryable,  # the cluster may have become newer
    }
    return may_again.get(last.result, False)


def _run_update(_arguments: Sequence[str], progress: ProgressReporter) -> JobResult:
    from aks_flex_node.agent.jobs.update.job import run_update

    return run_update(progress)


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


def _run_vpn_renewal(_arguments: Sequence[str], progress: ProgressReporter) -> JobResult:
    """Have the tunnel that the configuration means, with a certificate that lasts."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.vpn.connection import VpnConnection

    with context.current_engine() as engine:
        VpnConnection(engine, progress.note).run()
    return JobResult(JobKind.RENEW_VPN, JobStatus.DONE, message="The tunnel has what it needs.")


JOBS = (
    Job(
        JobKind.UNBOOTSTRAP,
        "the resource is deleted: this machine leaves the cluster",
        _leave_wanted,
        _run_leave,
        while_leaving=True,
    ),
    Job(JobKind.UPDATE, "the new configuration is being applied", _update_wanted, _run_update, _update_agent),
    Job(
        JobKind.RECOVER,
        "this node is being recovered",
        lambda wants, _: wants.credentials_lost,
        _run_recovery,
    ),
    Job(
        JobKind.REPAIR,
        "what has changed by hand is being repaired",
        lambda wants, _: wants.drifted and wants.repair_enabled and not wants.paused,
        _run_repair,
    ),
    Job(
        JobKind.RENEW_VPN,
        "the tunnel to the cluster's network is being seen to",
        lambda wants, _: wants.vpn_due,  # paused or not: without it the node would be lost
        _run_vpn_renewal,
    ),
)
