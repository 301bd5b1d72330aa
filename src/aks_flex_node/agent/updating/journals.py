"""What an update remembers over a crash, and what is remembered of one that failed."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.agent import FAILED, UPDATE
from aks_flex_node.host.actions import Remove, WriteFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.errors import FlexError
    from aks_flex_node.host.host import Host


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Stage(Enum):
    PREPARING = "preparing"  # nothing but the Node is touched: it may be cordoned
    APPLYING = "applying"  # and proving
    ROLLING_BACK = "rolling-back"


@dataclass(frozen=True)
class Before:
    """How the node was before anything was touched."""

    kubelet: str = ""  # versions, as the Node shows them
    runtime: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)  # that ran and stayed: uid -> namespace/name


@dataclass(frozen=True)
class Cause:
    """Why it was given up."""

    name: str
    message: str
    hint: str = ""
    passing: bool = False  # it is not the configuration's fault: the same may work later

    @classmethod
    def of(cls, error: FlexError, *, passing: bool = False) -> Cause:
        return cls(error.name, error.message, error.hint, passing)


@dataclass(frozen=True)
class Journal:
    identity: str  # of the configuration that is taken on
    version: str
    stage: Stage = Stage.PREPARING
    services: tuple[str, ...] = ()  # that are restarted
    before: Before = field(default_factory=Before)
    cause: Cause | None = None
    began: str = field(default_factory=now)

    def at(self, stage: Stage, **changes: Any) -> Journal:
        return replace(self, stage=stage, **changes)


@dataclass(frozen=True)
class Failure:
    version: str
    fingerprint: str
    reason: str
    message: str
    at: str = field(default_factory=now)


def read(host: Host) -> Journal | None:
    """The update that is under way; None when none is."""
    try:
        document = json.loads(host.read(UPDATE) or b"")
        cause = document.pop("cause")
        return Journal(
            **{
                **document,
                "stage": Stage(document["stage"]),
                "services": tuple(document["services"]),
                "before": Before(**document["before"]),
                "cause": Cause(**cause) if cause else None,
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write(host: Host, journal: Journal) -> None:
    document = {**asdict(journal), "stage": journal.stage.value}
    host.do(WriteFile(UPDATE, (json.dumps(document, indent=1) + "\n").encode(), 0o600))


def set_aside(host: Host) -> None:
    """A person brings another configuration: all that is left of an update is to let pods come again."""
    if journal := read(host):
        write(host, journal.at(Stage.PREPARING, cause=None))


def remove(host: Host) -> None:
    host.do(Remove(UPDATE))


def failure(host: Host) -> Failure | None:
    """The configuration that was tried last and did not work; None when there is none."""
    try:
        document = json.loads(host.read(FAILED) or b"")
        names = {"configVersion": "version"}
        return Failure(**{names.get(key, key): str(value) for key, value in document.items()})
    except (ValueError, TypeError, AttributeError):
        return None


def write_failure(host: Host, failed: Failure) -> None:
    document = {"configVersion": failed.version, **{k: v for k, v in asdict(failed).items() if k != "version"}}
    host.do(WriteFile(FAILED, (json.dumps(document, indent=1) + "\n").encode(), 0o600))


def forget_failure(host: Host) -> None:
    if host.look(FAILED) is not None:
        host.do(Remove(FAILED))
