"""One message to one receiver, and what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import urllib3
from urllib3.exceptions import HTTPError, SSLError
from urllib3.util import Timeout

from aks_flex_node import __version__
from aks_flex_node.errors import FlexError
from aks_flex_node.rp.notifying import signing

if TYPE_CHECKING:
    from aks_flex_node.rp.notifying.hooks import Hook

SECONDS = 10.0
AT_ONCE = 8  # messages on their way to one receiver
LONGEST_WAIT = 3600.0
LATER = frozenset({408, 425, 429})  # of the 4xx, those that are about the moment and not about the message

Verdict = Literal["sent", "failed", "refused", "gone"]


@dataclass(frozen=True)
class Outcome:
    """`failed`: the receiver is not well, whatever it is sent. `refused`: it does not want this message."""

    verdict: Verdict
    why: str = ""
    wait: float = 0.0  # seconds that the receiver asked for


class Post:
    """The way to one receiver; used by several threads at a time."""

    def __init__(self, hook: Hook, seconds: float = SECONDS) -> None:
        self._hook = hook
        authorities = str(hook.ca_file) if hook.ca_file else None
        patience = Timeout(total=seconds)
        self._pool = urllib3.PoolManager(retries=False, timeout=patience, ca_certs=authorities, maxsize=AT_ONCE)

    def send(self, message: str, body: str) -> Outcome:
        """Only the status counts: a receiver's words are nobody's to trust, to wait for, or to keep."""
        try:
            answer = self._ask(message, body.encode())
        except FlexError as error:
            return Outcome("failed", str(error))
        except (HTTPError, OSError) as error:
            return Outcome("failed", _words(error))
        try:
            return judged(answer.status, answer.headers.get("Retry-After", ""))
        finally:
            answer.close()

    def _ask(self, message: str, body: bytes) -> urllib3.BaseHTTPResponse:
        secrets = signing.read_secrets(self._hook.secret_file)
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": f"aks-flex-rp/{__version__}",
            **signing.headers(secrets, message, body, int(time.time())),
        }
        return self._pool.request(
            "POST", self._hook.url, body=body, headers=headers, redirect=False, preload_content=False
        )


def judged(status: int, retry_after: str = "") -> Outcome:
    if 200 <= status < 300:
        return Outcome("sent")
    why = f"It answered {status}."
    if status == 410:
        return Outcome("gone", why)
    if 300 <= status < 500 and status not in LATER:
        return Outcome("refused", why)
    wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return Outcome("failed", why, min(wait, LONGEST_WAIT))


def _words(error: Exception) -> str:
    """Without the address, which an error of urllib3's would quote in full."""
    if isinstance(error, SSLError):
        return "Its certificate cannot be verified, or TLS failed otherwise."
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "Its name cannot be resolved."
    refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # which counts as a time-out there
    if isinstance(error, urllib3.exceptions.TimeoutError) and not refused:
        return "It did not answer in time."
    return "It cannot be reached, or ended the connection."
