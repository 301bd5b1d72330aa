"""Applies the next configuration: admission, staging, drain, apply, health check, commit or rollback.

The current configuration is replaced last. After a crash the next run starts again if nothing was changed, else it
continues with the apply stage and the health check, or with the rollback.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aks_flex_node.agent import context, stored_config
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config_sources.selection import waits_for_node_deletion
from aks_flex_node.agent.job_records import update_journal
from aks_flex_node.agent.job_records.job_result import (
    WAITING_FOR_NODE_DELETION,
    JobKind,
    JobResult,
    JobStatus,
)
from aks_flex_node.agent.job_records.update_journal import (
    FailedUpdate,
    NodeBaseline,
    RollbackCause,
    UpdateJournal,
    UpdateStage,
)
from aks_flex_node.agent.jobs.update import admission
from aks_flex_node.agent.jobs.update.health_check import ApiServerUnreachableError, ExpectedHealth, NodeDeletedError
from aks_flex_node.agent.jobs.update.node_operations import NodeOperations
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.errors import ArtifactError, ClusterError, ConfigError, FlexError
from aks_flex_node.host.real import RealHost
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from aks_flex_node.agent.jobs.update.admission import ConfigChanges
    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.stored_config import StoredConfig

TRANSIENT_ERRORS = frozenset(("disk-full", "filesystem-read-only"))  # not caused by the configuration
CONDITION_REASONS = {"drain-timed-out": "DrainTimedOut"}  # error name -> condition reason
CONTAINERD_UNIT = "containerd.service"
LABELLED_REASONS = frozenset(("MaintenanceWindowClosed", WAITING_FOR_NODE_DELETION))
_result = partial(JobResult, JobKind.UPDATE)


def run_update(progress: ProgressReporter, *, node_released: bool = False) -> JobResult:
    """Applies the next configuration, or continues an interrupted update."""
    with exclusive():
        return UpdateJob(NodeOperations(RealHost(), context.make_job_engine, progress), node_released).run()


@dataclass
class UpdateJob:
    operations: NodeOperations
    node_released: bool = False  # the config source deleted the Node to allow a disturbance

    def run(self) -> JobResult:
        """Runs the update; returns its result with reason and message."""
        host = self.operations.host
        try:
            config_store.finish_interrupted(host)
            config_store.restore_damaged(host)
            update_journal.set_aside_damaged(host)
            current = stored_config.read_stored(host, CURRENT_CONFIG, self.operations.env)
            if current is None:
                return _result(
                    JobStatus.FAILED,
                    "CurrentConfigMissing",
                    f"{CURRENT_CONFIG} does not exist, so a rollback is impossible.",
                    "Join the machine again with a new URL: `aks-flex-rp node join-command --name NAME`.",
                )
            journal = update_journal.JOURNAL.read(host)
            if journal and journal.stage is UpdateStage.ROLLING_BACK:
                return self._roll_back(current, journal)
            if journal and journal.identity == current.identity:
                return self._finish(current, journal)  # already in effect; only the node may still be cordoned
            return self._update(current, journal)
        except FlexError as error:
            return JobResult.of(JobKind.UPDATE, error)

    def _update(self, current: StoredConfig, journal: UpdateJournal | None) -> JobResult:
        """Reads the next configuration, and starts or resumes its update."""
        try:
            pending = stored_config.read_stored(self.operations.host, NEXT_CONFIG, self.operations.env)
        except ConfigError as error:
            refused = JobResult.of(JobKind.UPDATE, error, result=JobStatus.REFUSED, retryable=False)
            return self._decline(
                current, journal, refused, stored_config.stored_version(self.operations.host, NEXT_CONFIG)
            )
        if pending is None:
            nothing = _result(JobStatus.DONE, message="No configuration is pending.")
            return self._decline(current, journal, nothing, current.version)
        if journal and journal.stage is UpdateStage.APPLYING and journal.identity == pending.identity:
            # A crash interrupted the update in the apply stage.
            with self.operations.open_engine(pending.config) as engine:
                return self._apply(engine, current, pending, journal)
        return self._begin(current, pending, journal)

    def _begin(self, current: StoredConfig, stored: StoredConfig, journal: UpdateJournal | None) -> JobResult:
        """Checks admission, stages artifacts, drains the node, and applies the configuration."""
        difference = admission.compare_configs(current.config, stored.config)
        with contextlib.ExitStack() as stack:
            try:
                if refusal := self._check_admission(current, stored, difference):
                    return self._defer(current, stored, journal, refusal)
                engine = stack.enter_context(self.operations.open_engine(stored.config))
                self.operations.stage(engine)
                if waiting := self._check_node_released(current, stored, difference):
                    return self._defer(current, stored, journal, waiting)
                journal = self._prepare(current, stored, difference, journal)
                services = tuple(sorted({*journal.services, *self.operations.services_to_restart(engine)}))
            except FlexError as error:
                return self._decline(
                    current,
                    update_journal.JOURNAL.read(self.operations.host),
                    _rejected_before_change(error),
                    stored.version,
                )
            journal = journal.at(
                UpdateStage.APPLYING, identity=stored.identity, version=stored.version, services=services
            )
            update_journal.JOURNAL.write(self.operations.host, journal)
            return self._apply(engine, current, stored, journal)

    def _check_admission(
        self, current: StoredConfig, stored: StoredConfig, difference: ConfigChanges
    ) -> JobResult | None:
        """Returns why the update cannot run now, or None; permanent reasons before temporary ones."""
        operations, failure = self.operations, update_journal.FAILURE.read(self.operations.host)
        found = operations.check_admission(current, stored, difference, failure)
        return found or admission.check_maintenance_window(difference, stored.config, operations.now())

    def _check_node_released(
        self, current: StoredConfig, stored: StoredConfig, difference: ConfigChanges
    ) -> JobResult | None:
        """Returns why a disturbance must wait for the config source; its programs are staged already. The Node may
        have been deleted meanwhile.
        """
        self.node_released = self.node_released or update_journal.is_released(self.operations.host, stored.version)
        if self.node_released or not waits_for_node_deletion(current.config):
            return None
        services = self.operations.changed_services(current.config, stored.config)
        return admission.check_node_deletion(difference, services)

    def _prepare(
        self, current: StoredConfig, stored: StoredConfig, difference: ConfigChanges, earlier: UpdateJournal | None
    ) -> UpdateJournal:
        """Records the node's baseline, and drains the node if required."""
        touched = (
            earlier if earlier and earlier.stage is UpdateStage.APPLYING else None
        )  # an earlier update was superseded after it had changed the machine
        journal = touched or UpdateJournal(stored.identity, stored.version)
        if not touched:
            update_journal.JOURNAL.write(
                self.operations.host, journal
            )  # after a crash, the next run knows that it must uncordon the Node
        if difference.needs_drain:
            self.operations.drain(current.config, float(stored.config.update_policy.drain_timeout_seconds))
        return touched or journal.at(UpdateStage.PREPARING, before=self._snapshot(current, difference))

    def _snapshot(self, current: StoredConfig, difference: ConfigChanges) -> NodeBaseline:
        try:
            if self.node_released and self.operations.is_node_missing(current.config):
                return _baseline_without_node(current)
            return self.operations.snapshot(current.config, drained=difference.needs_drain)
        except ClusterError:
            if difference.endpoint_changed and not difference.disrupts_pods:
                return NodeBaseline()  # the API server may be reachable only with the new configuration
            raise

    def _apply(
        self, engine: Engine, current: StoredConfig, stored: StoredConfig, journal: UpdateJournal
    ) -> JobResult:
        """Applies the configuration, checks the node's health, and commits or rolls back."""
        difference = admission.compare_configs(current.config, stored.config)
        try:
            self.operations.apply(engine)
            self.operations.register_again(engine.config, journal.services)
            if journal.services:
                self.operations.check_health(engine, _expected_after_update(stored, difference, journal))
        except FlexError as error:
            inconclusive = isinstance(error, ApiServerUnreachableError) and not difference.endpoint_changed
            if inconclusive or isinstance(error, NodeDeletedError):
                return _unconfirmed(stored, error)
            return self._roll_back(current, journal.at(UpdateStage.ROLLING_BACK, cause=_rollback_cause(error)))
        try:
            self._commit(engine, stored)
        except FlexError as error:
            return _unconfirmed(stored, error)
        return self._finish(stored, journal)

    def _commit(self, engine: Engine, stored: StoredConfig) -> None:
        self.operations.label(stored.config)
        engine.sync_to_disk()
        name, machine = self.operations.node_name(stored.config), engine.machine
        self.operations.save_state(stored.config, node=name, pod_cidr=machine.pod_cidr, address=machine.address)
        config_store.commit_update(self.operations.host, stored.bundle, stored.config, stored.content)
        engine.events.emit(
            "updated", f"Configuration {stored.version} is in effect.", changes=len(engine.applied_actions)
        )

    def _finish(self, current: StoredConfig, journal: UpdateJournal) -> JobResult:
        """Removes certificates that the node no longer needs, uncordons the node and removes the journal."""
        uid = self.operations.node_uid(current.config)
        self.operations.remove_unused_certificates(current.config)
        try:
            self.operations.uncordon(current.config)
        except ClusterError as error:
            message = f"Configuration {journal.version} is in effect, but the node is still cordoned: {error.message}"
            return JobResult.of(JobKind.UPDATE, error, message=message, version=journal.version)
        self.operations.clear_rollback(current.config)
        update_journal.FAILURE.remove(self.operations.host)
        update_journal.JOURNAL.remove(self.operations.host)
        message = f"Configuration {journal.version} is in effect."
        return replace(_result(JobStatus.DONE, message=message, version=journal.version), node_uid=uid)

    def _defer(
        self, current: StoredConfig, stored: StoredConfig, journal: UpdateJournal | None, admission: JobResult
    ) -> JobResult:
        """Defers the update. Labels are applied nevertheless, because they do not disrupt pods."""
        if admission.reason in LABELLED_REASONS and journal is None:
            with contextlib.suppress(ClusterError):  # retried at the next check
                self.operations.label(stored.config)
        return self._decline(current, journal, admission, stored.version)

    def _decline(
        self, current: StoredConfig, journal: UpdateJournal | None, admission: JobResult, version: str
    ) -> JobResult:
        """Ends without applying the configuration; rolls back if an earlier run has already changed the machine."""
        if journal and journal.stage is UpdateStage.APPLYING:
            cause = RollbackCause(admission.reason or "withdrawn", admission.message, admission.hint, passing=True)
            return self._roll_back(current, journal.at(UpdateStage.ROLLING_BACK, cause=cause))
        try:
            if journal:
                self.operations.uncordon(current.config)
                update_journal.JOURNAL.remove(self.operations.host)
        except ClusterError as error:  # retried sooner than the update itself
            message = f"{admission.message} Also, the node is still cordoned: {error.message}"
            return JobResult.of(JobKind.UPDATE, error, message=message, version=version)
        return replace(admission, version=version)

    def _roll_back(self, current: StoredConfig, journal: UpdateJournal) -> JobResult:
        """Applies the previous configuration, checks the node's health, and records the failed configuration."""
        cause = journal.cause or RollbackCause("unknown", "Unknown cause.")
        update_journal.JOURNAL.write(self.operations.host, journal)
        self.operations.progress.note(f"Rolling back: {cause.message}")
        try:
            with self.operations.open_engine(current.config) as engine:
                self.operations.apply(engine)
                self.operations.register_again(engine.config, journal.services)
                if journal.services:
                    self.operations.check_health(engine, _expected_after_rollback(journal))
                uid = self.operations.node_uid(current.config)
                engine.sync_to_disk()
                engine.events.emit("rolled-back", cause.message, "error", error=cause.name, version=journal.version)
            if not cause.passing:
                update_journal.FAILURE.write(self.operations.host, _failed_update(journal, cause))
            self.operations.label(current.config)
            self.operations.uncordon(current.config)
        except FlexError as error:
            return _rollback_unconfirmed(journal, cause, error)
        if not cause.passing:
            message = f"The update to configuration {journal.version} was rolled back: {cause.message}"
            self.operations.report_rollback(current.config, cause.name, message)
        update_journal.JOURNAL.remove(self.operations.host)
        result = JobStatus.FAILED if cause.passing else JobStatus.ROLLED_BACK
        outcome = _result(
            result, cause.name, cause.message, _rollback_hint(cause), journal.version, retryable=cause.passing
        )
        return replace(outcome, node_uid=uid)


def _baseline_without_node(current: StoredConfig) -> NodeBaseline:
    """Returns the baseline of a Node that AKS has drained and deleted: the versions in effect, and no pods."""
    kubelet, runtime = current.config.kubernetes.version, current.config.containerd.version
    return NodeBaseline(f"v{kubelet}" if kubelet else "", f"containerd://{runtime}")


def _rollback_hint(cause: RollbackCause) -> str:
    """Returns the hint for a rolled back update, without the request to run a command again."""
    hint = cause.hint.removesuffix(", then run the same command again.")
    return f"{hint.rstrip('.')}. The update was rolled back. Change the configuration to try again.".lstrip(". ")


def _expected_after_update(stored: StoredConfig, difference: ConfigChanges, journal: UpdateJournal) -> ExpectedHealth:
    """Returns the conditions of the health check after an update: new versions, restarted services, earlier pods."""
    changed, config = difference.components, stored.config
    return ExpectedHealth(
        journal.services,
        f"v{config.kubernetes.version}" if "kubernetes" in changed else "",
        f"containerd://{config.containerd.version}" if "containerd" in changed else "",
        journal.before.pods,
        smoke_test=CONTAINERD_UNIT in journal.services,
    )


def _expected_after_rollback(journal: UpdateJournal) -> ExpectedHealth:
    """Returns the conditions of the health check after a rollback: the recorded baseline."""
    before = journal.before
    return ExpectedHealth(
        journal.services, before.kubelet, before.runtime, before.pods, smoke_test=CONTAINERD_UNIT in journal.services
    )


def _rejected_before_change(error: FlexError) -> JobResult:
    """Converts an error that occurred before any change into a retryable result."""
    return JobResult.of(JobKind.UPDATE, error, reason=CONDITION_REASONS.get(error.name, error.name))


def _rollback_cause(error: FlexError) -> RollbackCause:
    lost_systemd = error.name == "action-failed" and error.retryable  # the machine shuts down
    passing = isinstance(error, ArtifactError) or error.name in TRANSIENT_ERRORS or lost_systemd
    return RollbackCause(error.name, error.message, error.hint, passing)


def _failed_update(journal: UpdateJournal, cause: RollbackCause) -> FailedUpdate:
    return FailedUpdate(journal.version, journal.identity.rpartition(" ")[2], cause.name, cause.message)


def _unconfirmed(stored: StoredConfig, error: FlexError) -> JobResult:
    """Returns the result of an update whose health check was inconclusive; the next run repeats the check."""
    message = f"The configuration was applied, but the health check is not complete: {error.message}"
    return JobResult.of(JobKind.UPDATE, error, message=message, version=stored.version)


def _rollback_unconfirmed(journal: UpdateJournal, cause: RollbackCause, error: FlexError) -> JobResult:
    """Returns the result of a rollback that failed or could not be verified; the next run repeats it."""
    reason = error.name if error.name.startswith("api-server-") else "RollbackFailed"
    message = f"{cause.message} The rollback could not be verified: {error.message}"
    return JobResult.of(JobKind.UPDATE, error, reason=reason, message=message, version=journal.version)
