"""Sends one message to one webhook, signed as Standard Webhooks specifies, and classifies the response."""

from __future__ import annotations

import base64
import hmac
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import urllib3
from urllib3.exceptions import HTTPError, SSLError
from urllib3.util import Timeout

from aks_flex_node import __version__
from aks_flex_node.bounded_http.connections import bound
from aks_flex_node.bounded_http.limits import time_limit
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_rp import private_files
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_rp.notify.notification_settings import WebhookSettings


SECRET_PREFIX = "whsec_"  # noqa: S105
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64  # bytes
MAX_SECRETS = 2  # during a rotation


def read_secrets(file: Path) -> tuple[bytes, ...]:
    """Reads the secrets, newest first. Called for every batch, so that a changed file is used immediately."""
    lines = private_files.read(file).decode("ascii", "replace").split()
    found = [_decoded(line) for line in lines]
    if not 1 <= len(found) <= MAX_SECRETS or None in found:
        raise ConfigError(
            "webhook-secret-invalid",
            f"{file} contains no valid webhook secret. It needs one or two lines, each {SECRET_PREFIX} and "
            f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in base64.",
            f'Create one with `(umask 077; echo "{SECRET_PREFIX}$(openssl rand -base64 32)" > {file})`.',
        )
    return tuple(each for each in found if each)


def _decoded(line: str) -> bytes | None:
    try:
        secret = base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return None
    return secret if MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES else None


def signature_headers(secrets: tuple[bytes, ...], message: str, body: bytes, now: int) -> dict[str, str]:
    """Returns the headers with one signature per secret, so that a receiver can verify it with any of them."""
    signed = f"{message}.{now}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)
    return {
        "webhook-id": message,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


REQUEST_SECONDS = 10.0
MAX_CONCURRENT = 8  # concurrent messages to one receiver
MAX_RETRY_AFTER = 3600.0
RETRYABLE_STATUS = frozenset({408, 425, 429})  # 4xx codes that may succeed later


class SendStatus(TextEnum):
    SENT = "sent"
    FAILED = "failed"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True)
class SendResult:
    """Result of an attempt. `failed`: the receiver is not working. `refused`: it rejects this message."""

    status: SendStatus
    why: str = ""
    wait: float = 0.0  # seconds from Retry-After


def open_connections(ca_file: Path | None, seconds: float, size: int) -> urllib3.PoolManager:
    """Returns a pool of connections that are bounded and not retried. `ca_file` replaces the system's CAs."""
    authorities = str(ca_file) if ca_file else None
    return bound(
        urllib3.PoolManager(retries=False, timeout=Timeout(total=seconds), ca_certs=authorities, maxsize=size)
    )


class WebhookClient:
    """Sends messages to one receiver. Used by several threads at the same time."""

    def __init__(self, webhook: WebhookSettings, seconds: float = REQUEST_SECONDS) -> None:
        self._hook = webhook
        self._seconds = seconds
        self._pool = open_connections(webhook.ca_file, seconds, MAX_CONCURRENT)

    def send(self, message: str, body: str) -> SendResult:
        """Sends a message. Only the status of the response is used; the body is not read."""
        try:
            answer = self._post(message, body.encode())
        except FlexError as error:
            return SendResult(SendStatus.FAILED, str(error))
        except (HTTPError, OSError) as error:
            return SendResult(SendStatus.FAILED, error_text(error))
        try:
            return classify_response(answer.status, answer.headers.get("Retry-After", ""))
        finally:
            answer.close()

    def _post(self, message: str, body: bytes) -> urllib3.BaseHTTPResponse:
        secrets = read_secrets(self._hook.secret_file)
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": f"aks-flex-rp/{__version__}",
            **signature_headers(secrets, message, body, int(time.time())),
        }
        with time_limit(self._seconds):
            return self._pool.request(
                "POST", self._hook.url, body=body, headers=headers, redirect=False, preload_content=False
            )


def classify_response(status: int, retry_after: str = "") -> SendResult:
    if 200 <= status < 300:
        return SendResult(SendStatus.SENT)
    why = f"The receiver responded with {status}."
    if status == 410:
        return SendResult(SendStatus.GONE, why)
    if 300 <= status < 500 and status not in RETRYABLE_STATUS:
        return SendResult(SendStatus.REFUSED, why)
    wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return SendResult(SendStatus.FAILED, why, min(wait, MAX_RETRY_AFTER))


def error_text(error: Exception, peer: str = "receiver") -> str:
    """Describes an error without the URL, which urllib3 would include."""
    if isinstance(error, SSLError):
        return f"TLS failed, or the certificate of the {peer} cannot be verified."
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return f"The host name of the {peer} cannot be resolved."
    refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # a subclass of TimeoutError in urllib3
    if isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError) and not refused:
        return f"The {peer} did not respond in time."
    return f"The {peer} cannot be reached, or closed the connection."
