"""`notifications list|test`: the webhooks of the configuration, what waits for them, and whether they answer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import typer

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.cli import options, screen, stores
from aks_flex_node.rp.cli.options import Config, Json, State

if TYPE_CHECKING:
    from aks_flex_node.rp.notifying.hooks import Hook
    from aks_flex_node.rp.settings import ServiceSettings
    from aks_flex_node.rp.store.outbox import Pending

app = typer.Typer(help="Webhooks that are told of what happens to nodes.", no_args_is_help=True)


@app.command("list")
def show_all(config: Config = None, state: State = None, json: Json = False) -> None:
    """List webhooks, how many messages wait for each, and why the last that was tried did not arrive."""
    settings = options.load(config, state)
    hooks = _hooks(settings)
    waiting = {each.hook: each for each in asyncio.run(_pending(settings))}
    documents = [_document(hook, waiting.get(hook.key)) for hook in hooks]
    rows = [
        (each["receiver"], ", ".join(each["events"]) or "all", str(each["pending"]), each["oldest"], each["failure"])
        for each in documents
    ]
    screen.say(screen.table(rows, ("RECEIVER", "EVENTS", "PENDING", "OLDEST", "LAST FAILURE")), documents, json)


def _document(hook: Hook, pending: Pending | None) -> dict[str, Any]:
    from aks_flex_node.rp.arm.times import iso

    return {
        "receiver": hook.title,
        "events": sorted(hook.kinds),
        "clusters": sorted(hook.clusters),
        "pending": pending.messages if pending else 0,
        "oldest": iso(pending.oldest) if pending else "",
        "failure": pending.failure if pending else "",
    }


@app.command("test")
def try_all(config: Config = None, state: State = None, json: Json = False) -> None:
    """Send a test message to each webhook now, and say what it answered. Exit 1 when one did not take it."""
    hooks = _hooks(options.load(config, state))
    outcomes = [{"receiver": hook.title, **_tried(hook)} for hook in hooks]
    lines = [f"{each['receiver']}: {each['outcome']} {each['why']}".rstrip() for each in outcomes]
    screen.say("\n".join(lines), outcomes, json)
    raise typer.Exit(0 if all(each["outcome"] == "sent" for each in outcomes) else 1)


def _tried(hook: Hook) -> dict[str, str]:
    import json

    from aks_flex_node.rp.notifying.hooks import envelope
    from aks_flex_node.rp.notifying.kinds import TEST_TYPE
    from aks_flex_node.rp.notifying.posting import Post
    from aks_flex_node.rp.notifying.working import check

    check(hook)
    event = envelope(TEST_TYPE, "/aks-flex-rp", "test", {"text": "This is a test."}, time.time())
    outcome = Post(hook).send(event["id"], json.dumps(event))
    return {"outcome": outcome.verdict, "why": outcome.why}


def _hooks(settings: ServiceSettings) -> tuple[Hook, ...]:
    from aks_flex_node.rp.notifying.hooks import open_hooks

    hooks = open_hooks(settings.notifications)
    if not hooks:
        raise ConfigError(
            "webhooks-missing",
            "The configuration of the service names no webhook.",
            "Name one below notifications.webhooks; docs/notifications.md says how.",
        )
    return hooks


async def _pending(settings: ServiceSettings) -> tuple[Pending, ...]:
    async with stores.opened(settings) as store:
        return await store.pending_messages()
