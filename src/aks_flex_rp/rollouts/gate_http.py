"""HTTP requests of gates: bounded in time and size, without redirects, and with errors that contain no URL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from aks_flex_node import __version__
from aks_flex_node.bounded_http.connections import bound
from aks_flex_node.bounded_http.limits import BodyLimitError, read_body, time_limit
from aks_flex_node.errors import FlexError
from aks_flex_rp.notify.webhook_client import RETRYABLE_STATUS, error_text
from aks_flex_rp.rollouts.gate_run import GateRefusedError, GateUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ATTEMPT_SECONDS = 10.0
MAX_BODY_BYTES = 1 << 20
THREADS = 16  # a request that the gate no longer waits for occupies one for 10 s at most


@dataclass(frozen=True)
class HttpReply:
    status: int
    body: bytes


def open_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "gate")


class GateHttpClient:
    """Sends requests to one server. `peer` names it in messages: receiver, Prometheus server."""

    def __init__(self, peer: str, ca_file: Path | None, seconds: float = ATTEMPT_SECONDS) -> None:
        self._peer, self._seconds = peer, seconds
        authorities = str(ca_file) if ca_file else None
        self._pool = bound(
            urllib3.PoolManager(retries=False, timeout=Timeout(total=seconds), ca_certs=authorities, maxsize=THREADS)
        )

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        """Returns the response, if another attempt would not help. Blocks: call it in a thread.

        Raises GateUnavailableError if there is none, or one with a server error.
        """
        try:
            with time_limit(self._seconds):
                reply = self._exchange(url, body, headers)
        except FlexError as error:
            raise GateUnavailableError(str(error)) from None
        except BodyLimitError as error:
            raise GateRefusedError(f"The response of the {self._peer} cannot be used: {error}.") from None
        except (HTTPError, OSError) as error:
            raise GateUnavailableError(error_text(error, self._peer)) from None
        if reply.status >= 500 or reply.status in RETRYABLE_STATUS:
            raise GateUnavailableError(f"The {self._peer} responded with {reply.status}.")
        return reply

    def _exchange(self, url: str, body: bytes, headers: Mapping[str, str]) -> HttpReply:
        headers = {"User-Agent": f"aks-flex-rp/{__version__}", "Accept": "application/json", **headers}
        answer = self._pool.request(
            "POST", url, body=body, headers=headers, redirect=False, preload_content=False, decode_content=False
        )
        try:
            return HttpReply(answer.status, read_body(answer, MAX_BODY_BYTES))
        finally:
            answer.release_conn()
