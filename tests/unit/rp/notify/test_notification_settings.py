from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from aks_flex_rp.notify.notification_settings import MOST_WEBHOOKS, NotificationSettings, WebhookSettings

CLUSTER = (
    "/subscriptions/12345678-1234-1234-1234-123456789abc/resourceGroups/Edge/providers/"
    "Microsoft.ContainerService/managedClusters/Plant"
)


def webhook(url: str = "https://hooks.example.com/flex", **more: Any) -> dict[str, Any]:
    return {"url": url, "secretFile": "/etc/aks-flex-rp/webhook", **more}


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com",
        "https://hooks.example.com:8443/a/b?c=d",
        "http://127.0.0.1:9000/",
        "http://[::1]:9000/",
        "http://localhost/hook",
    ],
)
def test_webhook_url_with_https_or_loopback_is_accepted(url: str) -> None:
    assert WebhookSettings.model_validate(webhook(url)).url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com",
        "http://127.0.0.1.example.com/",
        "http://10.0.0.1/",
        "https://ann:word@hooks.example.com/",
        "https://hooks.example.com/#part",
        "https:///path",
        "file:///etc/passwd",
        "hooks.example.com",
    ],
)
def test_other_webhook_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        WebhookSettings.model_validate(webhook(url))


def test_webhook_events_and_clusters_are_validated() -> None:
    made = WebhookSettings.model_validate(webhook(events=["joined", "ready.changed"], clusters=[CLUSTER]))
    assert made.clusters == (CLUSTER.lower(),)
    for wrong in ({"events": ["exploded"]}, {"clusters": ["Plant"]}, {"unheardOf": 1}):
        with pytest.raises(ValidationError):
            WebhookSettings.model_validate(webhook(**wrong))


def test_webhook_urls_must_be_unique_and_within_limit() -> None:
    many = [webhook(f"https://hooks.example.com/{number}") for number in range(MOST_WEBHOOKS + 1)]
    assert len(NotificationSettings.model_validate({"webhooks": many[1:]}).webhooks) == MOST_WEBHOOKS
    for wrong in (many, [webhook(), webhook(events=["joined"])]):
        with pytest.raises(ValidationError):
            NotificationSettings.model_validate({"webhooks": wrong})
