"""Attacks on roll-outs over HTTP: readers, hostile texts, nodes that lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.simulated_fleet import BETTER, SimulatedFleet, conditions
from tests.wait import until

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer


def order(api: Api, fleet: SimulatedFleet, what: str, name: str = "r1", body: Any = None) -> Answer:
    return api.pool("POST", fleet.pool, "rollouts", name, what, body=body or {})


def test_reversal_of_an_earlier_roll_out_is_refused(service: Running) -> None:
    """New nodes would start on a revision that all nodes have left."""
    fleet = SimulatedFleet(service)
    for name, template in (("r1", BETTER), ("r2", {**BETTER, "nodeConfig": {"maxPods": 70}})):
        fleet.write(template)
        fleet.start(name)
        fleet.work_until("Succeeded", name=name)
    fleet.rollout("POST", "r1", "reverse").assert_refused(409, "RolloutStateConflict")
    assert fleet.api.pool("GET", fleet.pool).properties["stableRevision"] == 3


def test_reader_cannot_order_in_other_letters(service: Running, tenant: Tenant) -> None:
    fleet = SimulatedFleet(service)
    reader = service.admin.by(tenant, callers.READER)
    assert [order(reader, fleet, what).status for what in ("PAUSE", "Abort")] == [403, 403]


def _deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return found


@pytest.mark.parametrize("levels", [100, 300, 900])
def test_deep_template_is_stored_or_refused(service: Running, levels: int) -> None:
    fleet = SimulatedFleet(service, size=1)
    template = {"spec": {"containers": [{"name": "a", "image": "b"}], "x": _deep(levels)}}
    made = fleet.start(gates=[{"name": "g", "job": {"namespace": "flex-gates", "template": template}}])
    assert made.status in {201, 400}, made.json


HOSTILE = {
    "nul": "\u0000",
    "right-to-left": "\u202e",
    "terminal": "\x1b[2J",
    "script": "<script>alert(1)</script>",
    "long": "a" * 70000,
}


@pytest.mark.parametrize("text", [*HOSTILE.values(), "\ud800"], ids=[*HOSTILE, "surrogate"])
def test_hostile_text_in_a_plan_is_stored_or_refused(service: Running, text: str) -> None:
    fleet = SimulatedFleet(service, size=1)
    fleet.write(BETTER)
    plans: tuple[dict[str, Any], ...] = (
        {"nodeSelector": {text: text[:60]}},
        {"canarySelector": {text: text[:60]}},
        {"failureDomain": {"label": text}},
        {"gates": [{"name": "g", "webhook": {"receiver": text}}]},
        {"gates": [{"name": text, "approval": {}}]},
        {"gates": [{"name": "g", "job": {"namespace": "n", "template": {"spec": {"containers": [text]}}}}]},
        {"waves": [text, "100%"]},
    )
    for number, properties in enumerate(plans):
        made = fleet.start(f"r{number}", replaceActive=True, **properties)
        assert made.status in {201, 400}, (properties, made.json)
        assert fleet.rollout("GET", "").status == 200


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_cause_of_a_node_stops_the_roll_out(service: Running, text: str) -> None:
    """What a node says is stored and shown. It must not prevent the roll-out from halting."""
    fleet = SimulatedFleet(service)
    fleet.write(BETTER)
    fleet.broken = lambda _name, _config: False
    fleet.stuck = {fleet.names[0]}
    fleet.start()

    def fails() -> bool:
        version = fleet.api.get(fleet.names[0]).properties["configVersion"]
        failed = [{**each, "message": text[:32768]} for each in conditions(failed="x")]
        answer = fleet.api.report(fleet.names[0], {"failedConfigVersion": version, "conditions": failed})
        assert answer.status == 200
        return bool(fleet.shown()["state"] in {"Reversing", "Reversed"})

    until(fails, "the roll-out reverses", 10)
    assert len(fleet.shown()["reason"]) < 1200
    listed = fleet.rollout("POST", "r1", "listNodes", body={}).json["value"]
    assert len(listed[0]["cause"]) <= 1000
