"""Tests of the signature of a webhook, and of what follows from a response."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.notify.notifier import MAX_RETRY_SECONDS, RetryPolicy
from aks_flex_rp.notify.webhook_client import (
    SendResult,
    SendStatus,
    classify_response,
    read_secrets,
    signature_headers,
)

if TYPE_CHECKING:
    from pathlib import Path


def secret_file(room: Path, content: str, mode: int = 0o600) -> Path:
    file = room / "secret"
    file.touch(mode)
    file.chmod(mode)
    file.write_text(content)
    return file


def encoded(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


def test_signature_matches_standard_webhooks_example(tmp_path: Path) -> None:
    """The example is from the documentation of Standard Webhooks."""
    secrets = read_secrets(secret_file(tmp_path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"))
    made = signature_headers(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330)
    assert made == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "content",
    ["", "whsec_", "whsec_käse", encoded(b"short"), encoded(b"x" * 65), "\n".join([encoded(b"x" * 32)] * 3)],
    ids=["empty", "nothing", "not base64", "short", "long", "three"],
)
def test_malformed_webhook_secret_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_secrets(secret_file(tmp_path, content))
    assert raised.value.name == "webhook-secret-invalid"
    assert len(content) < 10 or content not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "result"),
    [
        *((each, "sent") for each in (200, 202, 204, 299)),
        *((each, "refused") for each in (301, 307, 400, 401, 403, 404, 413, 422)),
        *((each, "failed") for each in (100, 408, 425, 429, 500, 502, 503, 504)),
        (410, "gone"),
    ],
)
def test_response_status_determines_send_result(status: int, result: str) -> None:
    assert classify_response(status).status == result


@pytest.mark.parametrize(
    ("header", "wait"), [("", 0), ("120", 120), ("999999", 3600), ("-5", 0), ("Fri, 01 May 2026 12:00:00 GMT", 0)]
)
def test_retry_after_of_receiver_is_used_within_bounds(header: str, wait: float) -> None:
    assert classify_response(503, header) == SendResult(SendStatus.FAILED, "The receiver responded with 503.", wait)


def test_retry_delay_grows_up_to_maximum_with_jitter() -> None:
    pace = RetryPolicy()
    for tries, most in ((1, 5.0), (2, 10.0), (5, 80.0), (11, MAX_RETRY_SECONDS), (5000, MAX_RETRY_SECONDS)):
        pauses = {pace.pause(tries, 5.0) for _ in range(50)}
        assert most / 2 <= min(pauses) < max(pauses) <= most
    assert pace.pause(5000, 5.0, 300.0) <= 300.0
