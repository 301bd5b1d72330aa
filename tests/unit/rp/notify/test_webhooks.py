from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from aks_flex_rp.notify import node_events
from aks_flex_rp.notify.node_events import EventPublisher, NodeEvent, Webhook
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.store.model import Node

CLUSTER = "/subscriptions/x/c"
NODE = Node(CLUSTER, "edge-1", "Edge-1", 7, '"7"', {}, {}, b"sealed")
HOOK = Webhook("key", "https://hooks.example.com:444/services/T0/secret?token=hidden", Path("secret"))


def test_message_is_a_cloud_event_about_one_node() -> None:
    (message,) = EventPublisher((HOOK,)).messages_for(NODE, [NodeEvent(NodeEventKind.JOINED)], 1777636800.25)
    event = json.loads(message.body)
    assert event == {
        "specversion": "1.0",
        "id": message.id,
        "source": CLUSTER,
        "type": "com.aks-flex-node.node.joined.v1",
        "subject": "Edge-1",
        "time": "2026-05-01T12:00:00.250000Z",
        "datacontenttype": "application/json",
        "data": {},
    }
    assert (message.hook, message.cluster, message.node, message.at) == ("key", CLUSTER, "edge-1", 1777636800.25)


def test_webhooks_get_only_subscribed_events_and_share_event_id() -> None:
    hooks = (
        replace(HOOK, key="all"),
        replace(HOOK, key="joins", kinds=frozenset({NodeEventKind.JOINED, NodeEventKind.JOIN_FAILED})),
        replace(HOOK, key="here", clusters=frozenset({CLUSTER})),
        replace(HOOK, key="elsewhere", clusters=frozenset({"/other"})),
    )
    messages = EventPublisher(hooks).messages_for(
        NODE, [NodeEvent(NodeEventKind.JOINED), node_events.deleted_event("ann")], 1.0
    )
    joined, deleted = messages[0].id, messages[3].id
    assert joined != deleted
    assert [(each.hook, each.id) for each in messages] == [
        ("all", joined),
        ("joins", joined),
        ("here", joined),
        ("all", deleted),
        ("here", deleted),
    ]


def test_no_messages_are_created_without_webhooks() -> None:
    assert EventPublisher().messages_for(NODE, [NodeEvent(NodeEventKind.JOINED)], 1.0) == ()


def test_webhook_title_and_repr_hide_secret_url_parts() -> None:
    assert HOOK.title == "https://hooks.example.com:444 (key)"
    for text in (HOOK.title, repr(HOOK), repr(EventPublisher((HOOK,)))):
        assert "hidden" not in text
        assert "services" not in text
