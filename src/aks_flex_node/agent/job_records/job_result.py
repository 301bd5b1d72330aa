"""The result of a job: written by the process that ran it, read by the daemon and by `status`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.host.actions import WriteFile
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host

STORED_KEYS = {"retryable": "again"}  # attribute -> key of the result file, where earlier releases chose another name


class JobKind(Enum):
    """What a job does. The values are words of the command `work` and stand in the result file."""

    UPDATE = "update"
    REPAIR = "repair"
    RECOVER = "recover"
    UNBOOTSTRAP = "leave"
    RENEW_VPN = "connect"
    ADOPTED = "earlier"  # started before the daemon was: of which kind it is, only its result says

    def __str__(self) -> str:
        return self.value


class JobStatus(Enum):
    DONE = "done"  # the machine is as it should be
    DEFERRED = "waits"  # for a maintenance window, or because updates are paused
    REFUSED = "refused"  # it would be a downgrade or break the skew policy; nothing was touched
    FAILED = "failed"  # nothing was changed, or the machine could not be brought further; it is tried again
    ROLLED_BACK = "rolled-back"  # it was tried, did not work, and the machine is as it was

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class JobResult:
    kind: JobKind
    result: JobStatus
    reason: str = ""  # one word for a condition: MaintenanceWindowClosed, SkewViolation, service-failed, …
    message: str = ""  # the real cause, in a person's words
    hint: str = ""
    version: str = ""  # the configVersion that it was about
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
    """The last outcome; None when there is none that can be read."""
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
