"""Settings of webhook receivers, and the kinds of events they can subscribe to."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.auth.auth_settings import SettingsModel
from aks_flex_rp.text_enum import TextEnum

TEST_TYPE = "com.aks-flex-node.test.v1"  # of a message that a person asked for


class NodeEventKind(TextEnum):
    READY_CHANGED = "ready.changed"
    CONDITIONS_CHANGED = "conditions.changed"
    JOINED = "joined"
    JOIN_FAILED = "join.failed"
    LEFT = "left"
    DELETED = "deleted"
    HEARTBEAT_LOST = "heartbeat.lost"
    HEARTBEAT_RESTORED = "heartbeat.restored"


def event_type(kind: NodeEventKind) -> str:
    """As CloudEvents name it. The version grows only when what a receiver relies on is no longer there."""
    return f"com.aks-flex-node.node.{kind}.v1"


MOST_WEBHOOKS = 16  # each is a row more in the step that writes a node


def _receiver(text: str) -> str:
    parts = urlsplit(text)
    if parts.username or parts.password or parts.fragment or not parts.hostname:
        raise PydanticCustomError("receiver", "must be an address without a user, a password or a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(parts.hostname)):
        raise PydanticCustomError("receiver", "must begin with https://; http:// is for this machine itself alone")
    return text


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cluster(text: str) -> str:
    found = parse_cluster_id(text)
    if found is None:
        raise PydanticCustomError("cluster", "must be the id of a cluster, as `aks-flex-rp cluster list` shows it")
    return found.key


class WebhookSettings(SettingsModel):
    url: Annotated[str, AfterValidator(_receiver)] = Field(
        description="Where messages are sent; https, or http to this machine itself. No redirect is followed."
    )
    secret_file: Path = Field(
        description="A file, mode 0600, with the secret that messages are signed with; two lines while it is changed."
    )
    ca_file: Path | None = Field(default=None, description="CA certificates (PEM); the system's when left out.")
    events: tuple[NodeEventKind, ...] = Field(default=(), description="Which are told; all when left out.")
    clusters: tuple[Annotated[str, AfterValidator(_cluster)], ...] = Field(
        default=(), description="Ids of the clusters whose nodes are told of; all when left out."
    )


class NotificationSettings(SettingsModel):
    webhooks: Annotated[tuple[WebhookSettings, ...], Field(max_length=MOST_WEBHOOKS)] = Field(
        default=(), description="Receivers, each with an outbox of its own."
    )
    most_pending: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=100_000, description="How many messages wait for one receiver; beyond that the oldest are dropped."
    )

    @field_validator("webhooks")
    @classmethod
    def _each_once(cls, webhooks: tuple[WebhookSettings, ...]) -> tuple[WebhookSettings, ...]:
        """Messages wait for an address: two receivers behind one could not be told apart."""
        if len({each.url for each in webhooks}) < len(webhooks):
            raise PydanticCustomError("twice", "names the same url twice: put all events of it in one place")
        return webhooks
