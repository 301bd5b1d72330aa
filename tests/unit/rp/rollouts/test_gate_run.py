"""Tests of one run of a gate: its ID, its time limit, and the repetition of evaluations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aks_flex_rp.rollouts.gate_http import HttpReply, find_violation, read_samples
from aks_flex_rp.rollouts.gate_run import (
    GateAnswer,
    GateProgress,
    GateRefusedError,
    GateUnavailableError,
    repeat,
)
from aks_flex_rp.rollouts.gate_specs import PrometheusGate
from tests.unit.rp.rollouts.gate_builders import NOW, prometheus_gate, run_of, webhook_gate

RUN = run_of(webhook_gate(timeoutSeconds=60))


def test_run_keeps_its_id_after_a_restart_and_has_it_alone() -> None:
    assert run_of(webhook_gate(timeoutSeconds=60)).id == RUN.id
    others = (replace(RUN, rollout="july"), replace(RUN, wave=3), replace(RUN, started=NOW + 1))
    assert len({RUN.id, *(each.id for each in others)}) == 4


@pytest.mark.parametrize(("now", "left"), [(0, 60), (50, 10), (60, 0), (7200, 0), (-3600, 60)])
def test_clock_jump_never_extends_the_time_limit(now: float, left: float) -> None:
    assert RUN.seconds_left(NOW + now) == left


def test_answer_is_bounded_and_has_no_control_characters() -> None:
    answer = GateAnswer.of(False, "red\x1b[31m\x00\u202e" + "x" * 5000)
    assert len(answer.message) == 1000
    assert answer.message.startswith("red [31m  xxx")


async def test_gate_fails_after_three_refusals_in_a_row_only() -> None:
    steps = [GateRefusedError("1"), GateRefusedError("2"), None, GateRefusedError("3"), GateUnavailableError("away")]
    left = iter([*steps, GateRefusedError("4"), GateRefusedError("5"), AssertionError("not asked again")])

    async def evaluate() -> bool | None:
        step = next(left)
        if step:
            raise step
        return None

    with pytest.raises(GateRefusedError, match="5"):
        await repeat(evaluate, GateProgress(), 0)


SPEC = PrometheusGate.model_validate(prometheus_gate()["prometheus"])


def vector(*values: str) -> HttpReply:
    samples = ",".join(f'{{"metric": {{"__name__": "up", "node": "n"}}, "value": [1, "{each}"]}}' for each in values)
    return HttpReply(
        200, f'{{"status": "success", "data": {{"resultType": "vector", "result": [{samples}]}}}}'.encode()
    )


@pytest.mark.parametrize(
    ("comparison", "values", "passes"),
    [
        ("==", ["1", "1"], True),
        ("==", ["1", "2"], False),
        ("<", ["0.5"], True),
        ("<=", ["1"], True),
        (">", ["+Inf"], True),
        (">=", ["0.9"], False),
        ("!=", ["2"], True),
        ("!=", ["NaN"], False),
        ("==", [], False),
    ],
)
def test_every_sample_must_satisfy_the_comparison(comparison: str, values: list[str], passes: bool) -> None:
    spec = SPEC.model_copy(update={"comparison": comparison})
    assert (find_violation(read_samples(vector(*values), "main"), spec) == "") is passes


def test_violation_names_the_series_and_empty_result() -> None:
    assert find_violation(read_samples(vector("1", "0"), "main"), SPEC) == 'up{node="n"} = 0 == 1 is not satisfied.'
    assert "no result, which is not a success" in find_violation([], SPEC)


def test_scalar_result_is_read() -> None:
    body = b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "4"]}}'
    assert read_samples(HttpReply(200, body), "main") == [("", 4.0)]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (200, b"[]"),
        (200, b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": [7]}}'),
        (200, b'{"status": "success", "data": []}'),
        (400, b'{"status": "error", "error": "parse error"}'),
        (302, b""),
    ],
)
def test_other_responses_of_prometheus_are_refused(status: int, body: bytes) -> None:
    with pytest.raises(GateRefusedError, match="main"):
        read_samples(HttpReply(status, body), "main")
