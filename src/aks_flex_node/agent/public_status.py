"""The status that everyone may read: a file without secrets, which the daemon and every command of root keep current.

The status of root contains more: the events of the log, and texts as they were received.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import context
from aks_flex_node.agent import status as facts
from aks_flex_node.agent.machine import UNIT_FILE
from aks_flex_node.agent.paths import PUBLIC_STATUS, PUBLIC_STATUS_DIR, STATE_DIR
from aks_flex_node.agent.reconcile import lock
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.actions import MakeDirectory, WriteFile
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.redaction import redact_output
from aks_flex_node.timestamps import parse_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.daemon.session import Session
    from aks_flex_node.agent.job_records.job_result import JobKind
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host

Document = dict[str, Any]

PUBLISH_SECONDS = 60.0  # between two writes of the daemon without a change
MAX_AGE_SECONDS = 180.0  # an older file does not describe the node any more
ARC_SECONDS = 300.0  # azcmagent takes much longer than all other checks
MAX_TEXT_LENGTH = 500
URL_PATH = re.compile(r"(\w+://[^/\s\"'?#]+)[/?#][^\s\"']*")  # paths of configuration URLs are secret
SECTIONS: dict[str, tuple[str, ...]] = {
    "error": ("name", "step", "message"),
    "arc": ("status",),
    "vpn": ("status", "certificate"),
    "node": ("name", "status", "schedulable", "auth", "conditions"),
    "daemon": (
        "agent",
        "source",
        "providerState",
        "message",
        "since",
        "lastPoll",
        "configVersion",
        "pending",
        "credentials",
        "driftFound",
        "agentUpdate",
        "policy",
    ),
}
WHOLE = ("timestamp", "phase", "versions", "services", "certificate", "drift", "damaged")


def _masked(value: Any) -> Any:
    match value:
        case str():
            return redact_output(URL_PATH.sub(r"\1", value))[:MAX_TEXT_LENGTH]
        case dict():
            return {key: _masked(each) for key, each in value.items()}
        case list() | tuple():
            return [_masked(each) for each in value]
    return value


def publish(host: Host, found: Mapping[str, Any]) -> None:
    """Writes the file that everyone may read. A failure, for example a full disk, must not fail the caller."""
    # Listed fields only, with masked texts.
    sections = {
        name: {key: found[name][key] for key in keys if key in found[name]} if found.get(name) else None
        for name, keys in SECTIONS.items()
    }
    document = _masked({**{name: found.get(name) for name in WHOLE}, **sections})
    content = (json.dumps({str(key): value for key, value in document.items()}, indent=1) + "\n").encode()
    with contextlib.suppress(MachineError):
        if host.stat(PUBLIC_STATUS_DIR) is None:
            host.apply(MakeDirectory(PUBLIC_STATUS_DIR, 0o755))
        host.apply(WriteFile(PUBLIC_STATUS, content, 0o644))


def node_engine(selection: context.ConfigSelection) -> Engine:
    """Returns an engine for the status of this machine, also if its configuration is lost."""
    context.require_root()
    settings, complete = context.load_config_or_default(selection)
    engine = context.make_engine(settings)
    engine.config_complete = complete
    return engine


def observe(selection: context.ConfigSelection) -> Document:
    """Returns the status of this machine, observed as root, and publishes it if the machine is a node."""
    engine = node_engine(selection)
    found = facts.status(engine)
    if waiting := lock.read_waiting():
        found["approval"] = {"pid": waiting[0], "fingerprint": waiting[1]}
    if engine.ledger.exists:
        publish(engine.host, found)
    return found


def refresh() -> None:
    """Publishes the status after a command that changed the machine, whatever the command's result was."""
    with contextlib.suppress(FlexError, OSError):
        observe(context.ConfigSelection())


def read_public(host: Host, now: float | None = None) -> Document:
    """Returns the published status with its age in seconds and the live state of the services, without root.

    Raises MachineError if nothing was published.
    """
    found = _parse(host.read(PUBLIC_STATUS))
    if found is None and host.stat(STATE_DIR) is None:
        return {**NOT_A_NODE, "ageSeconds": 0}
    if found is None:
        raise MachineError(
            "status-not-published",
            f"{PUBLIC_STATUS} does not exist. The daemon and the commands of root write it.",
            "Run `sudo aks-flex-node status`.",
        )
    found["services"] = {
        name: {**known, "active": host.unit(f"{name}.service").active} for name, known in found["services"].items()
    }
    if found["daemon"] and host.stat(UNIT_FILE):
        found["daemon"] = _live_daemon(found["daemon"], host.unit(facts.UNIT_NAME).active)
    written = parse_utc(found["timestamp"]).timestamp()
    return {**found, "ageSeconds": max(0, round((time.time() if now is None else now) - written))}


NOT_A_NODE: Document = {
    **dict.fromkeys(WHOLE),
    **dict.fromkeys(SECTIONS),
    "phase": "NotStarted",
    "versions": {},
    "services": {},
    "arc": {"status": "disabled"},
    "vpn": {"status": "disabled"},
    "node": {"name": "this machine", "status": "NotJoined"},
}


def _live_daemon(known: Document, active: str) -> Document:
    if active in facts.RUNNING_STATES:
        return known
    return {**known, "agent": active, "providerState": "Unknown", "message": "The daemon is not running."}


def _parse(content: bytes | None) -> Document | None:
    try:
        found = json.loads(content or b"null")
        parse_utc(found["timestamp"])
    except (ValueError, TypeError, KeyError):
        return None
    return {**NOT_A_NODE, **found}


def age_problems(found: Mapping[str, Any]) -> list[str]:
    """Returns whether a published status is too old to tell the node's health, with the remedy."""
    if found.get("ageSeconds", 0) <= MAX_AGE_SECONDS:
        return []
    return [f"the status is {describe_age(found['ageSeconds'])} old: run `sudo aks-flex-node health`"]


def describe_age(seconds: float) -> str:
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} s"


@dataclass
class StatusPublisher:
    """Publishes the status of a node for the daemon, from what the daemon has observed anyway."""

    clock: Callable[[], float] = time.monotonic
    _due: float = 0.0
    _key: tuple[object, ...] = ()
    _arc: Document = field(default_factory=dict)
    _arc_due: float = 0.0

    def __call__(self, session: Session, running: JobKind | None) -> None:
        now, key = (
            self.clock(),
            (session.state.provider_state, session.lifecycle.health.node, session.drift.found, running),
        )
        if now < self._due and key == self._key:
            return
        self._due, self._key = now + PUBLISH_SECONDS, key
        engine = session.node.engine
        if now >= self._arc_due:
            enabled = engine.config.azure.arc.enabled
            self._arc = facts.arc_status(engine) if enabled else {"status": "disabled"}
            self._arc_due = now + ARC_SECONDS
        publish(engine.host, facts.collect_status(engine, self._observed(session)))

    def _observed(self, session: Session) -> facts.ObservedNode:
        health = session.lifecycle.health
        if health.node:
            node = facts.describe_node(session.node.host, session.node.name, health.node)
        else:
            status = "NotRegistered" if health.node_missing else "Unknown"
            node = {"name": session.node.name, "status": status, "message": health.api_error}
        return facts.ObservedNode(
            node,
            session.drift.found,
            self._arc,
            [session.node.units.unit(f"{name}.service") for name in facts.SERVICES],
        )
