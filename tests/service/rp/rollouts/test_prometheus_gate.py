"""Tests of the Prometheus gate with a real Prometheus, and with servers that misbehave."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.rollout_settings import RolloutSettings
from aks_flex_rp.rollouts.gate_runner import GateRunner
from tests.service.ports import free_port
from tests.service.rp.rollouts.gate_servers import gate_receiver, prometheus_server
from tests.service.rp.rollouts.test_webhook_gate import no_cluster
from tests.unit.rp.rollouts.gate_builders import prometheus_gate, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_rp.rollouts.gate_run import GateAnswer

ONE = b'{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "1"]}]}}'


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prometheus_server(tmp_path_factory.mktemp("prometheus")) as url:
        yield url


def run(url: str, seconds: int = 10, token_file: Path | None = None, **query: Any) -> GateAnswer:
    entry: dict[str, Any] = {"name": "main", "url": url} | ({"tokenFile": token_file} if token_file else {})
    runner = GateRunner(RolloutSettings.model_validate({"prometheus": [entry]}), no_cluster)
    gate = prometheus_gate({"timeoutSeconds": seconds}, **{"intervalSeconds": 1, "successes": 2, **query})
    try:
        return asyncio.run(runner.run(run_of(gate, started=time.time())))
    finally:
        runner.stop()


def test_satisfied_query_passes_after_its_successes(prometheus: str) -> None:
    began = time.monotonic()
    answer = run(prometheus, query='up{job="self"}', successes=3)
    assert answer.passed
    assert 'job="self"} = 1 == 1 in 3 of 3 evaluations in a row.' in answer.message
    assert time.monotonic() - began >= 2


def test_scalar_query_passes(prometheus: str) -> None:
    assert run(prometheus, query="scalar(vector(4))", comparison="<=", threshold=4.5).passed


def test_violated_query_fails_at_the_time_limit_with_its_value(prometheus: str) -> None:
    answer = run(prometheus, 2, query="vector(0.25)", comparison="<", threshold=0.1)
    assert not answer.passed
    assert answer.message == "The gate did not pass within 2 s. {} = 0.25 < 0.1 is not satisfied."


def test_flapping_query_does_not_pass_by_luck(prometheus: str) -> None:
    """The query is true for two seconds, then false for two; three evaluations in a row, one per second, see it."""
    assert not run(prometheus, 9, query="vector(time() % 4 < bool 2)", successes=3).passed


def test_invalid_query_fails_the_gate_with_the_error_of_prometheus(prometheus: str) -> None:
    answer = run(prometheus, 60, query="sum(")
    assert not answer.passed
    assert "The Prometheus server main did not evaluate the query: " in answer.message
    assert "parse error" in answer.message


def test_unreachable_server_fails_the_gate_at_the_time_limit() -> None:
    answer = run(f"http://127.0.0.1:{free_port()}", 2)
    assert answer.message.endswith("The Prometheus server main cannot be reached, or closed the connection.")


def test_server_that_was_away_starts_the_row_again() -> None:
    with gate_receiver() as server:
        server.answers = [(200, ONE), (503, b""), (200, ONE), (200, ONE)]
        assert run(server.url).passed
        assert len(server.received) == 4


def test_token_is_sent_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("canary-token\n")
    with gate_receiver() as server:
        server.answers = [(403, b'{"status": "error", "error": "forbidden"}')]
        answer = run(server.url, token_file=token)
    assert server.received[0].headers["authorization"] == "Bearer canary-token"
    assert "query: forbidden." in answer.message
    assert "canary" not in answer.message
