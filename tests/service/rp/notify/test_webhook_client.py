"""Tests of one message to one receiver over a real connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.notify.notification_settings import WebhookSettings
from aks_flex_rp.notify.webhook_client import SendResult, SendStatus, WebhookClient
from tests.service.ports import free_port
from tests.service.rp.notify.receivers import SECRET, SOON, receiving, write_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.rp.notify.receivers import Receiver

BODY = '{"text": "käse"}'


def send(url: str, secret_file: Path, ca_file: Path | None = None, seconds: float = SOON) -> SendResult:
    webhook = WebhookSettings(url=url, secret_file=secret_file, ca_file=ca_file)
    return WebhookClient(webhook, seconds).send("id-1", BODY)


def test_webhook_message_is_signed_and_unmodified(receiver: Receiver, secret_file: Path) -> None:
    before = int(time.time())
    assert send(receiver.url, secret_file) == SendResult(SendStatus.SENT)
    (got,) = receiver.received
    assert got.body.decode() == BODY
    assert got.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert got.headers["webhook-id"] == "id-1"
    assert before <= int(got.headers["webhook-timestamp"]) <= time.time()
    assert got.is_signed_with(SECRET)
    assert not got.is_signed_with(b"another")


def test_webhook_secret_rotation_signs_with_all_secrets_in_file(receiver: Receiver, secret_file: Path) -> None:
    new = b"n" * 32
    post = WebhookClient(WebhookSettings(url=receiver.url, secret_file=secret_file))
    for secrets in ((SECRET,), (new, SECRET), (new,)):
        write_secrets(secret_file, *secrets)
        assert post.send("id", BODY).status == "sent"
        assert [receiver.received[-1].is_signed_with(each) for each in (new, SECRET)] == [
            new in secrets,
            SECRET in secrets,
        ]


def test_unreadable_webhook_secret_fails_send_with_reason(receiver: Receiver, secret_file: Path) -> None:
    secret_file.chmod(0o640)
    outcome = send(receiver.url, secret_file)
    assert outcome.status == "failed"
    assert "contains a secret" in outcome.why
    assert receiver.received == []


def test_webhook_redirect_is_refused(receiver: Receiver, secret_file: Path) -> None:
    receiver.answer = lambda _: (307, {"Location": receiver.url})
    assert send(receiver.url, secret_file) == SendResult(SendStatus.REFUSED, "The receiver responded with 307.")
    assert len(receiver.received) == 1


def test_webhook_send_fails_when_receiver_times_out(receiver: Receiver, secret_file: Path) -> None:
    receiver.hold.clear()
    assert send(receiver.url, secret_file, seconds=1.0) == SendResult(
        SendStatus.FAILED, "The receiver did not respond in time."
    )


@pytest.mark.parametrize("trusted", [True, False])
def test_webhook_server_certificate_is_verified(
    authority: CertificateAuthority, secret_file: Path, trusted: bool
) -> None:
    pair = authority.issue("receiver", "receiver", names=("localhost",))
    with receiving(pair) as receiver:
        outcome = send(receiver.url, secret_file, authority.certificate if trusted else None)
    assert outcome.status == ("sent" if trusted else "failed")
    assert len(receiver.received) == int(trusted)
    assert trusted or "certificate" in outcome.why


def test_webhook_failure_reason_does_not_contain_url(secret_file: Path) -> None:
    outcome = send(f"http://127.0.0.1:{free_port()}/services/hidden?token=hidden", secret_file)
    assert outcome == SendResult(SendStatus.FAILED, "The receiver cannot be reached, or closed the connection.")
