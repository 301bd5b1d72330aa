"""The journal of an update in progress, which survives a crash, the permission that it may get while it runs, and the
record of the last failed update.
"""

from __future__ import annotations

import contextlib
from dataclasses import field, replace
from enum import Enum
from typing import Any

from aks_flex_node.agent.paths import FAILED_CONFIG, RELEASED_CONFIG, UPDATE_JOURNAL
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Remove, SetAside, WriteFile
from aks_flex_node.host.host import Host, read_text
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc


class UpdateStage(Enum):
    PREPARING = "preparing"  # the machine is unchanged; the Node may be cordoned
    APPLYING = "applying"  # includes the health check
    ROLLING_BACK = "rolling-back"


@frozen
class NodeBaseline:
    """Versions and pods of the node before the update."""

    kubelet: str = ""  # versions from the Node's status
    runtime: str = ""
    pods: dict[str, str] = field(default_factory=dict)  # running and not drained: uid -> namespace/name


@frozen
class RollbackCause:
    """Why an update was rolled back."""

    name: str
    message: str
    hint: str = ""
    passing: bool = False  # not caused by the configuration, so the update is retried


@frozen
class UpdateJournal:
    identity: str  # of the configuration being applied
    version: str
    stage: UpdateStage = UpdateStage.PREPARING
    services: tuple[str, ...] = ()  # restarted by the update
    before: NodeBaseline = field(default_factory=NodeBaseline)
    cause: RollbackCause | None = None
    began: str = field(default_factory=format_utc)

    def at(self, stage: UpdateStage, **changes: Any) -> UpdateJournal:
        return replace(self, stage=stage, **changes)


@frozen
class FailedUpdate:
    version: str
    fingerprint: str
    reason: str
    message: str
    at: str = field(default_factory=format_utc)


JOURNAL = RecordFile(UPDATE_JOURNAL, UpdateJournal)  # of the update in progress
FAILURE = RecordFile(FAILED_CONFIG, FailedUpdate)  # of the last update that failed


def set_aside_damaged(host: Host) -> None:
    """Renames a journal that cannot be read, which would count as an unfinished update for ever."""
    if host.stat(UPDATE_JOURNAL) is not None and JOURNAL.read(host) is None:
        host.apply(SetAside(UPDATE_JOURNAL))


def supersede_journal(host: Host) -> None:
    """Resets the journal when an operator applies another configuration; the next run only uncordons the node."""
    if journal := JOURNAL.read(host):
        JOURNAL.write(host, journal.at(UpdateStage.PREPARING, cause=None))


def is_released(host: Host, version: str) -> bool:
    """Returns whether the config source deleted the Node for this version after its update had started."""
    return read_text(host, RELEASED_CONFIG) == version != ""


def write_release(host: Host, version: str) -> None:
    """Allows a running update to apply this version. A full disk only delays it: the update then runs again."""
    if not is_released(host, version):
        with contextlib.suppress(MachineError):
            host.apply(WriteFile(RELEASED_CONFIG, version.encode(), 0o600))


def remove_release(host: Host) -> None:
    if host.stat(RELEASED_CONFIG) is not None:
        with contextlib.suppress(MachineError):
            host.apply(Remove(RELEASED_CONFIG))
