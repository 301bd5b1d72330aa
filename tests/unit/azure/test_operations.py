"""Tests of long-running operations: URL, interval and result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from aks_flex_node.azure.arm import ArmClient, ArmReply, AzureCallError, refused_error
from aks_flex_node.azure.operations import (
    AzureOperation,
    OperationTimeout,
    started_operation,
    wait_for_operation,
)

STATUS, RESULT, THING = "https://azure.example/status", "https://azure.example/result", "/things/one"
DONE = {"id": THING, "properties": {"provisioningState": "Succeeded"}}


@dataclass
class Answers(ArmClient):
    """Predefined responses by URL, in order; the last one is repeated."""

    answers: dict[str, list[Any]]
    asked: list[str] = field(default_factory=list)

    def send(self, method: str, where: str, api_version: str = "", *_: Any, **__: Any) -> ArmReply:
        assert (method, api_version) in {("GET", ""), ("GET", "2024-05-01")}
        self.asked.append(where)
        left = self.answers[where]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, ArmReply) else ArmReply(200, answer)


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def patience(self, seconds: float = 3600.0) -> OperationTimeout:
        return OperationTimeout(seconds, self.sleep, lambda: self.time, lambda: self.time)


def operation(status: str = "", result: str = "") -> AzureOperation:
    return AzureOperation("a thing", THING, "2024-05-01", status, result, 1000.0)


def waited(azure: Answers, status: str = STATUS) -> Any:
    """Waits for an operation with this status URL; returns its result."""
    return wait_for_operation(azure, operation(status), Clock().patience(), print)


def test_operation_is_polled_by_status_url_and_returns_resource() -> None:
    clock, notes = Clock(), list[str]()
    azure = Answers(
        {
            STATUS: [ArmReply(200, {"status": "InProgress"}, {"retry-after": "7"}), {"status": "Succeeded"}],
            THING: [DONE],
        }
    )
    assert wait_for_operation(azure, operation(STATUS), clock.patience(), notes.append) == DONE
    assert clock.slept == [7.0]
    assert notes == ["waiting for Azure: a thing"]


def test_operation_with_result_url_returns_that_result() -> None:
    azure = Answers({RESULT: [ArmReply(202), ArmReply(200, "https://storage.example/x")]})
    assert (
        wait_for_operation(azure, operation(result=RESULT), Clock().patience(), print) == "https://storage.example/x"
    )


def test_operation_without_status_url_polls_provisioning_state() -> None:
    azure = Answers({THING: [{"properties": {"provisioningState": "Updating"}}, DONE]})
    assert waited(azure, "") == DONE


def test_operation_with_expired_status_url_polls_resource_instead() -> None:
    azure = Answers(
        {STATUS: [refused_error(404, "{}")], THING: [{"properties": {"provisioningState": "Updating"}}, DONE]}
    )
    assert waited(azure) == DONE


@pytest.mark.parametrize("state", ["Failed", "Canceled"])
def test_failed_operation_reports_azure_code_and_message(state: str) -> None:
    said = {"status": state, "error": {"code": "NoRoom", "message": "There is no room."}}
    with pytest.raises(AzureCallError, match=r"for a thing ended with .*NoRoom: There is no room\.") as caught:
        waited(Answers({STATUS: [said]}))
    assert (caught.value.name, caught.value.code, caught.value.retryable) == (
        "azure-operation-failed",
        "NoRoom",
        False,
    )


def test_operation_poll_retries_after_throttling_and_server_errors() -> None:
    azure = Answers(
        {STATUS: [refused_error(429, "{}"), refused_error(503, "{}"), {"status": "Succeeded"}], THING: [DONE]}
    )
    assert waited(azure) == DONE


def test_operation_poll_stops_at_permanent_error() -> None:
    with pytest.raises(AzureCallError) as caught:
        waited(Answers({STATUS: [refused_error(403, "{}")]}))
    assert caught.value.status == 403


def test_operation_wait_times_out_and_reports_minutes() -> None:
    clock, notes = Clock(), list[str]()
    with pytest.raises(AzureCallError) as caught:
        wait_for_operation(
            Answers({STATUS: [{"status": "InProgress"}]}), operation(STATUS), clock.patience(150), notes.append
        )
    assert (caught.value.name, caught.value.retryable) == ("azure-operation-timeout", True)
    assert notes == ["waiting for Azure: a thing", *(f"waiting for Azure: a thing, {n} min so far" for n in (1, 2))]


def test_operation_timeout_starts_when_waiting_starts() -> None:
    clock = Clock()
    clock.time += 10_000
    azure = Answers({STATUS: [{"status": "InProgress"}, {"status": "Succeeded"}], THING: [DONE]})
    assert wait_for_operation(azure, operation(STATUS), clock.patience(60), print) == DONE


@pytest.mark.parametrize(("asked", "pause"), [("7", 7.0), ("0", 0.2), ("999", 60.0), ("soon", 10.0)])
def test_retry_after_of_operation_is_bounded(asked: str, pause: float) -> None:
    assert ArmReply(200, headers={"retry-after": asked}).pause == pause


def test_started_operation_takes_urls_from_response_headers() -> None:
    reply = ArmReply(201, DONE, {"azure-asyncoperation": STATUS, "location": RESULT})
    assert started_operation(reply, "a thing", THING, "2024-05-01", 5.0) == AzureOperation(
        "a thing", THING, "2024-05-01", STATUS, RESULT, 5.0
    )


@pytest.mark.parametrize("jump", [-400 * 86400.0, 400 * 86400.0])
def test_wall_clock_jump_does_not_change_operation_timeout(jump: float) -> None:
    clock, notes = Clock(), list[str]()
    patience = OperationTimeout(
        60.0, clock.sleep, lambda: clock.time + jump * (clock.time > 1015), lambda: clock.time
    )
    azure = Answers({STATUS: [{"status": "InProgress"}]})
    with pytest.raises(AzureCallError, match="within 1 min"):
        wait_for_operation(azure, operation(STATUS), patience, notes.append)
    assert 60 < sum(clock.slept) < 90
    assert not any("-" in note for note in notes)
