"""Settings of roll-outs: the webhook receivers and Prometheus servers that gates may name.

A roll-out names them and never contains a URL, so that a contributor cannot make the service call any server.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import Annotated

from pydantic import AfterValidator, Field

from aks_flex_rp.auth.auth_settings import SettingsModel, unique
from aks_flex_rp.notify.notification_settings import receiver_url

MOST_SERVERS = 32
PeerName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


class GateServerSettings(SettingsModel):
    name: PeerName = Field(description="Name by which gates refer to it.")
    url: Annotated[str, AfterValidator(receiver_url)] = Field(
        description="URL: https, or http on this machine. Redirects are not followed."
    )
    ca_file: Path | None = Field(
        default=None, description="CA certificates (PEM). Default: the system's CA certificates."
    )


class GateWebhookSettings(GateServerSettings):
    secret_file: Path = Field(
        description="File (mode 0600) with the signing secret. It may contain two lines during a rotation."
    )


class GatePrometheusSettings(GateServerSettings):
    token_file: Path | None = Field(
        default=None, description="File (mode 0600) with a token that is sent as `Authorization: Bearer TOKEN`."
    )


class RolloutSettings(SettingsModel):
    webhooks: Annotated[tuple[GateWebhookSettings, ...], Field(max_length=MOST_SERVERS), unique("name")] = Field(
        default=(), description="Webhook receivers that gates of roll-outs may ask."
    )
    prometheus: Annotated[tuple[GatePrometheusSettings, ...], Field(max_length=MOST_SERVERS), unique("name")] = Field(
        default=(), description="Prometheus servers that gates of roll-outs may query."
    )
