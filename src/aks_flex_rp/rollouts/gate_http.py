"""Gates that ask a server: a webhook receiver whether a wave may pass, until it says so or the time is over, and a
Prometheus server for values that satisfy a comparison several times in a row.

Their requests are bounded in time and size, without redirects, and with errors that contain no URL.
"""

from __future__ import annotations

import asyncio
import json
import math
import operator
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from urllib3.exceptions import HTTPError

from aks_flex_node import __version__
from aks_flex_node.bounded_http.limits import BodyLimitError, read_body, time_limit
from aks_flex_node.errors import FlexError
from aks_flex_rp import private_files
from aks_flex_rp.notify.webhook_client import (
    RETRYABLE_STATUS,
    error_text,
    open_connections,
    read_secrets,
    signature_headers,
)
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateRefusedError, GateUnavailableError, repeat, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from aks_flex_rp.rollout_settings import GatePrometheusSettings, GateWebhookSettings
    from aks_flex_rp.rollouts.gate_run import GateProgress, GateRun
    from aks_flex_rp.rollouts.gate_specs import PrometheusGate

ATTEMPT_SECONDS = 10.0
MAX_BODY_BYTES = 1 << 20
THREADS = 16  # a request that the gate no longer waits for occupies one for 10 s at most


@dataclass(frozen=True)
class HttpReply:
    status: int
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of the body; empty if it is something else."""
        document: Any = None
        with suppress(ValueError, RecursionError):
            document = json.loads(self.body)
        return document if isinstance(document, dict) else {}


def open_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "gate")


class GateHttpClient:
    """Sends requests to one server. `peer` names it in messages: receiver, Prometheus server."""

    def __init__(self, peer: str, ca_file: Path | None, threads: Executor) -> None:
        self._peer, self._threads = peer, threads
        self._pool = open_connections(ca_file, ATTEMPT_SECONDS, THREADS)

    async def post(self, url: str, body: bytes, headers: Callable[[], Mapping[str, str]]) -> HttpReply:
        """Returns the response, if another attempt would not help. `headers` reads the credential from its file.

        Raises GateUnavailableError if there is no response, or one with a server error, or no credential.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._post, url, body, headers)

    def _post(self, url: str, body: bytes, headers: Callable[[], Mapping[str, str]]) -> HttpReply:
        try:
            with time_limit(ATTEMPT_SECONDS):
                reply = self._exchange(url, body, headers())
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


PAUSE_SECONDS = 10.0
MOST_NODES = 1000  # names in a request
MAX_SAID_LENGTH = 800


def request_document(run: GateRun) -> dict[str, Any]:
    return {
        "cluster": run.cluster,
        "pool": run.pool,
        "rollout": run.rollout,
        "wave": run.wave,
        "revision": run.revision,
        "gate": run.gate.name,
        "nodeCount": len(run.nodes),
        "nodes": list(run.nodes[:MOST_NODES]),
    }


class WebhookGateReceiver:
    """Asks one receiver. All attempts of a run have the same webhook-id."""

    def __init__(self, settings: GateWebhookSettings, threads: Executor, pause: float = PAUSE_SECONDS) -> None:
        self._settings, self._pause = settings, pause
        self._http = GateHttpClient(f"receiver {settings.name}", settings.ca_file, threads)

    async def run(self, run: GateRun, progress: GateProgress) -> GateAnswer:
        body = json.dumps(request_document(run)).encode()

        async def ask() -> GateAnswer | None:
            reply = await self._http.post(self._settings.url, body, lambda: self._headers(f"gate_{run.id}", body))
            return _answer(reply, self._settings.name, progress)

        return await repeat(ask, progress, self._pause)

    def _headers(self, message: str, body: bytes) -> dict[str, str]:
        secrets = read_secrets(self._settings.secret_file)
        signature = signature_headers(secrets, message, body, int(time.time()))
        return {"Content-Type": "application/json", **signature}


def _answer(reply: HttpReply, name: str, progress: GateProgress) -> GateAnswer | None:
    """Returns the answer, or None if the receiver asks to wait."""
    if reply.status != 200:
        raise GateRefusedError(f"The receiver {name} responded with {reply.status}, and not with 200.")
    result, said = reply.document.get("result"), reply.document.get("message", "")
    if result not in ("pass", "fail", "wait") or not isinstance(said, str):
        raise GateRefusedError(
            f"The response of the receiver {name} is not a JSON object with the result pass, fail or wait."
        )
    said = shown(said, MAX_SAID_LENGTH)
    if result == "wait":
        progress.text = f"The receiver {name} asks to wait{f': {said}' if said else '.'}"
        return None
    verb = "passed" if result == "pass" else "failed"
    return GateAnswer.of(result == "pass", f"The receiver {name} {verb} the wave{f': {said}' if said else '.'}")


QUERY_TIMEOUT = "8s"  # shorter than an attempt, so that the server says that it is too slow
MAX_LABELS_LENGTH = 200
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
Sample = tuple[str, float]  # the labels as text, and the value


class PrometheusServer:
    def __init__(self, settings: GatePrometheusSettings, threads: Executor) -> None:
        self._settings = settings
        self._http = GateHttpClient(f"Prometheus server {settings.name}", settings.ca_file, threads)

    async def run(self, spec: PrometheusGate, progress: GateProgress) -> GateAnswer:
        successes = 0
        url = f"{self._settings.url.rstrip('/')}/api/v1/query"
        body = urlencode({"query": spec.query, "timeout": QUERY_TIMEOUT}).encode()

        async def evaluate() -> GateAnswer | None:
            nonlocal successes
            before, successes = successes, 0  # also if there is no response
            samples = read_samples(await self._http.post(url, body, self._headers), self._settings.name)
            if violation := find_violation(samples, spec):
                progress.text = violation
                return None
            successes = before + 1
            progress.text = f"{describe(samples[0], spec)} in {successes} of {spec.successes} evaluations in a row."
            return GateAnswer.of(True, progress.text) if successes >= spec.successes else None

        return await repeat(evaluate, progress, spec.interval_seconds)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._settings.token_file:
            token = private_files.read(self._settings.token_file).decode("ascii", "replace").strip()
            headers["Authorization"] = f"Bearer {token}"
        return headers


def read_samples(reply: HttpReply, name: str) -> list[Sample]:
    """Returns the values of a vector or scalar. Raises GateRefusedError for any other response."""
    document = reply.document
    if reply.status != 200 or document.get("status") != "success":
        why = shown(str(document.get("error") or f"status {reply.status}"), 300)
        raise GateRefusedError(f"The Prometheus server {name} did not evaluate the query: {why}.")
    try:
        return list(_samples(document["data"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise GateRefusedError(
            f"The response of the Prometheus server {name} is neither a vector nor a scalar."
        ) from None


def _samples(data: dict[str, Any]) -> list[Sample]:
    if data["resultType"] == "scalar":
        return [("", float(data["result"][1]))]
    if data["resultType"] != "vector":
        raise ValueError("neither a vector nor a scalar")
    return [(_labels(each["metric"]), float(each["value"][1])) for each in data["result"]]


def _labels(metric: dict[str, str]) -> str:
    pairs = ", ".join(f'{name}="{value}"' for name, value in sorted(metric.items()) if name != "__name__")
    return shown(f"{metric.get('__name__', '')}{{{pairs}}}", MAX_LABELS_LENGTH)


def find_violation(samples: list[Sample], spec: PrometheusGate) -> str:
    """Returns why the samples do not satisfy the gate, or nothing if they do."""
    if not samples:
        return "The query has no result, which is not a success: its metrics do not exist, or no sample matches."
    compare = COMPARISONS[spec.comparison]
    bad = [each for each in samples if math.isnan(each[1]) or not compare(each[1], spec.threshold)]
    if not bad:
        return ""
    many = f", and {len(bad) - 1} more of {len(samples)} values" if len(bad) > 1 else ""
    return f"{describe(bad[0], spec)} is not satisfied{many}."


def describe(sample: Sample, spec: PrometheusGate) -> str:
    labels, value = sample
    return f"{f'{labels} = ' if labels else ''}{value:g} {spec.comparison} {spec.threshold:g}"
