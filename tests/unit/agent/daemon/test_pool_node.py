"""The daemon of a node in an AKS pool: what the deletion of the Node allows, alone and with a changed Machine."""

from __future__ import annotations

import threading
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.config_sources.source import (
    LocalSource,
    PollSchedule,
    SourceDescription,
    SourceKind,
)
from aks_flex_node.agent.daemon.controller import HEALTH_SECONDS
from aks_flex_node.agent.daemon.lifecycle import REREAD_SECONDS, NodeChanged
from aks_flex_node.agent.job_records.job_result import WAITING_FOR_NODE_DELETION, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import NODE_RELEASED_OPTION
from aks_flex_node.agent.paths import DAEMON_STATE, NEXT_CONFIG, RELEASED_CONFIG
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.lean_dataclass import dataclass
from tests.unit.agent.daemon.fakes import OLD, READY, WELL, FakeHost, bundle, eventually, kept, put, settings
from tests.unit.agent.daemon.harness import GONE, GOOD, Life

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.agent.daemon.harness import StartDaemon

INTERVAL = 60.0
SCHEDULE = PollSchedule(INTERVAL)
POOL = SourceDescription(SourceKind.AKS_POOL, "/pool", "edge-1")
FIRST = replace(WELL, node=replace(READY, uid="uid-1"))
BACK = replace(WELL, node=replace(READY, uid="uid-2"))
MISSING = replace(WELL, node=None, node_missing=True)
MARKED = replace(
    WELL,
    node=replace(READY, uid="uid-1", taints=(("kubernetes.azure.com/flex-node-deleting", "true", "NoSchedule"),)),
)
WAITING = JobResult(JobKind.UPDATE, JobStatus.DEFERRED, WAITING_FOR_NODE_DELETION, version="2", retryable=True)
ROLLED_BACK = JobResult(JobKind.UPDATE, JobStatus.ROLLED_BACK, "service-failed", "It broke.", version="2")
AWAY = PollResult(ProviderState.UNREACHABLE, "Azure Resource Manager unreachable: no route.")


@dataclass(frozen=True)
class FakePool(LocalSource):
    """A pool whose polls wait until the end; the test puts their results."""

    description: SourceDescription = POOL
    schedule: PollSchedule | None = SCHEDULE
    signals_by_node: bool = True
    polls: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def poll(self, version: str, wait: int) -> PollResult:  # noqa: ARG002
        self.polls.append(version)
        self.over.wait(60)
        return GOOD


@pytest.fixture
def pool() -> Iterator[FakePool]:
    pool = FakePool()
    yield pool
    pool.over.set()


@pytest.fixture
def open_pool_node(start_daemon: StartDaemon, pool: FakePool) -> StartDaemon:
    def start(**more: Any) -> Life:
        host = FakeHost({**settings(secret=OLD), "continuousMonitoring": False, **more})
        return start_daemon(host=host, source=pool, sight=FIRST)

    return start


@pytest.fixture
def life(open_pool_node: StartDaemon) -> Life:
    """A node of a pool whose Machine has been read once."""
    life = open_pool_node()
    life.hears(GOOD)
    return life


def pending(life: Life, result: JobResult = WAITING, version: str = "2") -> None:
    """Lets a changed Machine arrive, and the update end with this result."""
    changed(life, result, version)
    eventually(lambda: not life.host.outcomes)
    life.ends_work()


def changed(life: Life, result: JobResult = WAITING, version: str = "2") -> None:
    """Lets a changed Machine arrive, whose update will end with this result."""
    put(life.host, NEXT_CONFIG, bundle(version, {**settings(secret=OLD), "continuousMonitoring": False}))
    life.session.connection.receiver.newest_version = version  # type: ignore[union-attr]
    life.host.outcomes = [result]
    life.hears(replace(GOOD, changed=True, version=version))


def deleted(life: Life, sight: Any = MISSING) -> None:
    """Lets the Node be deleted, and the watch notice it."""
    life.sight = sight
    life.notices(NodeChanged(is_deleted=True))


def finishes(life: Life, outcome: JobResult) -> None:
    """Lets the job of the next poll end in this way, and the kubelet register the Node again meanwhile."""
    life.host.outcomes = [outcome]
    life.hears(GOOD)
    eventually(lambda: not life.host.outcomes)
    life.sight = BACK
    life.ends_work()


def test_update_waits_until_the_node_is_deleted_and_the_machine_read(life: Life) -> None:
    pending(life)
    for _ in range(4):
        life.waits(HEALTH_SECONDS * 3)
    assert life.host.works == ["update"]  # staged, and not tried again while the Node exists
    assert life.condition("ConfigApplied")["reason"] == WAITING_FOR_NODE_DELETION
    deleted(life)
    assert life.host.works == ["update"]  # the Machine is read again first
    life.hears(GOOD)
    eventually(lambda: len(life.host.works) == 2)
    assert life.host.job_arguments[-1] == (NODE_RELEASED_OPTION,)


def test_running_update_is_told_that_the_node_was_deleted_for_it(life: Life) -> None:
    life.host.goes_on.clear()  # the update stages its programs
    changed(life)
    life.runs("update")
    deleted(life)
    assert life.host.read(RELEASED_CONFIG) is None  # the Machine is read again first
    life.hears(GOOD)
    assert life.host.read(RELEASED_CONFIG) == b"2"
    life.host.goes_on.set()
    life.ends_work()
    assert life.host.read(RELEASED_CONFIG) is None


def test_node_deleted_with_an_unchanged_machine_is_recovered(life: Life) -> None:
    deleted(life)
    life.waits(HEALTH_SECONDS)
    assert life.host.works == []
    life.hears(GOOD)
    life.runs("recover")


def test_deleted_node_is_recovered_when_azure_stays_away(life: Life) -> None:
    deleted(life)
    life.hears(AWAY, after=HEALTH_SECONDS)
    assert life.host.works == []
    life.waits(REREAD_SECONDS)
    life.runs("recover")


def test_deletion_while_azure_was_away_allows_the_later_update(life: Life) -> None:
    life.hears(AWAY)
    life.sight = BACK  # deleted and registered again by a reboot
    life.waits(HEALTH_SECONDS)
    pending(life, JobResult(JobKind.UPDATE, JobStatus.DONE, version="2"))
    assert life.host.job_arguments[-1] == (NODE_RELEASED_OPTION,)


def test_deletion_before_an_unchanged_machine_allows_no_later_update(life: Life) -> None:
    life.sight = BACK
    life.waits(HEALTH_SECONDS)
    life.hears(GOOD)  # a person deleted the Node: no newer settings
    pending(life)
    assert life.host.job_arguments[-1] == ()


def test_rolled_back_update_uses_up_the_deletion_of_the_node(life: Life) -> None:
    pending(life)
    deleted(life)
    finishes(life, ROLLED_BACK)
    life.hears(GOOD)
    pending(life, replace(WAITING, version="3"), "3")
    assert life.host.job_arguments[-1] == ()
    assert (kept(life.host, DAEMON_STATE) or {})["settled_node"] == "uid-2"


def test_second_deletion_during_an_update_allows_the_next_one(life: Life) -> None:
    pending(life)
    deleted(life)
    # AKS changed the Machine again, and deleted the Node that the update had ended with.
    finishes(life, JobResult(JobKind.UPDATE, JobStatus.DONE, version="2", node_uid="uid-1"))
    pending(life, replace(WAITING, version="3"), "3")
    assert life.host.job_arguments[-1] == (NODE_RELEASED_OPTION,)


def test_recovery_after_a_refused_change_uses_up_the_deletion_of_the_node(life: Life) -> None:
    pending(life, JobResult(JobKind.UPDATE, JobStatus.REFUSED, version="2"))
    deleted(life)
    life.waits(HEALTH_SECONDS)
    finishes(life, JobResult(JobKind.RECOVER, JobStatus.DONE))
    life.hears(GOOD)
    pending(life, replace(WAITING, version="3"), "3")
    assert life.host.works[-2:] == ["recover", "update"]
    assert life.host.job_arguments[-1] == (), "a person deleted the Node, and the recovery restored it"


@pytest.mark.parametrize(("sight", "works"), [(FIRST, []), (MARKED, ["unbootstrap"]), (MISSING, ["unbootstrap"])])
def test_missing_machine_counts_with_the_signal_on_the_node(life: Life, sight: Any, works: list[str]) -> None:
    life.sight = sight
    life.hears(GONE)
    life.waits(HEALTH_SECONDS)
    assert life.host.works == []  # neither removed nor registered again before the second response
    life.hears(GONE, after=INTERVAL)
    eventually(lambda: life.host.works == works)


def test_node_is_kept_by_policy_when_its_machine_is_deleted(open_pool_node: StartDaemon) -> None:
    life = open_pool_node(agent={"unbootstrapOnDelete": False})
    life.hears(GOOD)
    life.sight = MARKED
    life.hears(GONE)
    life.hears(GONE, after=INTERVAL)
    life.waits(HEALTH_SECONDS)
    assert life.host.works == []


def test_pool_node_reports_nothing_and_polls_on_node_events(life: Life, pool: FakePool) -> None:
    assert life.session.connection
    assert life.session.connection.reporter is None
    eventually(lambda: pool.polls == ["1"])
    life.notices(NodeChanged(is_deleted=False))
    assert life.session.connection.poller._woken.is_set()
