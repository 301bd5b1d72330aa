"""The machine operation job: carries out a MachineOperation of the cluster for this machine.

An operation is carried out only if its start could be written to it. The record on the machine survives the restart
that a reboot or an update of the agent causes, so that the next run writes the result, and no operation runs twice.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.agent import self_update
from aks_flex_node.agent.cluster import machine_operations as operations
from aks_flex_node.agent.components.artifact_urls import plain_version, version_key
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.managed_node import BOOT_ID, open_managed_node
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.policy import AGENT_VERSION, UNBOOTSTRAP, read_policy, refusal_message
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.api.maintenance_window import next_opening
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_node.host.actions import Run, WriteFile
from aks_flex_node.host.host import Host, read_text
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.cluster.machine_operations import MachineOperation, OperationRecord
    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.settings.models import NodeConfig

VERSION_PARAMETER = "version"


def run_machine_operation(progress: ProgressReporter, reset: Callable[[], None]) -> JobResult | None:
    """Carries out the next operation for this machine. None: the machine is no node any more."""
    with exclusive():
        node = open_managed_node()
        operation = node.select_operation() if node.config.aks.machine_operations else None
        job = OperationJob(
            node.host, node.api, node.config, progress, lambda: self_update.is_due(node.host, node.config)
        )
        outcome = job.run(operation) if operation else _done("No operation.")
    if outcome is None:
        reset()  # takes the lock itself
    return outcome


@frozen
class OperationJob:
    host: Host
    api: ApiClient
    config: NodeConfig
    progress: ProgressReporter
    is_update_due: Callable[[], bool]
    running_version: str = __version__
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)

    def run(self, operation: MachineOperation) -> JobResult | None:
        """Carries out an operation; returns None for a reset, which the caller runs."""
        record = operations.read_record(self.host)
        if record.uid == operation.uid:
            return self._write_result(operation) if record.phase else self._continue(operation, record)
        needed = {operations.RESET: UNBOOTSTRAP, operations.UPGRADE: AGENT_VERSION}.get(operation.kind, "")
        policy = read_policy(self.host)
        entry = policy.forbids(needed)
        forbidden = refusal_message(policy, [f"{operation.kind} ({entry})"]) if entry else ""
        if refusal := forbidden or self._refusal(operation):
            operations.OPERATION_FILE.write(self.host, record.started(operation.uid, self._boot_id()))
            return self._finish(operation, operations.FAILED, "UnsupportedOperation", refusal)
        if operation.kind == operations.REBOOT and (opens := self._opening()):
            return _started(f"The maintenance window is closed. The reboot waits until {opens:%Y-%m-%d %H:%M %Z}.")
        if not operations.start_operation(self.api, operation, f"{operation.kind} started by aks-flex-node."):
            message = f"The start of {operation.name} cannot be written to it, so it is not carried out."
            hint = "Allow the node to patch machineoperations/status in the cluster."
            return JobResult(
                JobKind.MACHINE_OPERATION, JobStatus.FAILED, "OperationNotWritable", message, hint, retryable=True
            )
        operations.OPERATION_FILE.write(self.host, record.started(operation.uid, self._boot_id()))
        return self._execute(operation)

    def _refusal(self, operation: MachineOperation) -> str:
        """Returns why an operation is not allowed; empty if it is."""
        if operation.kind == operations.RESET and not self.config.agent.unbootstrap_on_delete:
            return "agent.unbootstrapOnDelete is false on this machine, so it is not reset."
        if operation.kind != operations.UPGRADE:
            return ""
        given = operation.parameters.get(VERSION_PARAMETER, "")
        example = f"Set spec.parameters.{VERSION_PARAMETER} to a version of this agent, for example {__version__}."
        if not given:
            return example
        try:
            load_text(self._with_agent_version(CURRENT_CONFIG, given), CURRENT_CONFIG)
        except ConfigError:
            return f"{given[:80]!r} is not a version. {example}"
        is_older = version_key(plain_version(given)) < version_key(plain_version(self.running_version))
        if is_older and not self.config.update_policy.allow_downgrade:
            return f"Agent {self.running_version} runs, and updatePolicy.allowDowngrade is false on this machine."
        return ""

    def _opening(self) -> datetime | None:
        """Returns when the maintenance window opens, or None if it is open."""
        try:
            return next_opening(self.config.update_policy.maintenance_window, self.now())
        except MachineError:
            return None  # the update job reports an unknown time zone

    def _execute(self, operation: MachineOperation) -> JobResult | None:
        self.progress.note(f"{operation.kind}: {operation.name}")
        if operation.kind == operations.REBOOT:
            self.host.apply(Run(("systemctl", "--no-block", "reboot"), "reboot for a MachineOperation"))
            return _started("The machine reboots.")
        if operation.kind == operations.UPGRADE:
            # The update job installs it. Also in the next configuration, which may have been composed before.
            for path in (CURRENT_CONFIG, NEXT_CONFIG):
                if self.host.stat(path) is not None:
                    text = self._with_agent_version(path, operation.parameters[VERSION_PARAMETER])
                    self.host.apply(WriteFile(path, text.encode(), 0o600, secret=True))
            return _started("The update of the agent is requested.")
        # The node cannot write after it has left the cluster, and must not be reset again when it joins again.
        message = "The node leaves the cluster, and the machine is reset."
        if operations.finish_operation(self.api, operation, operations.COMPLETE, "Succeeded", message):
            return None
        return _started("The machine is not reset before the result can be written to the operation.")

    def _continue(self, operation: MachineOperation, record: OperationRecord) -> JobResult | None:
        """Finishes an operation that was started before a restart, or continues it."""
        if operation.kind == operations.REBOOT and record.boot != self._boot_id():
            return self._finish(operation, operations.COMPLETE, "Succeeded", "The machine was rebooted.")
        if operation.kind == operations.UPGRADE:
            desired = plain_version(operation.parameters.get(VERSION_PARAMETER, ""))
            if desired == plain_version(self.running_version):
                return self._finish(operation, operations.COMPLETE, "Succeeded", f"Agent {desired} runs.")
            if self.is_update_due():
                return _started(f"The update of the agent to {desired} is pending.")
            message = f"Agent {self.running_version} runs, not {desired}. See `aks-flex-node status` on the machine."
            return self._finish(operation, operations.FAILED, "ExecutionFailed", message)
        return self._execute(operation)

    def _finish(self, operation: MachineOperation, phase: str, reason: str, message: str) -> JobResult:
        record = operations.read_record(self.host).finished(phase, reason, message)
        operations.OPERATION_FILE.write(self.host, record)  # first, so that it never runs again
        return self._write_result(operation)

    def _write_result(self, operation: MachineOperation) -> JobResult:
        """Writes the result to the operation. If that fails, the next run tries only that again."""
        record = operations.read_record(self.host)
        if not operations.finish_operation(self.api, operation, record.phase, record.reason, record.message):
            return _started(f"The result of {operation.name} cannot be written to it: {record.message}")
        operations.OPERATION_FILE.write(self.host, record.closed())
        return _done(f"{operation.kind} {operation.name}: {record.message}")

    def _with_agent_version(self, path: str, version: str) -> str:
        document = json.loads(self.host.read(path) or b"{}")
        settings = document.setdefault("config", {})
        settings["agent"] = {**(settings.get("agent") or {}), "version": plain_version(version)}
        return json.dumps(document, indent=1) + "\n"

    def _boot_id(self) -> str:
        return read_text(self.host, BOOT_ID).strip()


def _started(message: str) -> JobResult:
    """Returns the result of an operation that a later run finishes."""
    return JobResult(JobKind.MACHINE_OPERATION, JobStatus.DEFERRED, message=message, retryable=True)


def _done(message: str) -> JobResult:
    return JobResult(JobKind.MACHINE_OPERATION, JobStatus.DONE, message=message)
