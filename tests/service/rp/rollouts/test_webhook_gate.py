"""Tests of the webhook gate over real connections, with receivers that misbehave."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.rollout_settings import RolloutSettings
from aks_flex_rp.rollouts.gate_http import WebhookGateReceiver
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateProgress, GateRefusedError
from aks_flex_rp.rollouts.gate_runner import GateRunner
from tests.service.rp.notify.receivers import SECRET, write_secrets
from tests.service.rp.rollouts.gate_servers import DRIP, ENDLESS, HANG, GateReceiver, gate_receiver, says
from tests.unit.rp.rollouts.gate_builders import CLUSTER, run_of, webhook_gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.rollouts.gate_run import GateRun


@pytest.fixture
def receiver() -> Iterator[GateReceiver]:
    with gate_receiver() as receiver:
        yield receiver


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return write_secrets(tmp_path / "webhook-secret", SECRET)


def settings_of(url: str, secret_file: Path, ca_file: Path | None = None) -> RolloutSettings:
    entry: dict[str, Any] = {"name": "release", "url": url, "secretFile": secret_file}
    return RolloutSettings.model_validate({"webhooks": [entry | ({"caFile": ca_file} if ca_file else {})]})


def no_cluster(_: str) -> KubeClient:
    raise AssertionError("A webhook gate needs no cluster.")


def ask(url: str, secret_file: Path, run: GateRun | None = None) -> GateAnswer:
    """Runs the gate with short pauses and without a time limit."""
    [webhook] = settings_of(url, secret_file).webhooks
    with ThreadPoolExecutor(2) as threads:
        gate = WebhookGateReceiver(webhook, threads, pause=0.02)
        return asyncio.run(gate.run(run or run_of(webhook_gate()), GateProgress()))


def run_for(seconds: int, settings: RolloutSettings) -> tuple[GateAnswer, float]:
    """Runs the gate with a time limit; returns the answer and how long it took."""
    runner, began = GateRunner(settings, no_cluster), time.monotonic()
    run = run_of(webhook_gate(timeoutSeconds=seconds), started=time.time())

    async def timed() -> tuple[GateAnswer, float]:
        return await runner.run(run), time.monotonic() - began

    try:
        return asyncio.run(timed())
    finally:
        runner.stop()


def test_receiver_is_asked_until_it_passes_with_one_signed_id(receiver: GateReceiver, secret_file: Path) -> None:
    receiver.answers = [says("wait", "tests run"), (503, b""), says("wait"), says("pass", "all 12 tests")]
    run = run_of(webhook_gate(), "edge-1", "edge-2")
    assert ask(receiver.url, secret_file, run) == GateAnswer(
        True, "The receiver release passed the wave: all 12 tests"
    )
    assert len(receiver.received) == 4
    assert all(each.is_signed_with(SECRET) for each in receiver.received)
    assert {each.headers["webhook-id"] for each in receiver.received} == {f"gate_{run.id}"}
    assert receiver.received[0].event == {
        "cluster": CLUSTER,
        "pool": "edge",
        "rollout": "june",
        "wave": 2,
        "revision": 7,
        "gate": "ask",
        "nodes": ["edge-1", "edge-2"],
        "nodeCount": 2,
    }


def test_restarted_gate_sends_the_same_webhook_id(receiver: GateReceiver, secret_file: Path) -> None:
    for _ in range(2):
        ask(receiver.url, secret_file)
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 1


def test_names_of_a_large_wave_are_bounded_and_counted(receiver: GateReceiver, secret_file: Path) -> None:
    ask(receiver.url, secret_file, run_of(webhook_gate(), *(f"edge-{number}" for number in range(2500))))
    document = receiver.received[0].event
    assert (len(document["nodes"]), document["nodeCount"]) == (1000, 2500)


def test_failing_receiver_fails_the_gate_with_its_words(receiver: GateReceiver, secret_file: Path) -> None:
    receiver.answers = [says("fail", "3 tests\x1b[31m failed" + "!" * 5000)]
    answer = ask(receiver.url, secret_file)
    assert not answer.passed
    assert answer.message.startswith("The receiver release failed the wave: 3 tests [31m failed!!!")
    assert len(answer.message) <= 1000


@pytest.mark.parametrize(
    "answer",
    [
        (404, b""),
        (204, b""),
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (200, b'{"result": ["pass"]}'),
        (200, b'{"result": "passed"}'),
        (200, b'{"result": "pass", "message": 7}'),
        ENDLESS,
    ],
)
def test_unusable_answer_fails_the_gate_after_three_attempts(
    receiver: GateReceiver, secret_file: Path, answer: tuple[int, bytes]
) -> None:
    receiver.answers = [answer]
    with pytest.raises(GateRefusedError, match="receiver release"):
        ask(receiver.url, secret_file)
    assert len(receiver.received) == 3


def test_unusable_answers_of_a_restarting_receiver_do_no_harm(receiver: GateReceiver, secret_file: Path) -> None:
    receiver.answers = [(404, b""), (404, b""), says("wait"), (404, b""), (404, b""), says("pass")]
    assert ask(receiver.url, secret_file).passed


def test_redirect_is_not_followed(receiver: GateReceiver, secret_file: Path) -> None:
    """Otherwise a receiver could make the provider send signed requests to any server."""
    with gate_receiver() as other:
        receiver.answers, receiver.headers = [(307, b"")], {"Location": other.url}
        with pytest.raises(GateRefusedError, match="responded with 307"):
            ask(receiver.url, secret_file)
    assert other.received == []


@pytest.mark.parametrize("answer", [HANG, DRIP])
def test_hanging_receiver_fails_the_gate_at_its_time_limit(
    receiver: GateReceiver, secret_file: Path, answer: tuple[int, bytes]
) -> None:
    receiver.answers = [answer]
    found, seconds = run_for(1, settings_of(receiver.url, secret_file))
    assert found == GateAnswer(False, "The gate did not pass within 1 s. It did not answer.")
    assert seconds < 3


def test_waiting_receiver_fails_the_gate_with_its_message(receiver: GateReceiver, secret_file: Path) -> None:
    receiver.answers = [says("wait", "7 of 12 tests")]
    found, seconds = run_for(1, settings_of(receiver.url, secret_file))
    assert found.message == "The gate did not pass within 1 s. The receiver release asks to wait: 7 of 12 tests"
    assert seconds < 3


def test_receiver_with_foreign_certificate_gets_no_request(
    authority: CertificateAuthority, secret_file: Path
) -> None:
    with gate_receiver(authority.issue("gates", "gates", names=("localhost",))) as receiver:
        refused, _ = run_for(1, settings_of(receiver.url, secret_file))
        assert "certificate of the receiver release cannot be verified" in refused.message
        assert "secret-path" not in refused.message
        assert receiver.received == []
        assert run_for(5, settings_of(receiver.url, secret_file, authority.certificate))[0].passed


def test_exposed_secret_is_not_used(receiver: GateReceiver, secret_file: Path) -> None:
    settings = settings_of(receiver.url, secret_file)
    secret_file.chmod(0o644)
    with pytest.raises(ConfigError, match="contains a secret"):
        GateRunner(settings, no_cluster)
    assert receiver.received == []


def test_removed_receiver_fails_the_gate_of_a_running_roll_out() -> None:
    assert run_for(5, RolloutSettings())[0] == GateAnswer(
        False, "The settings of the service no longer have the receiver release."
    )
