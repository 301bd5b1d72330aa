"""Receivers, and the messages that are for them."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node.rp.arm.times import exact
from aks_flex_node.rp.notifying.kinds import event_type
from aks_flex_node.rp.store.outbox import Message

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aks_flex_node.rp.notifying.changes import News
    from aks_flex_node.rp.notifying.settings import NotificationSettings, WebhookSettings
    from aks_flex_node.rp.store.store import Document, Node


@dataclass(frozen=True)
class Hook:
    key: str  # by which its messages are kept
    url: str = field(repr=False)  # many receivers are known by a secret in their address
    secret_file: Path
    ca_file: Path | None = None
    kinds: frozenset[str] = frozenset()  # all when empty
    clusters: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: WebhookSettings) -> Hook:
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

    def wants(self, kind: str, cluster: str) -> bool:
        return (not self.kinds or kind in self.kinds) and (not self.clusters or cluster in self.clusters)


def open_hooks(settings: NotificationSettings) -> tuple[Hook, ...]:
    return tuple(map(Hook.of, settings.webhooks))


@dataclass(frozen=True)
class Notices:
    """What is to be written with a change; nothing where nobody is to be told."""

    hooks: tuple[Hook, ...] = ()

    def of(self, node: Node, news: Iterable[News], at: float) -> tuple[Message, ...]:
        return self.about(node.cluster, node.name, news, at) if self.hooks else ()

    def about(self, cluster: str, name: str, news: Iterable[News], at: float) -> tuple[Message, ...]:
        found: list[Message] = []
        for each in news:
            event = envelope(event_type(each.kind), cluster, name, each.data, at)
            body = json.dumps(event, ensure_ascii=False)
            wanting = [hook.key for hook in self.hooks if hook.wants(each.kind, cluster)]
            found.extend(Message(event["id"], hook, cluster, name.lower(), at, body) for hook in wanting)
        return tuple(found)


def envelope(kind: str, source: str, subject: str, data: Document, at: float) -> Document:
    """A CloudEvent. Its source is the cluster's id in lower case: the same text whoever wrote it how."""
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": source,
        "type": kind,
        "subject": subject,
        "time": exact(at),
        "datacontenttype": "application/json",
        "data": data,
    }
