"""The result of a job, written by the job's process and read by the daemon and `status`."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.paths import JOB_RESULT, STAGING_RESULT
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from aks_flex_node.errors import FlexError

WAITING_FOR_NODE_DELETION = "WaitingForNodeDeletion"  # the reason of an update that AKS has not allowed yet

# The units in which jobs run. Staging has its own: a long download must not delay other jobs.
JOB_UNIT = "aks-flex-node-job.service"
STAGE_UNIT = "aks-flex-node-stage.service"
JOB_KILLED = "JobKilled"  # the reason of a job whose process was killed
JOB_EXITED = "JobExited"  # the reason of a job that ended without a result


class JobKind(Enum):
    """The kinds of jobs. The values are arguments of the command `job` and are stored in the result file."""

    UPDATE = "update"
    REPAIR = "repair"
    RECOVER = "recover"
    UNBOOTSTRAP = "unbootstrap"
    RENEW_VPN = "renew-vpn"
    MACHINE_OPERATION = "machine-operation"
    STAGE = "stage"
    ADOPTED = "adopted"  # started before the daemon; its kind is known only from its result

    def __str__(self) -> str:
        return self.value


class JobStatus(Enum):
    DONE = "done"  # the machine is in the desired state
    DEFERRED = "deferred"  # until the maintenance window opens or updates are resumed
    REFUSED = "refused"  # for example a downgrade or a version skew violation; nothing was changed
    FAILED = "failed"  # not completed; retried if `retryable`
    ROLLED_BACK = "rolled-back"  # applied, failed the health check, and reverted

    def __str__(self) -> str:
        return self.value


@frozen
class JobResult:
    kind: JobKind
    result: JobStatus
    reason: str = ""  # condition reason or error name: MaintenanceWindowClosed, SkewViolation, service-failed, …
    message: str = ""  # the cause, for users
    hint: str = ""
    version: str = ""  # the configVersion of an update; the identity of a configuration that is staged
    retryable: bool = False  # whether the same may work later
    node_uid: str = ""  # of the Node at the end of an update; a deletion after that is a new signal
    at: str = field(default_factory=format_utc)

    @classmethod
    def of(cls, kind: JobKind, error: FlexError, **changes: Any) -> JobResult:
        """Returns the result of a job that an error ended, and that may work later."""
        failed = cls(kind, JobStatus.FAILED, error.name, error.message, error.hint, retryable=True)
        return replace(failed, **changes)

    @property
    def is_done(self) -> bool:
        return self.result is JobStatus.DONE

    def __str__(self) -> str:
        return f"{self.kind} {self.result}: {self.message}".rstrip(": ")


RESULT = RecordFile(JOB_RESULT, JobResult)  # of the last job
STAGING = RecordFile(STAGING_RESULT, JobResult)  # of the last job that downloads ahead
