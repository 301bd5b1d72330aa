"""Tests of staging in the daemon: what is stored, when the job runs, what it reports, and what stops it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent import staging_config
from aks_flex_node.agent.daemon.config_receiver import ConfigReceiver
from aks_flex_node.agent.daemon.scheduler import KILLED_RETRY_SECONDS, RETRY_SECONDS
from aks_flex_node.agent.daemon.stage_job import MAX_TARGETS, TARGETS_SECONDS
from aks_flex_node.agent.job_records import job_result
from aks_flex_node.agent.job_records.job_result import JOB_KILLED, STAGE_UNIT, JobKind, JobResult, JobStatus
from aks_flex_node.agent.paths import NEXT_CONFIG, STAGING_CONFIG
from aks_flex_node.agent.provider.poll_result import NextConfig, PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.host.actions import MakeDirectory, Remove, StartUnit, StopUnit
from aks_flex_node.host.host import CommandResult
from tests.unit.agent.daemon.fakes import (
    CONNECTED,
    OLD,
    FakeHost,
    FakeProvider,
    eventually,
    kept,
    news,
    put,
    settings,
)
from tests.unit.agent.daemon.harness import CHANGED, GOOD, Life

if TYPE_CHECKING:
    from tests.unit.agent.daemon.harness import StartDaemon

FOLDER = "/var/lib/aks-flex-node/artifacts/next"
LATER = settings(kubernetes={"version": "1.34.5"})
FAILED = JobResult(JobKind.STAGE, JobStatus.FAILED, "artifact-unreachable", "No mirror.", "Wait.", retryable=True)


def tells(following: NextConfig | None) -> PollResult:
    return replace(CONNECTED, knows_next=True, next_config=following)


FIVE = NextConfig(5, LATER)


class StagingHost(FakeHost):
    """A machine on which staging takes effect immediately, unless the test sets another result."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        self.staging_outcomes: list[JobResult | None] = []

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        if argv[0] != "systemd-run" or "stage" not in argv:
            return super().query(*argv, seconds=seconds)
        self.works.append("stage")
        self.goes_on.wait(30)
        outcome = self.staging_outcomes.pop(0) if self.staging_outcomes else self._stage()
        if outcome:
            number = str(len(self.works))
            known = staging_config.read_config(self)
            named = replace(outcome, version=known.identity if known else staging_config.LEFTOVERS, at=number)
            job_result.STAGING.write(self, named)
        return CommandResult(0)

    def _stage(self) -> JobResult:
        if known := staging_config.read_config(self):
            stage(self, known.identity)
        else:
            self.apply(Remove(staging_config.record_file(FOLDER).path))
            self.apply(Remove(FOLDER))
        return JobResult(JobKind.STAGE, JobStatus.DONE)


def stage(host: FakeHost, identity: str) -> None:
    for folder in ("/var", "/var/lib", "/var/lib/aks-flex-node", "/var/lib/aks-flex-node/artifacts", FOLDER):
        host.apply(MakeDirectory(folder))
    staging_config.record_file(FOLDER).write(host, staging_config.StagedPrograms(identity, ()))


@dataclass
class StagingLife(Life):
    host: StagingHost = field(default_factory=StagingHost)


@pytest.fixture
def life(start_daemon: StartDaemon) -> Life:
    return start_daemon(StagingLife())


def orders(life: Life, following: NextConfig | None = FIVE) -> None:
    """Gives the daemon another next configuration, as its poller does."""
    staging_config.store_config(life.host, following)
    life.hears(GOOD)


def report(life: Life) -> dict[str, Any]:
    return life.session.report(life.controller.history, None)


def condition(life: Life) -> dict[str, str] | None:
    return next((each for each in report(life)["conditions"] if each["type"] == "StagingFailed"), None)


# The receiver


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def receiver(host: FakeHost) -> ConfigReceiver:
    return ConfigReceiver(host, FakeProvider().has(OLD).real, lambda *_: None, lambda _: CONNECTED, "1")


def test_next_config_is_stored_for_root_only_and_is_no_update(receiver: ConfigReceiver, host: FakeHost) -> None:
    assert not receiver.handle(tells(FIVE)).changed
    assert kept(host, STAGING_CONFIG) == {"poolRevision": 5, "config": LATER}
    assert host.mode_of(STAGING_CONFIG) == 0o600
    assert host.stat(NEXT_CONFIG) is None


def test_withdrawn_next_config_is_removed_and_an_unknown_one_is_kept(
    receiver: ConfigReceiver, host: FakeHost
) -> None:
    for result in (tells(FIVE), CONNECTED, PollResult(ProviderState.UNREACHABLE, "away")):
        receiver.handle(result)
        assert host.stat(STAGING_CONFIG)
    receiver.handle(tells(None))
    assert host.stat(STAGING_CONFIG) is None


def test_same_next_config_is_not_written_again(receiver: ConfigReceiver, host: FakeHost) -> None:
    receiver.handle(tells(FIVE))
    host.done.clear()
    receiver.handle(tells(NextConfig(5, dict(reversed(LATER.items())))))
    assert host.done == []


def test_next_config_stays_until_the_config_that_replaces_it_is_stored(host: FakeHost) -> None:
    provider = FakeProvider()
    provider.answers["listCredentials"] = ProviderRequestError(PollResult(ProviderState.FAILING, "busy"))
    one = ConfigReceiver(host, provider.real, lambda *_: None, lambda _: CONNECTED, "1")
    one.handle(tells(FIVE))
    applied = replace(news("2", LATER), knows_next=True)
    one.handle(applied)
    assert (host.stat(NEXT_CONFIG), kept(host, STAGING_CONFIG) is None) == (None, False)
    provider.has(OLD)
    one.handle(applied)
    assert kept(host)
    assert host.stat(STAGING_CONFIG) is None


# The job


def test_next_config_is_staged_once_and_reported(life: Life) -> None:
    life.host.goes_on.clear()
    orders(life)
    life.runs("stage")
    assert "stagedPoolRevision" not in report(life)
    life.host.goes_on.set()
    life.ends_work()
    assert report(life)["stagedPoolRevision"] == 5
    assert condition(life) is None
    life.waits(RETRY_SECONDS[-1])
    assert life.host.works == ["stage"]
    eventually(lambda: [each.get("stagedPoolRevision") for each in life.reports][-1:] == [5])
    assert life.session.node.versions.current == "1"


def test_failed_staging_is_retried_with_growing_pauses(life: StagingLife) -> None:
    life.host.staging_outcomes = [FAILED] * 3
    orders(life)
    for count, pause in enumerate(RETRY_SECONDS[:2], 1):
        life.ends_work()
        found = condition(life)
        assert found
        assert (found["status"], found["reason"]) == ("True", "ArtifactUnreachable")
        assert found["message"] == "No mirror. Wait."
        life.waits(pause - 1)
        assert life.host.works == ["stage"] * count
        life.waits(1)
        life.runs(*["stage"] * (count + 1))
    life.ends_work()
    orders(life, NextConfig(6, LATER))  # another one is tried at once
    life.runs(*["stage"] * 4)
    life.ends_work()
    assert report(life)["stagedPoolRevision"] == 6
    assert condition(life) is None


def test_next_config_that_always_changes_is_not_always_staged(life: Life) -> None:
    """A provider that flips the next configuration would make the machine download for ever."""
    for number in range(1, MAX_TARGETS + 5):
        orders(life, NextConfig(number, LATER))
        if number <= MAX_TARGETS:
            life.runs(*["stage"] * number)
            life.ends_work()
    life.waits(60)
    assert life.host.works == ["stage"] * MAX_TARGETS
    orders(life, None)
    life.runs(*["stage"] * (MAX_TARGETS + 1))  # what is not needed is removed in any case
    life.ends_work()
    orders(life)
    life.waits(TARGETS_SECONDS)
    life.runs(*["stage"] * (MAX_TARGETS + 2))
    life.ends_work()
    assert report(life)["stagedPoolRevision"] == 5


def test_killed_staging_is_repeated_soon_but_not_in_a_loop(life: StagingLife) -> None:
    life.host.staging_outcomes = [None, None]
    orders(life)
    life.ends_work()
    assert life.host.works == ["stage"]
    life.waits(max(KILLED_RETRY_SECONDS[0], RETRY_SECONDS[0]))
    life.runs("stage", "stage")


def test_staging_keeps_its_pause_when_the_daemon_restarts(start_daemon: StartDaemon) -> None:
    host = StagingHost()
    staging_config.store_config(host, FIVE)
    known = staging_config.read_config(host)
    assert known
    job_result.STAGING.write(host, replace(FAILED, version=known.identity))
    life = start_daemon(host=host)
    assert host.works == []
    assert condition(life)
    life.waits(RETRY_SECONDS[0])
    life.runs("stage")


def test_daemon_waits_for_the_staging_job_of_its_predecessor(start_daemon: StartDaemon) -> None:
    host = StagingHost()
    staging_config.store_config(host, FIVE)
    host.apply(StartUnit(STAGE_UNIT))
    life = start_daemon(host=host)
    life.waits(RETRY_SECONDS[-1])
    assert host.works == []
    host.apply(StopUnit(STAGE_UNIT))
    life.ends_work()
    assert life.events("job-finished") == ["stage failed: The stage job exited without a result: no log output"]
    life.waits(RETRY_SECONDS[0])
    life.runs("stage")


def test_staging_refused_by_policy_is_retried_when_it_changes(life: StagingLife) -> None:
    assert isinstance(life.host, StagingHost)
    refused = JobResult(JobKind.STAGE, JobStatus.REFUSED, "RefusedByPolicy", "forbidden", retryable=True)
    life.host.staging_outcomes = [refused]
    orders(life)
    life.ends_work()
    life.waits(RETRY_SECONDS[-1])
    assert life.host.works == ["stage"]
    life.changes_policy()
    life.runs("stage", "stage")


def test_staged_programs_that_vanish_are_staged_again(life: Life) -> None:
    orders(life)
    life.ends_work()
    life.host.apply(Remove(staging_config.record_file(FOLDER).path))
    assert "stagedPoolRevision" not in report(life)
    life.waits(1)
    life.runs("stage", "stage")


def test_nothing_is_staged_while_updates_are_paused(start_daemon: StartDaemon) -> None:
    life = start_daemon(host=StagingHost(settings(secret=OLD, updatePolicy={"paused": True})))
    orders(life)
    assert life.host.works == []


def test_repair_runs_beside_a_long_download(life: Life) -> None:
    life.host.goes_on.clear()
    orders(life)
    life.runs("stage")
    life.drift = (CHANGED,)
    life.waits(life.session.node.config.agent.drift_seconds)
    life.runs("stage", "repair")
    assert StopUnit(STAGE_UNIT) not in life.host.done


def test_update_stops_a_running_download_and_goes_first(life: Life) -> None:
    life.host.goes_on.clear()
    orders(life)
    life.runs("stage")
    staging_config.store_config(life.host, None)
    life.receives_config()
    life.runs("stage", "update")
    assert StopUnit(STAGE_UNIT) in life.host.done
    assert condition(life) is None


def test_staged_programs_are_not_removed_before_their_update(life: Life) -> None:
    orders(life)
    life.ends_work()
    life.host.outcomes = [JobResult(JobKind.UPDATE, JobStatus.DEFERRED, "Paused", version="2", retryable=True)]
    life.stores_config()
    orders(life, None)
    life.ends_work()
    life.waits(1)
    assert life.host.works == ["stage", "update"]
    life.host.apply(Remove(NEXT_CONFIG))
    life.waits(1)
    life.runs("stage", "update", "stage")
    eventually(lambda: life.host.stat(FOLDER) is None)


def test_malformed_next_config_is_logged(life: Life) -> None:
    life.hears(replace(tells(None), next_problem="`nextConfig` is not an object"))
    expected = "The next configuration of the provider is ignored: `nextConfig` is not an object."
    assert life.events("next-configuration-invalid") == [expected]


# failedConfigVersion


def ends_with(life: Life, result: JobStatus, version: str = "2", reason: str = "why") -> None:
    life.receives_config(outcome=JobResult(JobKind.UPDATE, result, reason, "Because.", version=version))
    life.ends_work()


@pytest.mark.parametrize(
    ("result", "version", "reason", "reported"),
    [
        (JobStatus.FAILED, "2", "why", "2"),
        (JobStatus.REFUSED, "2", "why", "2"),
        (JobStatus.ROLLED_BACK, "2", "why", "2"),
        (JobStatus.DEFERRED, "2", "why", None),
        (JobStatus.DONE, "2", "why", None),
        (JobStatus.FAILED, "", "disk-full", "2"),
        (JobStatus.FAILED, "", JOB_KILLED, None),
        (JobStatus.FAILED, "", "JobExited", None),
    ],
)
def test_only_a_failed_update_is_reported_with_its_version(
    life: Life, result: JobStatus, version: str, reason: str, reported: str | None
) -> None:
    ends_with(life, result, version, reason)
    assert report(life).get("failedConfigVersion") == reported
    if reported:
        eventually(lambda: life.reports[-1:] != [] and life.reports[-1].get("failedConfigVersion") == reported)


def test_failed_version_survives_a_restart_and_ends_with_another_config(
    life: Life, start_daemon: StartDaemon
) -> None:
    ends_with(life, JobStatus.REFUSED)
    again = start_daemon(host=life.host)
    assert report(again)["failedConfigVersion"] == "2"
    life.stores_config("3")
    assert "failedConfigVersion" not in report(again)


def test_report_omits_new_fields_for_a_provider_that_is_one_version_older() -> None:
    refused = PollResult(ProviderState.FAILING, "unknown field", code="InvalidRequestContent")

    class OlderProvider(FakeProvider):
        def post_action(self, action: str, body: Any = None) -> dict[str, Any]:
            super().post_action(action, body)
            if "newField" in body:
                raise ProviderRequestError(refused)
            return {}

    provider = OlderProvider()
    known = {"agentVersion": "1", "stagedPoolRevision": 5, "failedConfigVersion": "2"}
    provider.real.report_status({**known, "newField": "x"})
    assert [body for _, body in provider.acts][-1] == known


def test_damaged_staging_config_counts_as_none() -> None:
    host = FakeHost()
    for content in (b"", b"[", b"{}", b"[" * 100_000, json.dumps({"poolRevision": 5}).encode()):
        put(host, STAGING_CONFIG, content)
        assert staging_config.read_config(host) is None
