"""Node events: derived from the state before and after a change, and sent as CloudEvents to subscribed webhooks."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc_microseconds
from aks_flex_rp.join_state import NEW_URL_REMEDY, JoinPhase
from aks_flex_rp.notify.notification_settings import NodeEventKind, event_type
from aks_flex_rp.store.outbox import OutboxMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_rp.join_state import JoinState
    from aks_flex_rp.notify.notification_settings import WebhookSettings
    from aks_flex_rp.store.model import Document, Node


MAX_CAUSE_LENGTH = 1024  # characters; a message is not a log
REMEDY = (
    "Fix the reported cause. Then run the agent again with the same URL while it is valid, or with a new one from "
    "regenerateToken."
)


@dataclass(frozen=True)
class NodeEvent:
    kind: NodeEventKind
    data: Document = field(default_factory=dict)


def status_events(before: Document, after: Document) -> Iterator[NodeEvent]:
    """Yields the events of a status change. Ready has its own event; all other conditions share one."""
    changes = list(_changes(_by_type(before), _by_type(after)))
    for change in changes:
        if change["type"] == "Ready":
            yield NodeEvent(NodeEventKind.READY_CHANGED, change)
    others = [change for change in changes if change["type"] != "Ready"]
    if others:
        yield NodeEvent(NodeEventKind.CONDITIONS_CHANGED, {"changes": others})


def join_events(before: JoinState, after: JoinState) -> Iterator[NodeEvent]:
    if after.is_joined and not before.is_joined:
        yield NodeEvent(NodeEventKind.JOINED)
    elif before.is_joined and not after.is_joined:
        yield NodeEvent(NodeEventKind.LEFT)
    failed = JoinPhase.FAILED
    if after.phase is failed and before.phase is not failed:
        cause = after.failure or "The node reported no reason."
        yield NodeEvent(NodeEventKind.JOIN_FAILED, {"cause": _short(cause), "remedy": join_remedy(cause)})


def join_remedy(cause: str) -> str:
    """Returns the remedy of a failed join. A cause that already names the remedy has no other one."""
    return NEW_URL_REMEDY if NEW_URL_REMEDY in cause else REMEDY


def _by_type(status: Document) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in status.get("conditions", ())}


def _changes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yields changed conditions.

    A changed reason with the same status is no change. A removed one counts as resolved.
    """
    for kind in dict.fromkeys((*before, *after)):
        absent = {"status": "Unknown" if kind == "Ready" else "False"}
        old, new = before.get(kind, absent), after.get(kind, absent)
        if old["status"] != new["status"]:
            texts = {name: _short(new[name]) for name in ("reason", "message") if new.get(name)}
            moment = {"since": new["lastTransitionTime"]} if "lastTransitionTime" in new else {}
            yield {"type": kind, "before": old["status"], "status": new["status"], **texts, **moment}


def _short(text: str) -> str:
    return text if len(text) <= MAX_CAUSE_LENGTH else f"{text[: MAX_CAUSE_LENGTH - 1]}…"


@dataclass(frozen=True)
class EventPublisher:
    """Builds the outbox messages that are stored with a change. None if no webhook subscribes."""

    hooks: tuple[WebhookSettings, ...] = ()

    def messages_for(self, node: Node, events: Iterable[NodeEvent], at: float) -> tuple[OutboxMessage, ...]:
        return self.messages_about(node.cluster, node.name, events, at) if self.hooks else ()

    def messages_about(
        self, cluster: str, name: str, events: Iterable[NodeEvent], at: float
    ) -> tuple[OutboxMessage, ...]:
        found: list[OutboxMessage] = []
        for each in events:
            event = cloud_event(event_type(each.kind), cluster, name, each.data, at)
            body = json.dumps(event, ensure_ascii=False)
            wanting = [hook.key for hook in self.hooks if hook.subscribes(each.kind, cluster)]
            found.extend(OutboxMessage(event["id"], hook, cluster, name.lower(), at, body) for hook in wanting)
        return tuple(found)


def cloud_event(kind: str, source: str, subject: str, data: Document, at: float) -> Document:
    """Builds a CloudEvent. The source is the cluster's ID in lower case, so that it is always the same text."""
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": source,
        "type": kind,
        "subject": subject,
        "time": format_utc_microseconds(at),
        "datacontenttype": "application/json",
        "data": data,
    }
