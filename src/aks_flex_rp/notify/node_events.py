"""Node events: derived from the state before and after a change, and wrapped as CloudEvents messages for each webhook
that subscribes to them.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_node.timestamps import format_utc, format_utc_microseconds
from aks_flex_rp.join_state import JoinPhase
from aks_flex_rp.notify.notification_settings import NodeEventKind, event_type
from aks_flex_rp.store.outbox import OutboxMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from aks_flex_rp.join_state import JoinState
    from aks_flex_rp.notify.notification_settings import NotificationSettings, WebhookSettings
    from aks_flex_rp.store.model import Document, Node


MAX_CAUSE_LENGTH = 1024  # characters of a cause: a message is to tell of it, not to hold a log
REMEDY = (
    "Correct what the cause says. Then run the agent again with the same URL while it lasts, or with a new one from "
    "regenerateToken."
)


@dataclass(frozen=True)
class NodeEvent:
    kind: NodeEventKind
    data: Document = field(default_factory=dict)


def status_events(before: Document, after: Document) -> Iterator[NodeEvent]:
    """Ready has an event of its own, which is the one that most receivers want; all others come together."""
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
    if after.phase is failed and (before.phase is not failed or before.failure != after.failure):
        cause = after.failure or "The node gave no reason."
        yield NodeEvent(NodeEventKind.JOIN_FAILED, {"cause": _short(cause), "remedy": REMEDY})


def deleted_event(by: str) -> NodeEvent:
    return NodeEvent(NodeEventKind.DELETED, {"by": by})


def silent_event(last_seen: float) -> NodeEvent:
    return NodeEvent(NodeEventKind.HEARTBEAT_LOST, {"lastSeen": format_utc(last_seen)})


def resumed_event(last_seen: float) -> NodeEvent:
    return NodeEvent(NodeEventKind.HEARTBEAT_RESTORED, {"lastSeen": format_utc(last_seen)})


def _by_type(status: Document) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in status.get("conditions", ())}


def _changes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Another reason for the same status is none. One that goes away was a problem that is over."""
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
class Webhook:
    key: str  # by which its messages are kept
    url: str = field(repr=False)  # many receivers are known by a secret in their address
    secret_file: Path
    ca_file: Path | None = None
    kinds: frozenset[NodeEventKind] = frozenset()  # all when empty
    clusters: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: WebhookSettings) -> Webhook:
        return cls(
            hashlib.sha256(settings.url.encode()).hexdigest()[:12],
            settings.url,
            settings.secret_file,
            settings.ca_file,
            frozenset(settings.events),
            frozenset(settings.clusters),
        )

    @property
    def title(self) -> str:
        """For people and logs."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc} ({self.key})"

    def wants(self, kind: NodeEventKind, cluster: str) -> bool:
        return (not self.kinds or kind in self.kinds) and (not self.clusters or cluster in self.clusters)


def load_webhooks(settings: NotificationSettings) -> tuple[Webhook, ...]:
    return tuple(map(Webhook.of, settings.webhooks))


@dataclass(frozen=True)
class EventPublisher:
    """What is to be written with a change; nothing where nobody is to be told."""

    hooks: tuple[Webhook, ...] = ()

    def messages_for(self, node: Node, news: Iterable[NodeEvent], at: float) -> tuple[OutboxMessage, ...]:
        return self.messages_about(node.cluster, node.name, news, at) if self.hooks else ()

    def messages_about(
        self, cluster: str, name: str, news: Iterable[NodeEvent], at: float
    ) -> tuple[OutboxMessage, ...]:
        found: list[OutboxMessage] = []
        for each in news:
            event = cloud_event(event_type(each.kind), cluster, name, each.data, at)
            body = json.dumps(event, ensure_ascii=False)
            wanting = [hook.key for hook in self.hooks if hook.wants(each.kind, cluster)]
            found.extend(OutboxMessage(event["id"], hook, cluster, name.lower(), at, body) for hook in wanting)
        return tuple(found)


def cloud_event(kind: str, source: str, subject: str, data: Document, at: float) -> Document:
    """A CloudEvent. Its source is the cluster's id in lower case: the same text whoever wrote it how."""
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
