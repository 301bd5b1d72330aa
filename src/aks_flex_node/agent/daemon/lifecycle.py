"""The states of a managed node, and what the daemon does at each event. Pure: the controller carries it out.

Three parts of the state change independently: what the config source says of the node (`Leaving`), its Node in the
cluster (`NodeDeletion`), and its credentials (`Credentials`). docs/managed-nodes.md draws them. Each event decides on
the next state of the node and on one step.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum, auto
from math import inf
from typing import TypeAlias

from aks_flex_node.agent.cluster.node_health import NodeHealth
from aks_flex_node.agent.daemon.scheduler import JobHistory, next_job
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.jobs.registry import KEEP_NODE_OPTION, NODE_RELEASED_OPTION, Job, SchedulerInput
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, ProviderState
from aks_flex_node.lean_dataclass import frozen

REREAD_SECONDS = 90.0  # to wait for the source before a deleted Node is registered again
CONFLICT_SECONDS = 600.0  # twice the time after which the provider accepts another machine


@frozen
class Leaving:
    """The source answers that the node must leave this machine: it was deleted, or lives on another machine."""

    answer: ProviderState
    since: float = inf  # the first of consecutive answers to this session of the daemon
    is_confirmed: bool = False

    @property
    def is_deletion(self) -> bool:
        return self.answer is ProviderState.DELETED


@frozen
class NodeDeletion:
    """The source deleted the Node since the configuration in effect was settled. It may be back with another UID."""

    since: float  # when it was noticed
    is_explained: bool = False  # the source has answered since then, so its newest configuration is known


class Credentials(Enum):
    KEPT = auto()
    DOUBTED = auto()  # lost at one health check, or the watch of the Node reports its deletion
    LOST = auto()  # confirmed by another health check


@frozen
class Lifecycle:
    """The state of a managed node while one configuration is in effect."""

    poll_seconds: float | None  # between two polls of the source; None for a standalone node
    signals_by_node: bool  # whether the source deletes or marks the Node to allow a disturbance or confirm a removal
    leaving: Leaving | None = None
    deletion: NodeDeletion | None = None  # of a Node by which the source signals
    credentials: Credentials = Credentials.KEPT
    settled_node: str = ""  # UID of the Node that has the configuration in effect; another UID shows a deletion
    health: NodeHealth = field(default_factory=NodeHealth)  # at the last check

    @property
    def must_leave(self) -> bool:
        """Whether the answer is confirmed, for a deletion also by the Node if the source uses that signal."""
        if not (self.leaving and self.leaving.is_confirmed):
            return False
        node = self.health.node
        is_signalled = self.deletion is not None or (node is not None and node.is_marked_for_removal)
        return is_signalled or not (self.leaving.is_deletion and self.signals_by_node)

    @property
    def is_released(self) -> bool:
        """Whether the source deleted the Node to allow a disturbance. Its newest configuration is known."""
        return self.deletion is not None and self.deletion.is_explained

    def must_recover(self, now: float, *, may_unbootstrap: bool) -> bool:
        """Whether the credentials are lost. A deleted Node is registered again only after the source was asked for
        its reason, in vain or not, and did not answer that the node resource is deleted.
        """
        if self.credentials is not Credentials.LOST:
            return False
        if not (self.deletion and self.health.node_missing):
            return True
        if self.leaving and self.leaving.is_deletion and may_unbootstrap:
            return False
        return self.deletion.is_explained or now - self.deletion.since >= REREAD_SECONDS


class Step(Enum):
    """What the daemon does at an event, if it does not start a job."""

    LOCATE_NODE = auto()
    WAKE_POLLER = auto()  # the source is asked at once what a change of the Node means
    RELEASE_UPDATE = auto()  # the running update may disturb the node, and need not end and start again


@frozen
class StartJob:
    job: Job
    arguments: tuple[str, ...] = ()


Decision: TypeAlias = "tuple[Lifecycle, Step | StartJob | None]"


@frozen
class SourceAnswered:
    """The source answered a poll, or it could not be polled."""

    state: ProviderState
    is_applied: bool  # the newest configuration of the source is in effect

    def decide(self, state: Lifecycle, now: float) -> Decision:
        """A node leaves after two consecutive answers, one interval apart, because unbootstrap cannot be reverted. An
        undecided conflict takes longer, and ends here only if the Node certainly lives on another machine: the ID of
        this machine may have changed.
        """
        deletion, settled, node = state.deletion, state.settled_node, state.health.node
        if self.state is ProviderState.CONNECTED:
            deletion = deletion and replace(deletion, is_explained=True)
            if self.is_applied and node and node.uid:
                # The source has no newer configuration for this Node: a later deletion of it is a new signal.
                deletion, settled = None, node.uid
        step, leaving = None, state.leaving
        if self.state not in LEAVING_STATES:
            leaving = None
        elif leaving is None or leaving.answer is not self.state or leaving.since > now:
            leaving = Leaving(self.state, now)
        elif self.state is not ProviderState.ON_ANOTHER_MACHINE:
            leaving = replace(leaving, is_confirmed=now - leaving.since >= (state.poll_seconds or 0.0))
        elif now - leaving.since >= CONFLICT_SECONDS:
            step = Step.LOCATE_NODE
        return replace(state, leaving=leaving, deletion=deletion, settled_node=settled), step


@frozen
class NodeLocated:
    is_elsewhere: bool  # the Node certainly lives on another machine

    def decide(self, state: Lifecycle, _now: float) -> Decision:
        return replace(state, leaving=state.leaving and replace(state.leaving, is_confirmed=self.is_elsewhere)), None


@frozen
class NodeChanged:
    """The Node was deleted, created again or changed in its metadata."""

    is_deleted: bool

    def decide(self, state: Lifecycle, _now: float) -> Decision:
        if self.is_deleted and state.credentials is Credentials.KEPT:
            # The watch and the next health check confirm each other.
            state = replace(state, credentials=Credentials.DOUBTED)
        return state, Step.WAKE_POLLER if state.signals_by_node else None


@frozen
class HealthChecked:
    health: NodeHealth
    running: JobKind | None = None

    def decide(self, state: Lifecycle, now: float) -> Decision:
        """Lost credentials count only when no job runs. A standalone node has only the token of its configuration, so
        a certificate that still works is kept.
        """
        health, deletion, credentials = self.health, None, Credentials.KEPT
        uid = health.node.uid if health.node else ""
        settled = state.settled_node or uid
        if state.signals_by_node and (health.node_missing or (health.node and uid != settled)):
            deletion = state.deletion or NodeDeletion(now)
        if not self.running and (health.lost_reason if state.poll_seconds is None else health.recovery_reason):
            is_confirmed = state.credentials is not Credentials.KEPT
            credentials = Credentials.LOST if is_confirmed else Credentials.DOUBTED
        step = Step.WAKE_POLLER if deletion and not state.deletion else None
        return replace(state, health=health, settled_node=settled, deletion=deletion, credentials=credentials), step


@frozen
class JobEnded:
    result: JobResult
    update: JobResult | None  # the last update

    def decide(self, state: Lifecycle, _now: float) -> Decision:
        """A deletion of the Node permits no further disturbance when the update is over, or when the node was
        recovered although its newest configuration will not be applied.
        """
        result, update = self.result, self.update
        is_given_up = update is not None and update.result in {JobStatus.ROLLED_BACK, JobStatus.REFUSED}
        is_over = {
            JobKind.UPDATE: result.result in {JobStatus.DONE, JobStatus.ROLLED_BACK},
            JobKind.RECOVER: result.is_done and is_given_up,
        }
        return replace(state, settled_node=result.node_uid) if is_over.get(result.kind) else state, None


@frozen
class JobDue:
    """The checks are done, and a job may start."""

    history: JobHistory
    facts: SchedulerInput | None  # without those of this state; None if another command is changing the machine
    running: JobKind | None = None

    def decide(self, state: Lifecycle, now: float) -> Decision:
        if self.running is JobKind.UPDATE and state.is_released:
            return state, Step.RELEASE_UPDATE
        if self.running or self.facts is None:
            return state, None
        leaving = state.leaving
        is_deletion = leaving is not None and leaving.is_deletion
        inputs = replace(
            self.facts,
            deleted=state.must_leave and is_deletion,
            replaced=state.must_leave and not is_deletion,
            credentials_lost=state.must_recover(now, may_unbootstrap=self.facts.may_unbootstrap),
            node_released=state.is_released,
        )
        job = next_job(inputs, self.history, now)
        options = {
            JobKind.UNBOOTSTRAP: (KEEP_NODE_OPTION,) if leaving and not is_deletion else (),
            JobKind.UPDATE: (NODE_RELEASED_OPTION,) if state.is_released else (),
            JobKind.STAGE: (inputs.staging,),
        }
        return state, StartJob(job, options.get(job.kind, ())) if job else None


LifecycleEvent: TypeAlias = "SourceAnswered | NodeLocated | NodeChanged | HealthChecked | JobEnded | JobDue"
