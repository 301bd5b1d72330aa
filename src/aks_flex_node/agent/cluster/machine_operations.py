"""MachineOperation resources: requests to reboot or reset a machine, or to update its agent, made in the cluster; and
the record of those that this machine carries out.

Group `unbounded-cloud.io`. A cluster without the resource, or a node without the permission, has no operations.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError
from aks_flex_node.agent.paths import OPERATION_RECORD
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_node.host.host import Host

OPERATIONS_PATH = "/apis/unbounded-cloud.io/v1alpha3/machineoperations"
MERGE_PATCH = "application/merge-patch+json"
REBOOT, UPGRADE, RESET = "NodeReboot", "AgentUpgrade", "AgentReset"
KINDS = frozenset((REBOOT, UPGRADE, RESET))  # other kinds are for other controllers
PENDING, IN_PROGRESS, COMPLETE, FAILED = "Pending", "InProgress", "Complete", "Failed"
MAX_MESSAGE_LENGTH = 1000
MAX_LISTED = 500


@frozen
class MachineOperation:
    name: str
    uid: str
    version: str  # resource version, so that a replaced or changed operation is not written
    kind: str
    created: str
    phase: str = PENDING
    parameters: Mapping[str, str] = field(default_factory=dict)


def find_operations(api: ApiClient, machine: str, started: str = "") -> list[MachineOperation]:
    """Returns the unfinished operations for a Machine, oldest first, and the one with the UID `started`: a reset is
    marked as complete before it begins. Items that cannot be read are ignored.

    Raises ClusterError when the cluster cannot be queried.
    """
    try:
        listed = api.get(f"{OPERATIONS_PATH}?limit={MAX_LISTED}")
    except ApiStatusError:  # the resource does not exist, or the node may not read it
        return []
    items = listed.get("items") if isinstance(listed, dict) else None
    found = [_parse_for(item, machine.lower()) for item in items or ()]
    unfinished = (one for one in found if one and (one.phase in {PENDING, IN_PROGRESS} or one.uid == started))
    return sorted(unfinished, key=lambda one: one.created)


def _parse_for(item: Any, machine: str) -> MachineOperation | None:
    """Returns an operation if it is for this machine and of a known kind. Its schema may allow anything."""
    try:
        spec = item["spec"]
        is_own = str(spec.get("machineRef") or "").lower() == machine and spec.get("operationKind") in KINDS
        if not is_own:
            return None
        metadata, status = item["metadata"], item.get("status") or {}
        return MachineOperation(
            metadata["name"],
            metadata["uid"],
            metadata["resourceVersion"],
            spec["operationKind"],
            str(metadata.get("creationTimestamp", "")),
            status.get("phase") or PENDING,
            {str(key): str(value) for key, value in (spec.get("parameters") or {}).items()},
        )
    except (KeyError, TypeError, AttributeError):
        return None


def start_operation(api: ApiClient, operation: MachineOperation, message: str) -> bool:
    """Marks an operation as started; returns False if the node may not, or the operation has changed."""
    status = {"phase": IN_PROGRESS, "message": message, "startedAt": format_utc()}
    return _write_status(api, operation, status, operation.version)


def finish_operation(api: ApiClient, operation: MachineOperation, phase: str, reason: str, message: str) -> bool:
    """Writes the final phase of an operation, if it still exists."""
    now, text = format_utc(), message[:MAX_MESSAGE_LENGTH]
    is_done = "True" if phase == COMPLETE else "False"
    condition = {"type": "Complete", "status": is_done, "reason": reason, "message": text, "lastTransitionTime": now}
    status = {"phase": phase, "message": text, "completedAt": now, "conditions": [condition]}
    return _write_status(api, operation, status, "")


def _write_status(api: ApiClient, operation: MachineOperation, status: dict[str, Any], version: str) -> bool:
    metadata = {"uid": operation.uid, **({"resourceVersion": version} if version else {})}
    path = f"{OPERATIONS_PATH}/{quote(operation.name)}/status"
    try:
        api.request("PATCH", path, {"metadata": metadata, "status": status}, MERGE_PATCH)
    except ApiStatusError:
        return False
    return True


MAX_EXECUTED = 100


@frozen
class OperationRecord:
    """Which MachineOperation this machine has started, and which it has carried out, so that none runs twice.

    The status of an operation in the cluster does not prove that: every node may be allowed to change it.
    """

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

    def select(self, found: Iterable[MachineOperation], joined: str) -> MachineOperation | None:
        """Returns the operation to carry out: the started one, or else the oldest that has not been started.

        Operations from before the node joined are for the machine that had its name then.
        """
        operations = list(found)
        own = next((one for one in operations if self.uid and one.uid == self.uid), None)
        pending = (one for one in operations if one.phase == PENDING and one.created >= joined)
        return own or next((one for one in pending if one.uid not in self.executed), None)


OPERATION_FILE = RecordFile(OPERATION_RECORD, OperationRecord)


def read_record(host: Host) -> OperationRecord:
    return OPERATION_FILE.read(host) or OperationRecord()
