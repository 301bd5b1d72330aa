"""Tables of the states of a managed node: every state with every event, and the job. Then any sequence of events."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from aks_flex_node.agent.daemon.lifecycle import (
    CONFLICT_SECONDS,
    REREAD_SECONDS,
    Credentials,
    HealthChecked,
    JobDue,
    JobEnded,
    Leaving,
    Lifecycle,
    NodeChanged,
    NodeDeletion,
    NodeLocated,
    SourceAnswered,
    StartJob,
    Step,
)
from aks_flex_node.agent.daemon.scheduler import JobHistory
from aks_flex_node.agent.job_records.job_result import WAITING_FOR_NODE_DELETION, JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import SchedulerInput
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, ProviderState
from tests.unit.agent.daemon.fakes import READY, WELL
from tests.unit.agent.daemon.harness import WORN

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.node_health import NodeHealth
    from aks_flex_node.agent.daemon.lifecycle import Decision, LifecycleEvent

NOW, MINUTE = 10_000.0, 60.0
SETTLED = replace(WELL, node=replace(READY, uid="uid-1"))
RECREATED = replace(WELL, node=replace(READY, uid="uid-2"))
MARK = ("kubernetes.azure.com/flex-node-deleting", "true", "NoSchedule")
MARKED = replace(WELL, node=replace(READY, uid="uid-1", taints=(MARK,)))
MISSING = replace(WELL, node=None, node_missing=True)
AWAY = replace(WELL, node=None, api_error="The API server is unreachable.")

# What the source says; a name with `?` is not confirmed.
SOURCES: dict[str, Leaving | None] = {
    "member": None,
    "deleted?": Leaving(ProviderState.DELETED, NOW - 30),
    "deleted": Leaving(ProviderState.DELETED, NOW - 100, is_confirmed=True),
    "moved?": Leaving(ProviderState.REPLACED, NOW - 30),
    "moved": Leaving(ProviderState.REPLACED, NOW - 100, is_confirmed=True),
    "conflict?": Leaving(ProviderState.ON_ANOTHER_MACHINE, NOW - 30),
    "conflict": Leaving(ProviderState.ON_ANOTHER_MACHINE, NOW - 700, is_confirmed=True),
    "before": Leaving(ProviderState.DELETED),  # to an earlier session of the daemon
}
# The Node: `gone` or created again as a `new` one; `+read`: the source has answered since then.
NODES: dict[str, dict[str, Any]] = {
    "settled": {"health": SETTLED},
    "marked": {"health": MARKED},
    "gone": {"health": MISSING, "deletion": NodeDeletion(NOW - 30)},
    "gone+read": {"health": MISSING, "deletion": NodeDeletion(NOW - 30, is_explained=True)},
    "new": {"health": RECREATED, "deletion": NodeDeletion(NOW - 30)},
    "new+read": {"health": RECREATED, "deletion": NodeDeletion(NOW - 30, is_explained=True)},
}
CREDENTIALS = {each.name.lower(): each for each in Credentials}


def pool_node(source: str = "member", node: str = "settled", credentials: str = "kept", **more: Any) -> Lifecycle:
    """Returns a node of a pool, which signals by the Node."""
    parts = {"leaving": SOURCES[source], "credentials": CREDENTIALS[credentials], **NODES[node]}
    known = {"signals_by_node": True, "settled_node": "uid-1"}
    return Lifecycle(MINUTE, **{**known, **parts, **more})


def answer(state: ProviderState, *, applied: bool = False) -> SourceAnswered:
    return SourceAnswered(state, applied)


def ended(kind: JobKind, result: JobStatus, update: JobStatus | None = None) -> JobEnded:
    last = JobResult(JobKind.UPDATE, update) if update else None
    return JobEnded(JobResult(kind, result, node_uid="uid-9" if kind is JobKind.UPDATE else ""), last)


DELETED, MOVED, CONFLICT = ProviderState.DELETED, ProviderState.REPLACED, ProviderState.ON_ANOTHER_MACHINE
EVENTS: dict[str, tuple[LifecycleEvent, float]] = {  # and the seconds that pass before
    "answer: newer config": (answer(ProviderState.CONNECTED), 0),
    "answer: no change": (answer(ProviderState.CONNECTED, applied=True), 0),
    "answer: unreachable": (answer(ProviderState.UNREACHABLE), 0),
    "answer: deleted": (answer(DELETED), 0),
    "answer: deleted later": (answer(DELETED), MINUTE),
    "answer: moved": (answer(MOVED), 0),
    "answer: moved later": (answer(MOVED), MINUTE),
    "answer: conflict": (answer(CONFLICT), CONFLICT_SECONDS - 31),
    "answer: conflict later": (answer(CONFLICT), CONFLICT_SECONDS),
    "located: elsewhere": (NodeLocated(is_elsewhere=True), 0),
    "located: not elsewhere": (NodeLocated(is_elsewhere=False), 0),
    "watch: Node deleted": (NodeChanged(is_deleted=True), 0),
    "watch: Node changed": (NodeChanged(is_deleted=False), 0),
    "health: well": (HealthChecked(SETTLED), 0),
    "health: marked": (HealthChecked(MARKED), 0),
    "health: another Node": (HealthChecked(RECREATED), 0),
    "health: Node missing": (HealthChecked(MISSING), 0),
    "health: cluster away": (HealthChecked(AWAY), 0),
    "health: lost": (HealthChecked(replace(SETTLED, has_certificate=False)), 0),
    "health: expires soon": (HealthChecked(replace(WORN, node=SETTLED.node)), 0),
    "health: lost in job": (HealthChecked(replace(SETTLED, has_certificate=False), JobKind.UPDATE), 0),
    "update done": (ended(JobKind.UPDATE, JobStatus.DONE), 0),
    "update failed": (ended(JobKind.UPDATE, JobStatus.FAILED), 0),
    "job due": (JobDue(JobHistory.empty(), SchedulerInput()), 0),
}


def cells(table: str) -> list[tuple[str, str, str]]:
    """Returns (state, event, next state) for each cell of a table. An event without a row changes nothing: `=`."""
    states, *lines = ([cell.strip() for cell in line.split("|")] for line in table.strip().splitlines())
    known = {event: following for event, *following in lines}
    assert set(known) <= set(EVENTS)
    every = [(state, event, number) for number, state in enumerate(states[1:]) for event in EVENTS]
    return [(state, event, known[event][number] if event in known else "=") for state, event, number in every]


def happen(state: Lifecycle, event: str) -> Decision:
    what, seconds = EVENTS[event]
    return what.decide(state, NOW + seconds)


def source_of(state: Lifecycle) -> str:
    names = {DELETED: "deleted", MOVED: "moved", CONFLICT: "conflict"}
    leaving = state.leaving
    if leaving is None or leaving.since > NOW + CONFLICT_SECONDS:
        return "before" if leaving else "member"
    return names[leaving.answer] + ("" if leaving.is_confirmed else "?")


def node_of(state: Lifecycle) -> str:
    if state.deletion is None:
        node = state.health.node
        return "marked" if node and node.is_marked_for_removal else "settled"
    return ("gone" if state.health.node_missing else "new") + ("+read" if state.deletion.is_explained else "")


# `locate`: the daemon asks the cluster where the Node lives. `-`: this cannot happen.
SOURCE_TABLE = """
                       | member    | deleted?  | deleted   | moved?    | moved     | conflict? | conflict  | before
answer: newer config   | =         | member    | member    | member    | member    | member    | member    | member
answer: no change      | =         | member    | member    | member    | member    | member    | member    | member
answer: unreachable    | =         | member    | member    | member    | member    | member    | member    | member
answer: deleted        | deleted?  | =         | =         | deleted?  | deleted?  | deleted?  | deleted?  | deleted?
answer: deleted later  | deleted?  | deleted   | =         | deleted?  | deleted?  | deleted?  | deleted?  | deleted?
answer: moved          | moved?    | moved?    | moved?    | =         | =         | moved?    | moved?    | moved?
answer: moved later    | moved?    | moved?    | moved?    | moved     | =         | moved?    | moved?    | moved?
answer: conflict       | conflict? | conflict? | conflict? | conflict? | conflict? | =         | locate    | conflict?
answer: conflict later | conflict? | conflict? | conflict? | conflict? | conflict? | locate    | locate    | conflict?
located: elsewhere     | =         | -         | -         | -         | -         | conflict  | =         | -
located: not elsewhere | =         | -         | -         | -         | -         | =         | conflict? | -
"""


@pytest.mark.parametrize(("source", "event", "expected"), cells(SOURCE_TABLE))
def test_node_leaves_only_after_confirmed_answers(source: str, event: str, expected: str) -> None:
    after, step = happen(pool_node(source), event)
    assert source_of(after) == (source if expected in {"=", "locate"} else expected) or expected == "-"
    assert (step is Step.LOCATE_NODE) == (expected == "locate")


@pytest.mark.parametrize("state", [each for each in ProviderState if each not in LEAVING_STATES], ids=str)
def test_any_other_answer_ends_the_departure(state: ProviderState) -> None:
    assert all(answer(state).decide(pool_node(source), NOW)[0].leaving is None for source in SOURCES)


# `poll`: the source is asked at once.
NODE_TABLE = """
                       | settled   | marked    | gone      | gone+read | new       | new+read
answer: newer config   | =         | =         | gone+read | =         | new+read  | =
answer: no change      | =         | =         | gone+read | =         | settled   | settled
answer: unreachable    | =         | =         | =         | =         | =         | =
watch: Node deleted    | = poll    | = poll    | = poll    | = poll    | = poll    | = poll
watch: Node changed    | = poll    | = poll    | = poll    | = poll    | = poll    | = poll
health: well           | =         | settled   | settled   | settled   | settled   | settled
health: marked         | marked    | =         | marked    | marked    | marked    | marked
health: another Node   | new poll  | new poll  | new       | new+read  | =         | =
health: Node missing   | gone poll | gone poll | =         | =         | gone      | gone+read
health: cluster away   | =         | settled   | settled   | settled   | settled   | settled
health: lost           | =         | settled   | settled   | settled   | settled   | settled
health: expires soon   | =         | settled   | settled   | settled   | settled   | settled
health: lost in job    | =         | settled   | settled   | settled   | settled   | settled
"""


@pytest.mark.parametrize(("node", "event", "expected"), cells(NODE_TABLE))
def test_deletion_of_the_node_counts_until_its_configuration_is_settled(node: str, event: str, expected: str) -> None:
    after, step = happen(pool_node(node=node), event)
    following = expected.removesuffix(" poll")
    assert node_of(after) == (node if following == "=" else following)
    assert (step is Step.WAKE_POLLER) == expected.endswith(" poll")
    other, step = happen(replace(pool_node(node=node), signals_by_node=False, deletion=None), event)
    assert other.deletion is None, "the provider does not signal by the Node"
    assert step is not Step.WAKE_POLLER


CREDENTIALS_TABLE = """
                     | kept    | doubted | lost
watch: Node deleted  | doubted | =       | =
health: well         | =       | kept    | kept
health: marked       | =       | kept    | kept
health: another Node | =       | kept    | kept
health: cluster away | =       | kept    | kept
health: lost in job  | =       | kept    | kept
health: Node missing | doubted | lost    | =
health: lost         | doubted | lost    | =
health: expires soon | doubted | lost    | =
"""


@pytest.mark.parametrize(("credentials", "event", "expected"), cells(CREDENTIALS_TABLE))
def test_loss_of_credentials_is_confirmed_by_another_check(credentials: str, event: str, expected: str) -> None:
    after, _ = happen(pool_node(credentials=credentials), event)
    assert after.credentials.name.lower() == (credentials if expected == "=" else expected)


def test_standalone_node_keeps_a_certificate_that_still_works() -> None:
    standalone = replace(pool_node(), poll_seconds=None, signals_by_node=False)
    assert happen(standalone, "health: expires soon")[0].credentials is Credentials.KEPT
    assert happen(standalone, "health: lost")[0].credentials is Credentials.DOUBTED


# What starts: the job, with the first letter of its option (`k`eep the Node, Node `r`eleased).
JOB_TABLE = """
source    | node      | credentials | update   | starts        | why
member    | settled   | kept        | none     | -             |
member    | settled   | doubted     | none     | -             | another check confirms the loss
member    | settled   | lost        | none     | recover       |
member    | new       | lost        | none     | recover       | its Node exists
member    | gone      | lost        | none     | -             | the source is asked first
member    | gone 90 s | lost        | none     | recover       | the source was asked in vain
member    | gone+read | lost        | none     | recover       |
member    | gone+read | doubted     | none     | -             |
deleted?  | gone+read | lost        | none     | -             | it may have to leave
before    | gone+read | lost        | none     | -             | it may have to leave
deleted?  | gone 90 s | lost        | none     | -             | it may have to leave
deleted?  | settled   | lost        | none     | recover       | its Node exists
moved?    | gone+read | lost        | none     | recover       |
deleted?  | gone      | kept        | pending  | update        |
deleted   | settled   | kept        | pending  | update        | nothing shows the removal on the Node
deleted   | marked    | lost        | pending  | unbootstrap   |
deleted   | gone      | lost        | pending  | unbootstrap   |
deleted   | new       | kept        | pending  | unbootstrap   |
moved     | settled   | lost        | pending  | unbootstrap k |
conflict  | settled   | kept        | pending  | unbootstrap k |
conflict? | settled   | kept        | none     | -             |
member    | settled   | kept        | pending  | update        |
member    | gone      | kept        | pending  | update        | it stages its programs
member    | gone+read | kept        | pending  | update r      |
member    | new+read  | lost        | pending  | update r      |
member    | settled   | kept        | waiting  | -             | the Node was not deleted for it yet
member    | new       | kept        | waiting  | -             | the source is asked first
member    | gone+read | lost        | waiting  | update r      | without a delay
member    | settled   | lost        | waiting  | recover       |
"""


@pytest.mark.parametrize(
    ("source", "node", "credentials", "update", "expected"),
    [[cell.strip() for cell in line.split("|")][:5] for line in JOB_TABLE.strip().splitlines()[1:]],
)
def test_job_depends_on_the_whole_state(source: str, node: str, credentials: str, update: str, expected: str) -> None:
    state = pool_node(source, node.removesuffix(" 90 s"), credentials)
    if node.endswith(" 90 s"):
        state = replace(state, deletion=NodeDeletion(NOW - REREAD_SECONDS))
    history = JobHistory.empty()
    if update == "waiting":
        history.record(JobResult(JobKind.UPDATE, JobStatus.DEFERRED, WAITING_FOR_NODE_DELETION, version="2"), NOW)
    facts = SchedulerInput(next_version="" if update == "none" else "2")
    same, step = JobDue(history, facts).decide(state, NOW)
    options = {(): "", ("--keep-node",): " k", ("--node-released",): " r"}
    assert same is state
    assert (f"{step.job.kind}{options[step.arguments]}" if isinstance(step, StartJob) else "-") == expected
    for running in JobKind:  # never a second job
        releases = running is JobKind.UPDATE and node.endswith("read")
        _, step = JobDue(history, facts, running).decide(state, NOW)
        assert step is (Step.RELEASE_UPDATE if releases else None)
    assert JobDue(history, None).decide(state, NOW)[1] is None, "another command is changing the machine"


def test_node_that_is_not_unbootstrapped_on_delete_is_recovered() -> None:
    facts = SchedulerInput(may_unbootstrap=False)
    _, step = JobDue(JobHistory.empty(), facts).decide(pool_node("deleted?", "gone+read", "lost"), NOW)
    assert isinstance(step, StartJob)
    assert step.job.kind is JobKind.RECOVER
    assert JobDue(JobHistory.empty(), facts).decide(pool_node("deleted", "gone+read", "lost"), NOW)[1] is None


@pytest.mark.parametrize("source", ["deleted?", "deleted"])
def test_source_that_does_not_signal_by_the_node_decides_alone(source: str) -> None:
    state = replace(pool_node(source, credentials="lost"), signals_by_node=False, health=MISSING)
    _, step = JobDue(JobHistory.empty(), SchedulerInput()).decide(state, NOW)
    assert isinstance(step, StartJob)
    assert step.job.kind is (JobKind.RECOVER if source == "deleted?" else JobKind.UNBOOTSTRAP)


@pytest.mark.parametrize(
    ("kind", "result", "update", "settled"),
    [
        (JobKind.UPDATE, JobStatus.DONE, None, "uid-9"),
        (JobKind.UPDATE, JobStatus.ROLLED_BACK, None, "uid-9"),
        (JobKind.UPDATE, JobStatus.FAILED, None, "uid-1"),
        (JobKind.UPDATE, JobStatus.DEFERRED, None, "uid-1"),
        (JobKind.RECOVER, JobStatus.DONE, None, "uid-1"),
        (JobKind.RECOVER, JobStatus.DONE, JobStatus.FAILED, "uid-1"),
        (JobKind.RECOVER, JobStatus.DONE, JobStatus.ROLLED_BACK, ""),
        (JobKind.RECOVER, JobStatus.DONE, JobStatus.REFUSED, ""),
        (JobKind.RECOVER, JobStatus.FAILED, JobStatus.REFUSED, "uid-1"),
        (JobKind.REPAIR, JobStatus.DONE, JobStatus.REFUSED, "uid-1"),
    ],
    ids=str,
)
def test_deletion_of_the_node_permits_one_disturbance(
    kind: JobKind, result: JobStatus, update: JobStatus | None, settled: str
) -> None:
    assert ended(kind, result, update).decide(pool_node(node="gone"), NOW)[0].settled_node == settled


# Any sequence of events


@dataclass
class Daemon:
    """Does what the decisions require, with a source, a cluster and jobs that the test sets; checks each job."""

    signals: bool
    state: Lifecycle = field(init=False)
    now: float = NOW
    health_due: float = NOW
    health: NodeHealth = SETTLED
    elsewhere: bool = False
    history: JobHistory = field(default_factory=JobHistory.empty)
    running: JobKind | None = None
    started: list[JobKind] = field(default_factory=list)
    answers: list[tuple[ProviderState, float, bool]] = field(default_factory=list)  # to this session; elsewhere
    missed: float | None = None  # since when the health checks of this session find no Node
    facts: SchedulerInput = field(default_factory=SchedulerInput)

    def __post_init__(self) -> None:
        self.state = Lifecycle(MINUTE, self.signals, settled_node="uid-1")

    def take(self, event: LifecycleEvent) -> None:
        self.state, step = event.decide(self.state, self.now)
        match step:
            case Step.LOCATE_NODE:
                self.take(NodeLocated(self.elsewhere))
            case StartJob():
                self.start(step)

    def turn(self, event: LifecycleEvent | None = None) -> None:
        if event:
            self.take(event)
        if self.now >= self.health_due:
            self.health_due = self.now + 2.0
            is_gone = self.health.node_missing
            self.missed = (self.now if self.missed is None else self.missed) if is_gone else None
            self.take(HealthChecked(self.health, self.running))
        self.take(JobDue(self.history, self.facts, self.running))

    def hears(self, state: ProviderState) -> None:
        self.answers.append((state, self.now, self.elsewhere))
        self.turn(answer(state))

    def start(self, step: StartJob) -> None:
        assert self.running is None, "one job at a time"
        kind = self.running = step.job.kind
        self.started.append(kind)
        if kind is JobKind.UNBOOTSTRAP:
            self.check_departure()
        if kind is JobKind.RECOVER and self.signals and self.missed is not None:
            since = self.missed
            asked = any(state is ProviderState.CONNECTED and at >= since for state, at, _ in self.answers)
            assert asked or self.now - since >= REREAD_SECONDS, "the source may have deleted the Node for an update"

    def check_departure(self) -> None:
        last, at, elsewhere = self.answers[-1]
        same = at
        for state, moment, _ in reversed(self.answers):
            if state is not last:
                break
            same = moment
        assert last in LEAVING_STATES
        assert at - same >= (CONFLICT_SECONDS if last is CONFLICT else MINUTE)
        assert elsewhere or last is not CONFLICT
        assert self.missed is not None or last is not DELETED or not self.signals, "no signal on the Node"

    def end(self, result: JobStatus) -> None:
        if self.running is None:
            return
        ended = JobResult(self.running, result, node_uid="uid-1" if self.running is JobKind.UPDATE else "")
        self.history.record(ended, self.now)
        self.running = None
        self.take(JobEnded(ended, self.history.results.get(JobKind.UPDATE)))
        before, self.answers, self.missed = self.state, [], None
        leaving = before.leaving and Leaving(before.leaving.answer)
        self.state = Lifecycle(MINUTE, self.signals, leaving, settled_node=before.settled_node)
        self.turn()


SIGHTS = (SETTLED, MISSING, AWAY, replace(SETTLED, has_certificate=False), replace(MISSING, has_certificate=False))
HAPPENINGS = st.one_of(
    st.tuples(st.just("answer"), st.sampled_from([ProviderState.CONNECTED, ProviderState.UNREACHABLE])),
    st.tuples(st.just("answer"), st.sampled_from([DELETED, MOVED, CONFLICT, CONFLICT])),
    st.tuples(st.just("sight"), st.sampled_from(SIGHTS)),
    st.tuples(st.just("elsewhere"), st.booleans()),
    st.tuples(st.just("watch"), st.booleans()),
    st.tuples(st.just("end"), st.sampled_from(JobStatus)),
    st.tuples(st.just("update"), st.booleans()),
)
WAITS = st.sampled_from([0.0, 1.0, 2.0, 24.0, 61.0, 95.0, 601.0])


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.booleans(), st.lists(st.tuples(HAPPENINGS, WAITS), max_size=60))
def test_no_sequence_of_events_harms_a_node(signals: bool, history: list[tuple[tuple[str, Any], float]]) -> None:
    daemon = Daemon(signals)
    for (what, value), seconds in history:
        match what:
            case "answer":
                daemon.hears(value)
            case "sight":
                daemon.health = value
            case "elsewhere":
                daemon.elsewhere = value
            case "watch":
                daemon.turn(NodeChanged(value))
            case "end":
                daemon.end(value)
            case "update":
                daemon.facts = SchedulerInput(unfinished=value)
        daemon.now += seconds
        daemon.turn()
    # In the end the credentials stay lost, and nothing else is to be done: the node is recovered.
    daemon.end(JobStatus.FAILED)
    daemon.facts, daemon.health = SchedulerInput(), replace(MISSING, has_certificate=False)
    daemon.started.clear()
    for _ in range(90):  # minutes: a refused job is repeated after an hour
        daemon.hears(ProviderState.UNREACHABLE)
        daemon.end(JobStatus.DONE)
        daemon.now += MINUTE
    assert JobKind.RECOVER in daemon.started
