"""Tests of following a roll-out until it ends, with recorded answers of the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.api.rollout_summary import INTERVAL_SECONDS, MAX_SILENCE_SECONDS
from aks_flex_rp.api_client import RequestRefused, Resource, ServiceUnreachable, follow_rollout
from aks_flex_rp.arm.ids import ClusterId

if TYPE_CHECKING:
    Document = dict[str, Any]

PLANT = ClusterId("12345678-1234-1234-1234-123456789abc", "edge", "plant")
DOWN = ServiceUnreachable("service-unreachable", "It does not respond.", retryable=True)
GONE = RequestRefused(404, {"code": "RolloutNotFound"}, "")


@dataclass
class Answers:
    """A service with one answer for each request."""

    answers: list[Document | Exception]
    requests: list[tuple[str, str, Document | None]] = field(default_factory=list)

    def request(
        self, method: str, path: str, query: dict[str, str] | None = None, body: Document | None = None
    ) -> Document:
        assert query is None
        self.requests.append((method, path.removeprefix(f"{PLANT}"), None if body is None else dict(body)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def rollout(state: str, **properties: Any) -> Document:
    wave = {"wave": 1, "nodes": 2, "updated": 1, "updating": 1}
    return {"name": "may", "properties": {"state": state, "wave": 1, "waveProgress": [wave], **properties}}


def may(service: Answers) -> Resource:
    return Resource(cast("Any", service), PLANT.pool("pumps")).at("rollouts", "may")


def follow(*answers: Document | Exception) -> tuple[Document, list[str], list[float]]:
    lines: list[str] = []
    sleeps: list[float] = []
    followed = may(Answers([*answers]))
    return follow_rollout(followed, rollout("Running"), lines.append, sleeps.append), lines, sleeps


def test_each_change_is_printed_once_until_the_end() -> None:
    ended, lines, sleeps = follow(
        rollout("Running"),
        rollout("Soaking"),
        rollout("Soaking"),
        rollout("Soaking", paused=True),
        rollout("Succeeded"),
    )

    assert ended["properties"]["state"] == "Succeeded"
    assert [line.partition(";")[0] for line in lines] == ["Running", "Soaking", "Soaking (paused)", "Succeeded"]
    assert sleeps == [INTERVAL_SECONDS] * 5


def test_service_that_restarts_is_asked_again() -> None:
    busy = RequestRefused(503, {"code": "ServiceUnavailable"}, "")

    ended, lines, _ = follow(DOWN, DOWN, busy, rollout("Halted"))

    assert ended["properties"]["state"] == "Halted"
    assert len(lines) == 2


def test_following_ends_if_the_service_stays_away() -> None:
    with pytest.raises(ServiceUnreachable):
        follow(*[DOWN] * int(MAX_SILENCE_SECONDS / INTERVAL_SECONDS + 1))


def test_following_ends_if_the_rollout_was_deleted() -> None:
    with pytest.raises(RequestRefused):
        follow(GONE)


def test_nodes_are_read_page_by_page_with_the_same_filter() -> None:
    service = Answers([{"value": [{"name": "a"}], "after": "1/a"}, {"value": [{"name": "b"}]}])

    found = list(may(service).entries("listNodes", state="Failed", wave=1))

    assert [each["name"] for each in found] == ["a", "b"]
    path = "/flexNodePools/pumps/rollouts/may/listNodes"
    assert service.requests == [
        ("POST", path, {"state": "Failed", "wave": 1}),
        ("POST", path, {"state": "Failed", "wave": 1, "after": "1/a"}),
    ]


def test_names_cannot_change_the_path() -> None:
    service = Answers([{}])

    may(service).at("a/../b", "may?x=y").act("pause")

    assert service.requests[0][1].endswith("/may/a%2F..%2Fb/may%3Fx%3Dy/pause")
