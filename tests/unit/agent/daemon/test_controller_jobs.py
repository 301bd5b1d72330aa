"""Tests of the controller's jobs: one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.daemon.controller import BLOCKED_SECONDS, CHECK_MIN_SECONDS, HEALTH_SECONDS
from aks_flex_node.agent.daemon.drift_monitor import MAX_REPAIRS
from aks_flex_node.agent.daemon.lifecycle import NodeChanged
from aks_flex_node.agent.daemon.scheduler import RETRY_SECONDS
from aks_flex_node.agent.daemon.session import SETTLE_SECONDS, FilesChanged, PollEvent
from aks_flex_node.agent.job_records.job_result import (
    JOB_KILLED,
    JOB_UNIT,
    RESULT,
    JobKind,
    JobResult,
    JobStatus,
)
from aks_flex_node.agent.paths import CURRENT_CONFIG, DAEMON_STATE, NEXT_CONFIG, UPDATE_JOURNAL
from aks_flex_node.host.actions import StartUnit, StopUnit
from tests.unit.agent.daemon.fakes import OLD, WELL, FakeHost, bundle, eventually, kept, put, settings
from tests.unit.agent.daemon.harness import CHANGED, GOOD, LOST, NEWS, PORTAL, Life

if TYPE_CHECKING:
    from tests.unit.agent.daemon.harness import StartDaemon

WAITS = JobResult(JobKind.UPDATE, JobStatus.FAILED, "mirror-away", version="2", retryable=True)


DONE = JobResult(JobKind.UPDATE, JobStatus.DONE, version="2", at="2999-01-02T03:04:05Z")


def test_controller_starts_no_job_while_a_manual_command_runs(life: Life) -> None:
    life.busy = True
    life.receives_config()
    assert not life.working
    life.busy = False
    life.hears(GOOD)
    life.runs("update")


def test_job_without_a_result_is_logged_and_retried_later(life: Life) -> None:
    life.host.outcomes = [None, None]
    life.receives_config()
    life.ends_work()
    assert life.events("job-finished") == ["update failed: The update job exited without a result: no log output"]
    life.waits(RETRY_SECONDS[0] - 1)
    assert life.host.works == ["update"]
    life.waits(1)
    life.runs("update", "update")


def start_update(life: Life) -> None:
    """Lets an update start that runs until it is released."""
    life.host.goes_on.clear()
    life.receives_config()
    eventually(lambda: life.host.works)


def test_update_that_the_policy_refused_is_retried_when_the_policy_changes(life: Life) -> None:
    refused = replace(WAITS, result=JobStatus.REFUSED, reason="RefusedByPolicy")
    life.host.outcomes = [refused, refused]
    life.receives_config()
    life.ends_work()
    life.waits(RETRY_SECONDS[-1])
    assert life.host.works == ["update"]
    life.changes_policy()
    life.runs("update", "update")


def test_running_job_blocks_other_jobs_and_drift_checks(life: Life) -> None:
    start_update(life)
    life.drift, life.sight, before = (CHANGED,), LOST, life.drift_looks
    for _ in range(10):
        life.waits(1000)
    assert (life.host.works, life.drift_looks) == (["update"], before)


def test_controller_does_not_busy_loop_while_a_job_runs(life: Life) -> None:
    """A wait for an event that is already due would use a CPU for hours."""
    start_update(life)
    life.waits(life.session.node.config.agent.drift_seconds + HEALTH_SECONDS)
    assert life.controller.seconds_until_due >= 10


def test_loss_seen_during_a_job_needs_confirmation_before_recover(life: Life) -> None:
    start_update(life)
    life.sight = LOST
    life.waits(HEALTH_SECONDS)
    life.waits(HEALTH_SECONDS)
    life.host.outcomes = [replace(WAITS, result=JobStatus.ROLLED_BACK, at="x")]
    life.host.goes_on.set()
    life.ends_work()
    assert not life.working, "it may be there again at the second look"
    life.waits(HEALTH_SECONDS / 12)
    life.runs("update", "recover")


def test_ended_job_is_not_started_again_before_its_result_is_read(life: Life) -> None:
    life.host.outcomes = [replace(WAITS, at="x")]
    life.stores_config()
    life.controller.events.put(PollEvent(NEWS, ""))
    life.controller.events.put(PollEvent(GOOD, ""))  # queued before the result
    life.steps()
    eventually(lambda: life.controller.events.qsize() == 2)
    life.steps()
    assert (life.host.works, life.working) == (["update"], JobKind.UPDATE)
    life.steps()
    assert (life.host.works, life.working) == (["update"], None)


def test_restarted_daemon_waits_for_the_running_job(start_daemon: StartDaemon) -> None:
    life = Life()
    life.host.apply(StartUnit(JOB_UNIT))
    start_daemon(life).receives_config()
    assert (life.working, life.host.works) == (JobKind.ADOPTED, [])
    assert life.condition("Ready")["status"] == "True"
    assert life.condition("CertificateExpiring")["status"] == "False"
    put(life.host, CURRENT_CONFIG, bundle("2", settings(secret=OLD)))
    put(life.host, NEXT_CONFIG, b"")
    RESULT.write(life.host, DONE)
    life.host.apply(StopUnit(JOB_UNIT))
    life.ends_work()
    assert (life.working, life.state.last_applied) == (None, DONE.at)
    assert life.session.node.versions.current == "2"


def test_restarted_daemon_reads_the_result_of_a_finished_job(start_daemon: StartDaemon) -> None:
    life = Life()
    RESULT.write(life.host, replace(DONE, version="1"))
    assert start_daemon(life).state.last_applied == DONE.at


def test_failed_update_is_not_retried_immediately_after_a_restart(start_daemon: StartDaemon) -> None:
    life = Life()
    life.stores_config()
    RESULT.write(life.host, WAITS)
    assert start_daemon(life).host.works == []
    life.waits(RETRY_SECONDS[0])
    life.runs("update")


def test_interrupted_update_resumes_after_a_restart_with_backoff(start_daemon: StartDaemon) -> None:
    life = Life()
    put(life.host, UPDATE_JOURNAL, b"{}")
    start_daemon(life).ends_work()
    life.waits(RETRY_SECONDS[0] - 1)
    assert life.host.works == ["update"]
    life.waits(1)
    life.runs("update", "update")
    life.ends_work()


def test_foreground_daemon_does_not_self_update(start_daemon: StartDaemon) -> None:
    agent = {"version": "9.9.9", "url": "https://example.com/agent.tar.gz"}
    life = start_daemon(host=FakeHost(settings(secret=OLD, agent=agent)))
    life.hears(GOOD)
    assert life.host.works == []


def test_drift_is_logged_with_diff_counted_and_repaired(life: Life) -> None:
    life.drift = (CHANGED,)
    life.waits(CHECK_MIN_SECONDS)
    life.now += 1
    life.steps()
    life.runs("repair")
    [event] = [each for each in life.said if each["event"] == "drift"]
    assert (event["message"], event["diff"]) == (CHANGED.description, CHANGED.diff)
    assert (life.state.drift_count, life.state.drift) == (1, (CHANGED.description,))


def test_killed_repairs_are_no_conflict(life: Life) -> None:
    for _ in range(MAX_REPAIRS):
        life.session.drift.found = (CHANGED,)
        life.session.drift.begin_repair()
        life.controller.events.put(JobResult(JobKind.REPAIR, JobStatus.FAILED, JOB_KILLED, retryable=True))
        life.steps()
    assert life.session.drift.conflicts.given_up == {}


def test_persistent_drift_is_logged_once(start_daemon: StartDaemon) -> None:
    life = start_daemon(host=FakeHost(settings(secret=OLD, driftPolicy="log")))
    life.drift = (CHANGED,)
    for _ in range(10):
        life.waits(CHECK_MIN_SECONDS + 1)
        life.waits(1)
    assert (len(life.events("drift")), life.state.drift_count, life.host.works) == (1, 1, [])


def test_drift_check_is_rate_limited_for_a_busy_file(life: Life) -> None:
    before = life.drift_looks
    for _ in range(100):
        life.waits(0.1)
    assert 1 <= life.drift_looks - before <= 10 / CHECK_MIN_SECONDS + 1


def test_controller_wakes_up_for_the_retry_of_a_job(life: Life) -> None:
    life.controller.reconcile()
    assert life.controller.seconds_until_due > 2.0
    killed = JobResult(JobKind.REPAIR, JobStatus.FAILED, JOB_KILLED, "It was killed.")
    life.controller.history.record(killed, life.now)
    assert life.controller.seconds_until_due == 2.0
    life.now += 2.0
    assert life.controller.seconds_until_due > 0.0, "a retry that is not required any more causes no busy loop"


def test_blocked_service_is_checked_often_until_its_cause_is_gone(life: Life) -> None:
    life.drift = (replace(CHANGED, foreign=True, blocked=True),)
    life.waits(life.session.node.config.agent.drift_seconds)
    before = life.drift_looks
    life.controller.reconcile()
    for _ in range(3):
        life.now += BLOCKED_SECONDS
        life.controller.reconcile()
    assert (life.drift_looks, life.host.works) == (before + 3, [])
    life.drift = (CHANGED,)
    life.now += BLOCKED_SECONDS
    life.controller.reconcile()
    life.runs("repair")


def test_node_is_recovered_after_two_lost_health_checks(life: Life) -> None:
    life.sight = LOST
    life.waits(HEALTH_SECONDS)
    assert not life.working
    life.waits(HEALTH_SECONDS / 12)
    life.runs("recover")


def test_removed_certificates_are_noticed_before_the_next_health_check(life: Life) -> None:
    life.waits(CHECK_MIN_SECONDS)
    life.sight, before = LOST, life.looks
    life.notices(FilesChanged(frozenset({"/var/lib/kubelet/pki/"})))
    life.waits(SETTLE_SECONDS)
    assert life.looks == before + 1
    life.waits(HEALTH_SECONDS / 12)
    life.runs("recover")


def test_changing_certificates_do_not_cause_frequent_health_checks(life: Life) -> None:
    before = life.looks
    for _ in range(100):
        life.controller.events.put(FilesChanged(frozenset({"/var/lib/kubelet/pki/kubelet.crt"})))
        life.steps()
        life.waits(0.1)
    assert 1 <= life.looks - before <= 10 / CHECK_MIN_SECONDS + 1


def test_node_whose_deletion_the_watch_reports_is_recovered_at_once(life: Life) -> None:
    life.hears(GOOD)
    life.sight = replace(WELL, node=None, node_missing=True)
    life.notices(NodeChanged(is_deleted=True))
    life.runs("recover")


def test_provider_state_is_stored_and_read_after_a_restart(life: Life, start_daemon: StartDaemon) -> None:
    life.hears(GOOD)
    life.hears(PORTAL)
    known = kept(life.host, DAEMON_STATE)
    assert known
    assert (known["provider_state"], known["message"]) == ("UnexpectedResponse", PORTAL.message)
    assert known["last_answer"]
    again = start_daemon(host=life.host).state
    assert (again.provider_state.value, again.last_answer) == ("UnexpectedResponse", known["last_answer"])


def test_due_vpn_renewal_starts_the_reconnect_job(life: Life) -> None:
    life.session.drift.vpn_due = True
    life.waits(0)
    life.runs("renew-vpn")
    assert life.events("job-started") == ["Renewing the VPN certificate."]
