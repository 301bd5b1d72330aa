"""Tests of the events of a node, and of the messages about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aks_flex_rp.join_state import JoinState
from aks_flex_rp.notify import node_events
from aks_flex_rp.notify.node_events import MAX_CAUSE_LENGTH, REMEDY, EventPublisher, NodeEvent
from aks_flex_rp.notify.notification_settings import NodeEventKind, WebhookSettings
from aks_flex_rp.store.model import Node


def status(**conditions: str) -> dict[str, Any]:
    """Returns a status with conditions by type and status, each with a reason and a message."""
    return {"conditions": [condition(kind, value) for kind, value in conditions.items()]}


def condition(kind: str, value: str, **more: str) -> dict[str, str]:
    since = {"lastTransitionTime": "2026-05-01T12:00:00Z"}
    return {"type": kind, "status": value, "reason": f"{kind}Reason", "message": f"of {kind}", **since, **more}


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    news = [(each.kind, each.data.get("changes") or [each.data]) for each in node_events.status_events(before, after)]
    return [(kind, [(one["type"], one["before"], one["status"]) for one in data]) for kind, data in news]


def test_ready_event_contains_reason_message_and_time() -> None:
    (news,) = node_events.status_events(status(Ready="True"), status(Ready="False"))
    assert news == NodeEvent(
        NodeEventKind.READY_CHANGED,
        {
            "type": "Ready",
            "before": "True",
            "status": "False",
            "reason": "ReadyReason",
            "message": "of Ready",
            "since": "2026-05-01T12:00:00Z",
        },
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, status(Ready="True"), [("ready.changed", [("Ready", "Unknown", "True")])]),
        ({}, status(Ready="Unknown", Drifted="False"), []),
        ({}, status(Drifted="True"), [("conditions.changed", [("Drifted", "False", "True")])]),
        (status(Drifted="True"), {}, [("conditions.changed", [("Drifted", "True", "False")])]),
        (status(Drifted="False"), {}, []),
        (status(Ready="True"), {}, [("ready.changed", [("Ready", "True", "Unknown")])]),
    ],
)
def test_missing_condition_counts_as_false_and_missing_ready_as_unknown(
    before: dict[str, Any], after: dict[str, Any], expected: list[Any]
) -> None:
    assert told(before, after) == expected


def test_change_of_reason_only_creates_no_event() -> None:
    before = {"conditions": [condition("Ready", "False", reason="ServiceFailed")]}
    after = {"conditions": [condition("Ready", "False", reason="CredentialsLost")], "kubeletVersion": "1.34.4"}
    assert told(before, after) == []


def test_long_condition_message_is_truncated() -> None:
    (news,) = node_events.status_events({}, {"conditions": [condition("Ready", "False", message="x" * 30_000)]})
    assert len(news.data["message"]) == MAX_CAUSE_LENGTH
    assert news.data["message"].endswith("x…")


def join_events(before: dict[str, Any], after: dict[str, Any]) -> list[NodeEvent]:
    return [*node_events.join_events(JoinState.from_document(before), JoinState.from_document(after))]


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ({"state": "BootstrapAttempted"}, {"state": "Joined"}, ["joined"]),
        ({"state": "Joined"}, {"state": "Joined", "token": "new"}, []),
        ({"state": "Joined"}, {"state": "Created"}, ["left"]),
        ({"state": "Created"}, {"state": "ConfigFetched"}, []),
        ({}, {"state": "Failed", "failure": "no"}, ["join.failed"]),
        ({"state": "Failed", "failure": "no"}, {"state": "Failed", "failure": "no"}, []),
        ({"state": "Failed", "failure": "no"}, {"state": "Failed", "failure": "not that either"}, []),
        ({"state": "Failed", "failure": "no"}, {"state": "Joined"}, ["joined"]),
    ],
)
def test_join_events_are_created_only_for_final_transitions(
    before: dict[str, Any], after: dict[str, Any], kinds: list[str]
) -> None:
    assert [each.kind for each in join_events(before, after)] == kinds


def test_join_failure_event_contains_only_cause_and_remedy() -> None:
    after = {"state": "Failed", "failure": "The signer gave up.", "token": "abcdef", "csr": "csr-1"}
    (news,) = join_events({"state": "Created", "token": "abcdef"}, after)
    assert news == NodeEvent(NodeEventKind.JOIN_FAILED, {"cause": "The signer gave up.", "remedy": REMEDY})


CLUSTER = "/subscriptions/x/c"
NODE = Node(CLUSTER, "edge-1", "Edge-1", 7, '"7"', {}, {}, b"sealed")
HOOK = WebhookSettings(
    url="https://hooks.example.com:444/services/T0/secret?token=hidden", secret_file=Path("secret")
)


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
    assert (message.hook, message.cluster, message.node, message.at) == (HOOK.key, CLUSTER, "edge-1", 1777636800.25)


def test_webhooks_get_only_subscribed_events_and_share_event_id() -> None:
    chosen: dict[str, dict[str, Any]] = {
        "all": {},
        "joins": {"events": (NodeEventKind.JOINED, NodeEventKind.JOIN_FAILED)},
        "here": {"clusters": (CLUSTER,)},
        "elsewhere": {"clusters": ("/other",)},
    }
    hooks = tuple(HOOK.model_copy(update={"url": name, **each}) for name, each in chosen.items())
    names = {hook.key: hook.url for hook in hooks}
    messages = EventPublisher(hooks).messages_for(
        NODE, [NodeEvent(NodeEventKind.JOINED), NodeEvent(NodeEventKind.DELETED, {"by": "ann"})], 1.0
    )
    joined, deleted = messages[0].id, messages[3].id
    assert joined != deleted
    assert [(names[each.hook], each.id) for each in messages] == [
        ("all", joined),
        ("joins", joined),
        ("here", joined),
        ("all", deleted),
        ("here", deleted),
    ]


def test_no_messages_are_created_without_webhooks() -> None:
    assert EventPublisher().messages_for(NODE, [NodeEvent(NodeEventKind.JOINED)], 1.0) == ()


def test_webhook_title_and_repr_hide_secret_url_parts() -> None:
    assert HOOK.title == f"https://hooks.example.com:444 ({HOOK.key})"
    for text in (HOOK.title, repr(HOOK), repr(EventPublisher((HOOK,)))):
        assert "hidden" not in text
        assert "services" not in text
