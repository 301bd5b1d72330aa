"""The journal of an update in progress, which survives a crash, and the record of the last failed one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.paths import FAILED_CONFIG, UPDATE_JOURNAL
from aks_flex_node.host.actions import Remove, WriteFile
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.errors import FlexError
    from aks_flex_node.host.host import Host


class UpdateStage(Enum):
    PREPARING = "preparing"  # nothing but the Node is touched: it may be cordoned
    APPLYING = "applying"  # and proving
    ROLLING_BACK = "rolling-back"


@dataclass(frozen=True)
class NodeBaseline:
    """How the node was before anything was touched."""

    kubelet: str = ""  # versions, as the Node shows them
    runtime: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)  # that ran and stayed: uid -> namespace/name


@dataclass(frozen=True)
class RollbackCause:
    """Why it was given up."""

    name: str
    message: str
    hint: str = ""
    passing: bool = False  # it is not the configuration's fault: the same may work later

    @classmethod
    def of(cls, error: FlexError, *, passing: bool = False) -> RollbackCause:
        return cls(error.name, error.message, error.hint, passing)


@dataclass(frozen=True)
class UpdateJournal:
    identity: str  # of the configuration that is taken on
    version: str
    stage: UpdateStage = UpdateStage.PREPARING
    services: tuple[str, ...] = ()  # that are restarted
    before: NodeBaseline = field(default_factory=NodeBaseline)
    cause: RollbackCause | None = None
    began: str = field(default_factory=format_utc)

    def at(self, stage: UpdateStage, **changes: Any) -> UpdateJournal:
        return replace(self, stage=stage, **changes)


@dataclass(frozen=True)
class FailedUpdate:
    version: str
    fingerprint: str
    reason: str
    message: str
    at: str = field(default_factory=format_utc)


def read_journal(host: Host) -> UpdateJournal | None:
    """The update that is under way; None when none is."""
    try:
        document = json.loads(host.read(UPDATE_JOURNAL) or b"")
        cause = document.pop("cause")
        return UpdateJournal(
            **{
                **document,
                "stage": UpdateStage(document["stage"]),
                "services": tuple(document["services"]),
                "before": NodeBaseline(**document["before"]),
                "cause": RollbackCause(**cause) if cause else None,
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_journal(host: Host, journal: UpdateJournal) -> None:
    document = {**asdict(journal), "stage": journal.stage.value}
    host.apply(WriteFile(UPDATE_JOURNAL, (json.dumps(document, indent=1) + "\n").encode(), 0o600))


def supersede_journal(host: Host) -> None:
    """A person brings another configuration: all that is left of an update is to let pods come again."""
    if journal := read_journal(host):
        write_journal(host, journal.at(UpdateStage.PREPARING, cause=None))


def remove_journal(host: Host) -> None:
    host.apply(Remove(UPDATE_JOURNAL))


def read_failure(host: Host) -> FailedUpdate | None:
    """The configuration that was tried last and did not work; None when there is none."""
    try:
        document = json.loads(host.read(FAILED_CONFIG) or b"")
        names = {"configVersion": "version"}
        return FailedUpdate(**{names.get(key, key): str(value) for key, value in document.items()})
    except (ValueError, TypeError, AttributeError):
        return None


def write_failure(host: Host, failed: FailedUpdate) -> None:
    document = {"configVersion": failed.version, **{k: v for k, v in asdict(failed).items() if k != "version"}}
    host.apply(WriteFile(FAILED_CONFIG, (json.dumps(document, indent=1) + "\n").encode(), 0o600))


def remove_failure(host: Host) -> None:
    if host.stat(FAILED_CONFIG) is not None:
        host.apply(Remove(FAILED_CONFIG))
