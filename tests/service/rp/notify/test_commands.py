"""Tests of `aks-flex-rp notifications`."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from aks_flex_node.errors import ConfigError
from aks_flex_rp.cli import notification_commands
from aks_flex_rp.cli.command_context import migrate_schema
from aks_flex_rp.notify.node_events import EventPublisher, NodeEvent
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.notify.webhook_client import read_secrets
from aks_flex_rp.service import open_store
from tests.service.ports import free_port
from tests.service.rp.api.service_harness import settings
from tests.service.rp.notify.receivers import SECRET
from tests.service.rp.store.builders import node

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from aks_flex_rp.settings import ServiceSettings
    from tests.service.rp.notify.receivers import Receiver


def configured(room: Path, *webhooks: dict[str, Any]) -> ServiceSettings:
    made = settings(room / "state", notifications={"webhooks": list(webhooks)})
    document = {"stateDir": str(made.state_dir), "notifications": {"webhooks": list(webhooks)}}
    (room / "config.yaml").write_text(yaml.safe_dump(document))
    return made


def types(room: Path, *words: str) -> Result:
    return CliRunner().invoke(notification_commands.app, [*words, "--config", str(room / "config.yaml")])


def test_notification_test_sends_to_each_webhook_and_reports_results(
    tmp_path: Path, receiver: Receiver, secret_file: Path
) -> None:
    away = f"http://127.0.0.1:{free_port()}/secret-path"
    urls = (receiver.url, away)
    configured(tmp_path, *({"url": each, "secretFile": str(secret_file)} for each in urls))
    done = types(tmp_path, "test", "--json")
    assert done.exit_code == 1
    assert [each["outcome"] for each in json.loads(done.stdout)] == ["sent", "failed"]
    assert "secret-path" not in done.output
    (got,) = receiver.received
    assert got.is_signed_with(SECRET)
    assert got.event["type"] == "com.aks-flex-node.test.v1"


def test_notification_list_shows_pending_messages_and_last_failure(tmp_path: Path, secret_file: Path) -> None:
    hook = {"url": "https://hooks.example.com/secret-path", "secretFile": str(secret_file), "events": ["joined"]}
    made = configured(tmp_path, hook)

    async def fail() -> None:
        store = open_store(made)
        await store.start()
        notices = EventPublisher(made.notifications.webhooks)
        (message,) = notices.messages_about(
            "/c", "edge-1", [NodeEvent(NodeEventKind.JOINED), NodeEvent(NodeEventKind.LEFT)], 1777636800.0
        )
        await store.put_node(node(), None, (), [message])
        await store.message_failed(message, 1777636900.0, "The receiver responded with 500.")
        await store.stop()

    asyncio.run(fail())
    (found,) = json.loads(types(tmp_path, "list", "--json").stdout)
    assert found.pop("receiver").startswith("https://hooks.example.com (")
    assert found == {
        "events": ["joined"],
        "clusters": [],
        "pending": 1,
        "oldest": "2026-05-01T12:00:00Z",
        "failure": "The receiver responded with 500.",
    }
    assert "The receiver responded with 500." in types(tmp_path, "list").stdout


@pytest.mark.parametrize("command", ["list", "test"])
def test_notification_commands_without_webhooks_report_missing_config(
    tmp_path: Path, command: str, receiver: Receiver, secret_file: Path
) -> None:
    asyncio.run(migrate_schema(configured(tmp_path)))
    done = types(tmp_path, command)
    assert isinstance(done.exception, ConfigError)
    assert done.exception.name == "webhooks-missing"

    configured(tmp_path, {"url": receiver.url, "secretFile": str(secret_file)})
    assert types(tmp_path, command).exit_code == 0


def test_new_secret_of_a_webhook_is_accepted(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    configured(tmp_path, {"url": receiver.url, "secretFile": str(file)})
    done = types(tmp_path, "test")
    assert isinstance(done.exception, ConfigError)
    assert done.exception.name == "webhook-secret-invalid"

    file.unlink()
    create = done.exception.hint.partition("`")[2].partition("`")[0]
    subprocess.run(["bash", "-c", create], check=True, timeout=60)
    assert types(tmp_path, "test").exit_code == 0
    (got,) = receiver.received
    assert got.is_signed_with(*read_secrets(file))
