"""The machine operation job: carries out a MachineOperation of the cluster for this machine.

An operation is carried out only if its start could be written to it, so that it never runs twice. A record on the
machine survives the restart that a reboot or an update of the agent causes; the next run then writes the result.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.agent import self_update
from aks_flex_node.agent.cluster import machine_operations as operations
from aks_flex_node.agent.components.artifact_urls import plain_version
from aks_flex_node.agent.config_sources.selection import operation_names
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from aks_flex_node.agent.managed_node import open_managed_node
from aks_flex_node.agent.paths import CURRENT_CONFIG, OPERATION_RECORD
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.host.actions import Remove, Run, WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.cluster.machine_operations import MachineOperation
    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.host.host import Host

BOOT_ID = "/proc/sys/kernel/random/boot_id"
VERSION_PARAMETER = "version"


@dataclass(frozen=True)
class OperationRecord:
    """The operation that this machine has started."""

    uid: str
    boot: str  # ID of the boot in which it was started


def run_machine_operation(progress: ProgressReporter, reset: Callable[[], None]) -> JobResult | None:
    """Carries out the oldest operation for this machine. None: the machine is no node any more."""
    with exclusive():
        node = open_managed_node()
        names = operation_names(node.config, node.name)
        found = operations.find_operations(node.api, names)
        job = OperationJob(node.host, node.api, progress, lambda: self_update.is_due(node.host, node.config))
        outcome = job.run(found[0]) if found else _done("No operation.")
    if outcome is None:
        reset()  # takes the lock itself
    return outcome


@dataclass(frozen=True)
class OperationJob:
    host: Host
    api: ApiClient
    progress: ProgressReporter
    is_update_due: Callable[[], bool]
    running_version: str = __version__

    def run(self, operation: MachineOperation) -> JobResult | None:
        """Carries out an operation; returns None for a reset, which the caller runs."""
        record = self._read_record()
        if record and record.uid == operation.uid:
            return self._continue(operation, record)
        if operation.kind == operations.UPGRADE and not operation.parameters.get(VERSION_PARAMETER):
            message = (
                f"Set spec.parameters.{VERSION_PARAMETER} to a version of this agent, for example {__version__}."
            )
            return self._finish(operation, operations.FAILED, "UnsupportedOperation", message)
        if not operations.start_operation(self.api, operation, f"{operation.kind} started by aks-flex-node."):
            message = f"The start of {operation.name} cannot be written to it, so it is not carried out."
            hint = "Allow the node to patch machineoperations/status in the cluster."
            return JobResult(
                JobKind.MACHINE_OPERATION, JobStatus.FAILED, "OperationNotWritable", message, hint, retryable=True
            )
        self._write_record(OperationRecord(operation.uid, self._boot_id()))
        return self._execute(operation)

    def _execute(self, operation: MachineOperation) -> JobResult | None:
        self.progress.note(f"{operation.kind}: {operation.name}")
        if operation.kind == operations.REBOOT:
            self.host.apply(Run(("systemctl", "--no-block", "reboot"), "reboot for a MachineOperation"))
            return _started("The machine reboots.")
        if operation.kind == operations.UPGRADE:
            self._request_version(operation.parameters[VERSION_PARAMETER])
            return _started("The update of the agent is requested.")
        # The node cannot write after it has left the cluster.
        message = "The node leaves the cluster, and the machine is reset."
        operations.finish_operation(self.api, operation, operations.COMPLETE, "Succeeded", message)
        return None

    def _continue(self, operation: MachineOperation, record: OperationRecord) -> JobResult | None:
        """Finishes an operation that was started before a restart, or starts it again."""
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
        operations.finish_operation(self.api, operation, phase, reason, message)
        self.host.apply(Remove(OPERATION_RECORD))
        return _done(f"{operation.kind} {operation.name}: {message}")

    def _request_version(self, version: str) -> None:
        """Sets the version of the agent in the configuration in effect; the update job then installs it."""
        document = json.loads(self.host.read(CURRENT_CONFIG) or b"{}")
        agent = document["config"].get("agent") or {}
        document["config"]["agent"] = {**agent, "version": plain_version(version)}
        text = json.dumps(document, indent=1) + "\n"
        self.host.apply(WriteFile(CURRENT_CONFIG, text.encode(), 0o600, secret=True))

    def _boot_id(self) -> str:
        return (self.host.read(BOOT_ID) or b"").decode(errors="replace").strip()

    def _read_record(self) -> OperationRecord | None:
        try:
            return OperationRecord(**json.loads(self.host.read(OPERATION_RECORD) or b""))
        except (ValueError, TypeError):
            return None

    def _write_record(self, record: OperationRecord) -> None:
        self.host.apply(WriteFile(OPERATION_RECORD, json.dumps(asdict(record)).encode(), 0o600))


def _started(message: str) -> JobResult:
    """Returns the result of an operation that a later run finishes."""
    return JobResult(JobKind.MACHINE_OPERATION, JobStatus.DEFERRED, message=message, retryable=True)


def _done(message: str) -> JobResult:
    return JobResult(JobKind.MACHINE_OPERATION, JobStatus.DONE, message=message)
