"""The result of a job, written by the job's process and read by the daemon and `status`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.host.actions import WriteFile
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host

STORED_KEYS = {"retryable": "again"}  # attribute -> key in the result file, where earlier releases used another name


class JobKind(Enum):
    """The kinds of jobs. The values are arguments of the command `job` and are stored in the result file."""

    UPDATE = "update"
    REPAIR = "repair"
    RECOVER = "recover"
    UNBOOTSTRAP = "leave"
    RENEW_VPN = "connect"
    ADOPTED = "earlier"  # started before the daemon; its kind is known only from its result

    def __str__(self) -> str:
        return self.value


class JobStatus(Enum):
    DONE = "done"  # the machine is in the desired state
    DEFERRED = "waits"  # until the maintenance window opens or updates are resumed
    REFUSED = "refused"  # for example a downgrade or a version skew violation; nothing was changed
    FAILED = "failed"  # not completed; retried if `retryable`
    ROLLED_BACK = "rolled-back"  # applied, failed the health check, and reverted

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class JobResult:
    kind: JobKind
    result: JobStatus
    reason: str = ""  # condition reason or error name: MaintenanceWindowClosed, SkewViolation, service-failed, …
    message: str = ""  # the cause, for users
    hint: str = ""
    version: str = ""  # the configVersion of an update
    retryable: bool = False  # whether the same may work later
    at: str = field(default_factory=format_utc)

    @property
    def is_done(self) -> bool:
        return self.result is JobStatus.DONE

    def as_document(self) -> dict[str, Any]:
        document = {STORED_KEYS.get(key, key): value for key, value in asdict(self).items()}
        return {**document, "kind": self.kind.value, "result": self.result.value}

    def __str__(self) -> str:
        return f"{self.kind} {self.result}: {self.message}".rstrip(": ")


def read_result(host: Host, path: str) -> JobResult | None:
    """Reads the last result; None when it does not exist or is invalid."""
    try:
        document = json.loads(host.read(path) or b"")
        stored = {name: STORED_KEYS.get(name, name) for name in JobResult.__dataclass_fields__}
        known = {name: document[key] for name, key in stored.items() if key in document}
        if not all(isinstance(value, bool if name == "retryable" else str) for name, value in known.items()):
            return None
        return JobResult(**{**known, "kind": JobKind(known["kind"]), "result": JobStatus(known["result"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_result(host: Host, path: str, result: JobResult) -> None:
    host.apply(WriteFile(path, (json.dumps(result.as_document(), indent=1) + "\n").encode(), 0o600))
