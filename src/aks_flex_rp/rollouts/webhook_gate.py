"""Webhook gate: asks a receiver whether a wave may pass, until it says so or the time is over."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import FlexError
from aks_flex_rp.notify.webhook_client import read_secrets, signature_headers
from aks_flex_rp.rollouts.gate_http import GateHttpClient
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateRefusedError, GateUnavailableError, repeat, shown

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from aks_flex_rp.rollout_settings import GateWebhookSettings
    from aks_flex_rp.rollouts.gate_http import HttpReply
    from aks_flex_rp.rollouts.gate_run import GateProgress, GateRun

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
        self._settings, self._threads, self._pause = settings, threads, pause
        self._http = GateHttpClient(f"receiver {settings.name}", settings.ca_file)

    async def run(self, run: GateRun, progress: GateProgress) -> GateAnswer:
        body = json.dumps(request_document(run)).encode()

        async def ask() -> GateAnswer | None:
            loop = asyncio.get_running_loop()
            reply = await loop.run_in_executor(self._threads, self._post, f"gate_{run.id}", body)
            return _answer(reply, self._settings.name, progress)

        return await repeat(ask, progress, self._pause)

    def _post(self, message: str, body: bytes) -> HttpReply:
        try:
            secrets = read_secrets(self._settings.secret_file)
        except FlexError as error:
            raise GateUnavailableError(str(error)) from None
        headers = {
            "Content-Type": "application/json",
            **signature_headers(secrets, message, body, int(time.time())),
        }
        return self._http.post(self._settings.url, body, headers)


def _answer(reply: HttpReply, name: str, progress: GateProgress) -> GateAnswer | None:
    """Returns the answer, or None if the receiver asks to wait."""
    if reply.status != 200:
        raise GateRefusedError(f"The receiver {name} responded with {reply.status}, and not with 200.")
    document: Any = None
    with suppress(ValueError, RecursionError):
        document = json.loads(reply.body)
    result = document.get("result") if isinstance(document, dict) else None
    said = document.get("message", "") if isinstance(document, dict) else ""
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
