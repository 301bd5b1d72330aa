"""Settings of webhook receivers, and the kinds of events they can subscribe to."""

from __future__ import annotations

import hashlib
from ipaddress import ip_address
from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.auth.auth_settings import SettingsModel, unique
from aks_flex_rp.text_enum import TextEnum

TEST_TYPE = "com.aks-flex-node.test.v1"  # type of a test message


class NodeEventKind(TextEnum):
    READY_CHANGED = "ready.changed"
    CONDITIONS_CHANGED = "conditions.changed"
    JOINED = "joined"
    JOIN_FAILED = "join.failed"
    LEFT = "left"
    DELETED = "deleted"
    HEARTBEAT_LOST = "heartbeat.lost"
    HEARTBEAT_RESTORED = "heartbeat.restored"
    ROLLOUT_STARTED = "rollout.started"
    ROLLOUT_WAVE_SUCCEEDED = "rollout.waveSucceeded"
    ROLLOUT_GATE_STARTED = "rollout.gateStarted"
    ROLLOUT_HALTED = "rollout.halted"
    ROLLOUT_REVERSING = "rollout.reversing"
    ROLLOUT_REVERSED = "rollout.reversed"
    ROLLOUT_SUCCEEDED = "rollout.succeeded"
    ROLLOUT_ABORTED = "rollout.aborted"


def event_type(kind: NodeEventKind) -> str:
    """Returns the CloudEvents type. The version increases only with an incompatible change."""
    return f"com.aks-flex-node.{kind if kind.startswith('rollout.') else f'node.{kind}'}.v1"


MOST_WEBHOOKS = 16  # each one adds a row to every write of a node


def receiver_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.username or parts.password or parts.fragment or not parts.hostname:
        raise PydanticCustomError("receiver", "must be a URL without user, password and fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname)):
        raise PydanticCustomError(
            "receiver", "must begin with https://. Only addresses of this machine may use http://"
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cluster(text: str) -> str:
    found = parse_cluster_id(text)
    if found is None:
        raise PydanticCustomError("cluster", "must be the ID of a cluster, as shown by `aks-flex-rp cluster list`")
    return found.key


class WebhookSettings(SettingsModel):
    url: Annotated[str, AfterValidator(receiver_url)] = Field(
        repr=False,  # not logged: the URL of many receivers contains a secret
        description="URL of the receiver: https, or http on this machine. Redirects are not followed.",
    )
    secret_file: Path = Field(
        description="File (mode 0600) with the signing secret. It may contain two lines during a rotation."
    )
    ca_file: Path | None = Field(
        default=None, description="CA certificates (PEM). Default: the system's CA certificates."
    )
    events: tuple[NodeEventKind, ...] = Field(default=(), description="Event types to send. Default: all.")
    clusters: tuple[Annotated[str, AfterValidator(_cluster)], ...] = Field(
        default=(), description="IDs of the clusters whose events are sent. Default: all."
    )

    @property
    def key(self) -> str:
        """Identifies the messages of the receiver in the outbox."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """Returns the receiver's name in messages and logs, without the secret path of its URL."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc} ({self.key})"

    def subscribes(self, kind: NodeEventKind, cluster: str) -> bool:
        return (not self.events or kind in self.events) and (not self.clusters or cluster in self.clusters)


class NotificationSettings(SettingsModel):
    # The outbox identifies receivers by their URL.
    webhooks: Annotated[
        tuple[WebhookSettings, ...],
        Field(max_length=MOST_WEBHOOKS),
        unique("url", ". Combine the events of one url in one entry"),
    ] = Field(default=(), description="Webhook receivers, each with its own outbox.")
    most_pending: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=100_000,
        description="Maximum number of pending messages per receiver. The oldest are dropped above it.",
    )
