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
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_rp import private_files
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_rp.notify.node_events import Webhook


SECRET_PREFIX = "whsec_"  # noqa: S105
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64  # bytes of a secret
MAX_SECRETS = 2  # secrets while one takes the other's place


def read_secrets(file: Path) -> tuple[bytes, ...]:
    """The newest first. Read anew for every batch, so that a changed file counts at once."""
    lines = private_files.read(file).decode("ascii", "replace").split()
    found = [_decoded(line) for line in lines]
    if not 1 <= len(found) <= MAX_SECRETS or None in found:
        raise ConfigError(
            "webhook-secret-invalid",
            f"{file} holds no secret for a webhook: one or two lines, each {SECRET_PREFIX} and {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES} "
            "bytes in base64.",
            f'Make one with `(umask 077; echo "{SECRET_PREFIX}$(openssl rand -base64 32)" > {file})`.',
        )
    return tuple(each for each in found if each)


def _decoded(line: str) -> bytes | None:
    try:
        secret = base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return None
    return secret if MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES else None


def signature_headers(secrets: tuple[bytes, ...], message: str, body: bytes, now: int) -> dict[str, str]:
    """A signature for each secret: a receiver that knows any of them can tell that it comes from here."""
    signed = f"{message}.{now}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)
    return {
        "webhook-id": message,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


SECONDS = 10.0
MAX_CONCURRENT = 8  # messages on their way to one receiver
LONGEST_WAIT = 3600.0
RETRYABLE_STATUS = frozenset({408, 425, 429})  # of the 4xx, those that are about the moment and not about the message


class SendStatus(TextEnum):
    SENT = "sent"
    FAILED = "failed"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(frozen=True)
class SendResult:
    """`failed`: the receiver is not well, whatever it is sent. `refused`: it does not want this message."""

    status: SendStatus
    why: str = ""
    wait: float = 0.0  # seconds that the receiver asked for


class WebhookClient:
    """The way to one receiver; used by several threads at a time."""

    def __init__(self, webhook: Webhook, seconds: float = SECONDS) -> None:
        self._hook = webhook
        authorities = str(webhook.ca_file) if webhook.ca_file else None
        timeout = Timeout(total=seconds)
        self._pool = urllib3.PoolManager(retries=False, timeout=timeout, ca_certs=authorities, maxsize=MAX_CONCURRENT)

    def send(self, message: str, body: str) -> SendResult:
        """Only the status counts: a receiver's words are nobody's to trust, to wait for, or to keep."""
        try:
            answer = self._ask(message, body.encode())
        except FlexError as error:
            return SendResult(SendStatus.FAILED, str(error))
        except (HTTPError, OSError) as error:
            return SendResult(SendStatus.FAILED, _error_text(error))
        try:
            return classify_response(answer.status, answer.headers.get("Retry-After", ""))
        finally:
            answer.close()

    def _ask(self, message: str, body: bytes) -> urllib3.BaseHTTPResponse:
        secrets = read_secrets(self._hook.secret_file)
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": f"aks-flex-rp/{__version__}",
            **signature_headers(secrets, message, body, int(time.time())),
        }
        return self._pool.request(
            "POST", self._hook.url, body=body, headers=headers, redirect=False, preload_content=False
        )


def classify_response(status: int, retry_after: str = "") -> SendResult:
    if 200 <= status < 300:
        return SendResult(SendStatus.SENT)
    why = f"It answered {status}."
    if status == 410:
        return SendResult(SendStatus.GONE, why)
    if 300 <= status < 500 and status not in RETRYABLE_STATUS:
        return SendResult(SendStatus.REFUSED, why)
    wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return SendResult(SendStatus.FAILED, why, min(wait, LONGEST_WAIT))


def _error_text(error: Exception) -> str:
    """Without the address, which an error of urllib3's would quote in full."""
    if isinstance(error, SSLError):
        return "Its certificate cannot be verified, or TLS failed otherwise."
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "Its name cannot be resolved."
    refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # which counts as a time-out there
    if isinstance(error, urllib3.exceptions.TimeoutError) and not refused:
        return "It did not answer in time."
    return "It cannot be reached, or ended the connection."
