"""Prometheus gate: passes when each value of a query satisfies a comparison several times in a row."""

from __future__ import annotations

import asyncio
import json
import math
import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aks_flex_node.errors import FlexError
from aks_flex_rp import private_files
from aks_flex_rp.rollouts.gate_http import GateHttpClient
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateRefusedError, GateUnavailableError, repeat, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from aks_flex_rp.rollout_settings import GatePrometheusSettings
    from aks_flex_rp.rollouts.gate_http import HttpReply
    from aks_flex_rp.rollouts.gate_run import GateProgress, GateRun
    from aks_flex_rp.rollouts.gate_specs import PrometheusGate

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
        self._settings, self._threads = settings, threads
        self._http = GateHttpClient(f"Prometheus server {settings.name}", settings.ca_file)

    async def run(self, run: GateRun, progress: GateProgress) -> GateAnswer:
        spec = run.gate.prometheus
        if spec is None:
            raise AssertionError("The gate has another kind.")
        successes = 0

        async def evaluate() -> GateAnswer | None:
            nonlocal successes
            before, successes = successes, 0  # also if there is no response
            reply = await asyncio.get_running_loop().run_in_executor(self._threads, self._post, spec.query)
            samples = read_samples(reply, self._settings.name)
            if violation := find_violation(samples, spec):
                progress.text = violation
                return None
            successes = before + 1
            progress.text = f"{describe(samples[0], spec)} in {successes} of {spec.successes} evaluations in a row."
            return GateAnswer.of(True, progress.text) if successes >= spec.successes else None

        return await repeat(evaluate, progress, spec.interval_seconds)

    def _post(self, query: str) -> HttpReply:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._settings.token_file:
            try:
                token = private_files.read(self._settings.token_file).decode("ascii", "replace").strip()
            except FlexError as error:
                raise GateUnavailableError(str(error)) from None
            headers["Authorization"] = f"Bearer {token}"
        body = urlencode({"query": query, "timeout": QUERY_TIMEOUT}).encode()
        return self._http.post(f"{self._settings.url.rstrip('/')}/api/v1/query", body, headers)


def read_samples(reply: HttpReply, name: str) -> list[Sample]:
    """Returns the values of a vector or scalar. Raises GateRefusedError for any other response."""
    document: Any = None
    with suppress(ValueError, RecursionError):
        document = json.loads(reply.body)
    if not isinstance(document, dict):
        document = {}
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
