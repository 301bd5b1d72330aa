"""Commands `notifications list|test`: configured webhooks, pending messages, test messages."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import typer

from aks_flex_node.errors import ConfigError
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import LocalOptions, with_settings

if TYPE_CHECKING:
    from aks_flex_rp.notify.notification_settings import WebhookSettings
    from aks_flex_rp.settings import ServiceSettings
    from aks_flex_rp.store.outbox import PendingMessages

app = typer.Typer()


@app.command("list")
@with_settings
def show_all(local: LocalOptions) -> None:
    """List webhooks, pending messages and the last failure."""
    settings = local.settings
    webhooks = _hooks(settings)
    waiting = {each.hook: each for each in asyncio.run(_pending(settings))}
    documents = [_document(hook, waiting.get(hook.key)) for hook in webhooks]
    rows = [
        (each["receiver"], ", ".join(each["events"]) or "all", str(each["pending"]), each["oldest"], each["failure"])
        for each in documents
    ]
    head = ("RECEIVER", "EVENTS", "PENDING", "OLDEST", "LAST FAILURE")
    local.print_result(output.format_table(rows, head), documents)


def _document(webhook: WebhookSettings, pending: PendingMessages | None) -> dict[str, Any]:
    from aks_flex_node.timestamps import format_utc

    return {
        "receiver": webhook.title,
        "events": sorted({*webhook.events}),
        "clusters": sorted({*webhook.clusters}),
        "pending": pending.messages if pending else 0,
        "oldest": format_utc(pending.oldest) if pending else "",
        "failure": pending.failure if pending else "",
    }


@app.command("test")
@with_settings
def try_all(local: LocalOptions) -> None:
    """Send a test message to each webhook.

    Prints the result of each webhook. Exits with 1 if a webhook did not accept the message.
    """
    webhooks = _hooks(local.settings)
    outcomes = [{"receiver": hook.title, **_send_test(hook)} for hook in webhooks]
    lines = [f"{each['receiver']}: {each['outcome']} {each['why']}".rstrip() for each in outcomes]
    local.print_result("\n".join(lines), outcomes)
    raise typer.Exit(0 if all(each["outcome"] == "sent" for each in outcomes) else 1)


def _send_test(webhook: WebhookSettings) -> dict[str, str]:
    import json

    from aks_flex_rp.notify.node_events import cloud_event
    from aks_flex_rp.notify.notification_settings import TEST_TYPE
    from aks_flex_rp.notify.notifier import check_webhook
    from aks_flex_rp.notify.webhook_client import WebhookClient

    check_webhook(webhook)
    event = cloud_event(TEST_TYPE, "/aks-flex-rp", "test", {"text": "This is a test."}, time.time())
    result = WebhookClient(webhook).send(event["id"], json.dumps(event))
    return {"outcome": result.status.value, "why": result.why}


def _hooks(settings: ServiceSettings) -> tuple[WebhookSettings, ...]:
    webhooks = settings.notifications.webhooks
    if not webhooks:
        raise ConfigError(
            "webhooks-missing",
            "No webhook is configured.",
            "Add a webhook to `notifications.webhooks` in the service configuration.",
        )
    return webhooks


async def _pending(settings: ServiceSettings) -> tuple[PendingMessages, ...]:
    async with command_context.open_local_store(settings) as store:
        return await store.pending_messages()
