"""Records which MachineOperation this machine has started, and which it has carried out, so that none runs twice.

The status of an operation in the cluster does not prove that: every node may be allowed to change it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from aks_flex_node.agent.paths import OPERATION_RECORD
from aks_flex_node.host import records
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.host.host import Host

MAX_EXECUTED = 100


class RequestedOperation(Protocol):
    @property
    def uid(self) -> str: ...

    @property
    def created(self) -> str: ...

    @property
    def is_pending(self) -> bool: ...


OperationT = TypeVar("OperationT", bound=RequestedOperation)


@frozen
class OperationRecord:
    uid: str = ""  # of the operation that was started; empty if none
    boot: str = ""  # ID of the boot in which it was started
    phase: str = ""  # its final phase, which may not be written to the cluster yet; empty while it runs
    reason: str = ""
    message: str = ""
    executed: tuple[str, ...] = ()  # UIDs of earlier operations

    def started(self, uid: str, boot: str) -> OperationRecord:
        return OperationRecord(uid, boot, executed=self.executed)

    def finished(self, phase: str, reason: str, message: str) -> OperationRecord:
        return replace(self, phase=phase, reason=reason, message=message)

    def closed(self) -> OperationRecord:
        """Returns the record after the result was written to the cluster."""
        return OperationRecord(executed=(*self.executed, self.uid)[-MAX_EXECUTED:])

    def select(self, found: Iterable[OperationT], joined: str) -> OperationT | None:
        """Returns the operation to carry out: the started one, or else the oldest that has not been started.

        Operations from before the node joined are for the machine that had its name then.
        """
        operations = list(found)
        own = next((one for one in operations if self.uid and one.uid == self.uid), None)
        fresh = (
            one for one in operations if one.is_pending and one.uid not in self.executed and one.created >= joined
        )
        return own or next(fresh, None)


def read_record(host: Host) -> OperationRecord:
    return records.read_record(host, OPERATION_RECORD, OperationRecord) or OperationRecord()


def write_record(host: Host, record: OperationRecord) -> None:
    records.write_record(host, OPERATION_RECORD, record)
