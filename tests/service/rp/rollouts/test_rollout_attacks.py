"""Attacks on roll-outs on both stores: nodes that lie, hostile edits and orders, and database administrators."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.rollouts import commands
from aks_flex_rp.store import pools
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.simulated_fleet import BAD, BETTER, GOOD, conditions
from tests.service.rp.rollouts.rollout_world import PERSON, Fleet, job_gate

# Nodes


async def test_one_node_counts_as_one_failure(fleet: Fleet) -> None:
    """A node that says again and again that it failed and is well must not exceed the limit alone."""

    liar = fleet.names[0]
    await fleet.start(maxFailures=1, soakSeconds=600)
    await fleet.run("Soaking")
    for _ in range(5):
        for liars in ({liar}, set()):
            fleet.unready = liars
            await fleet.work()
            await fleet.replica.step()
    assert (await fleet.shown())["failures"] == 1
    assert (await fleet.stored()).phase == "Soaking"
    assert (await fleet.causes())[liar] == "It stopped being Ready after its update."


EXTREMES: dict[str, dict[str, Any]] = {
    "earliest": {"lastTransitionTime": "0001-01-01T00:00:00+14:00"},
    "latest": {"lastTransitionTime": "9999-12-31T23:59:59-14:00"},
    "no reason": {"message": " ", "reason": ""},
}


@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)
async def test_extreme_report_does_not_stop_other_roll_outs(fleet: Fleet, extreme: dict[str, Any]) -> None:
    other = await fleet.neighbour()
    await fleet.start()
    await other.start()
    node = await fleet.node(fleet.names[0])
    said = [{**each, **extreme} for each in conditions(failed="x")]
    status = {"failedConfigVersion": str(node.version), "conditions": said, "stagedPoolRevision": 2**31 - 1}
    await fleet.store.report(PLANT.key, node.key, status, 1.0)
    await other.run("Succeeded")


GARBAGE: dict[str, Any] = {
    "staged": {"stagedPoolRevision": "many"},
    "condition": {"conditions": [{}]},
    "conditions": {"conditions": 7},
}


@pytest.mark.parametrize("status", GARBAGE.values(), ids=GARBAGE)
async def test_damaged_status_of_a_node_stops_only_its_roll_out(fleet: Fleet, status: dict[str, Any]) -> None:
    """The status of nodes is not authenticated: a database administrator can write anything."""

    other = await fleet.neighbour()
    await fleet.start()
    await other.start()
    await fleet.replica.step()
    rollout, name = await fleet.stored(), fleet.names[-1]
    await fleet.execute("UPDATE nodes SET status = $1 WHERE key = $2", json.dumps(status), name)
    signal = "INSERT INTO rollout_signals (cluster, pool, rollout, node, override) VALUES ($1, $2, $3, $4, '')"
    await fleet.execute(signal, PLANT.key, fleet.pool, rollout.number, name)
    await other.run("Succeeded")


# Edits


async def test_many_edits_do_not_remove_the_source_revision(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool keeps its newest revisions. Those of an open roll-out, and the stable one, are kept as well."""
    monkeypatch.setattr(pools, "MAX_REVISIONS", 3)

    await fleet.start(waves=["100%"], gates=[{"name": "go", "approval": {}}])
    await fleet.run("Gates")
    assert await fleet.is_all_on(2)
    for number in range(6):
        await fleet.write({**GOOD, "nodeConfig": {"maxPods": 100 + number}})
    await fleet.add(f"{fleet.pool}-new")
    assert (await fleet.node(f"{fleet.pool}-new")).pool.revision == 1  # type: ignore[union-attr]
    await fleet.order("reverse")
    await fleet.run("Reversed")
    assert await fleet.is_all_on(1)


async def test_many_edits_do_not_remove_what_is_rolled_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_REVISIONS", 3)

    await fleet.start()
    for number in range(6):
        await fleet.write({**GOOD, "nodeConfig": {"maxPods": 100 + number}})
    await fleet.run("Succeeded")
    assert await fleet.is_all_on(2)


async def test_pool_made_again_during_a_roll_out_knows_nothing_of_it(fleet: Fleet) -> None:
    fleet.breaks(*fleet.names)
    await fleet.start(template=BAD)
    await fleet.run("Reversed")
    await fleet.write(BETTER)
    fleet.breaks()
    await fleet.start("r2", BETTER)
    await fleet.replica.step()
    await fleet.delete_with_pool()
    fleet.replica.clocks.advance(5)
    await fleet.create(BAD)
    await fleet.replica.step()
    await fleet.replica.step()
    assert await fleet.is_all_on(1)
    assert await fleet.store.active_rollout(PLANT.key, fleet.pool) is None
    await fleet.start("r2", BETTER)
    await fleet.run("Succeeded", name="r2")


async def test_node_made_again_is_not_taken_for_the_earlier_one(fleet: Fleet) -> None:
    name = fleet.names[0]
    fleet.stuck = {name}
    await fleet.start()
    await fleet.replica.step()
    await fleet.delete(name)
    await fleet.add(name)
    fleet.stuck = set()
    await fleet.run("Succeeded")
    assert await fleet.revisions() == {each: 1 if each == name else 2 for each in fleet.names}
    assert (await fleet.causes())[name] == "It was made again, or given revision 1 by a person."


# Orders


async def test_two_orders_at_once_leave_one_active_roll_out(fleet: Fleet) -> None:
    await fleet.start()
    await fleet.run("Succeeded")
    await fleet.write(BAD)
    body = {"properties": {"waves": ["100%"], "stageTimeoutSeconds": 0}}
    orders = [
        fleet.replica.rollouts.create(fleet.cluster, fleet.pool, f"x{number}", body, PERSON) for number in range(4)
    ]
    answers = await asyncio.gather(fleet.order("reverse"), *orders, return_exceptions=True)
    assert all(not isinstance(each, Exception) or isinstance(each, ArmError) for each in answers), answers
    found = await fleet.store.rollouts(PLANT.key, fleet.pool)
    assert sum(each.active for each in found) == 1


async def test_roll_outs_of_the_same_instant_do_not_share_a_gate(fleet: Fleet) -> None:
    """The number of a roll-out is a time. Another pool's gate of the same name must not answer for this one."""

    other, gates = await fleet.neighbour(), fleet.replica.gates
    gate = [job_gate("job", 3600)]
    numbers = [(await each.start(waves=["100%"], gates=gate)).number for each in (fleet, other)]
    assert numbers[0] == numbers[1]
    for _ in range(20):
        await fleet.steps(1)
        await other.work()
    assert {each.pool for each in gates.runs} == {fleet.pool, other.pool}
    assert len(gates.runs) == 2


async def test_orders_that_no_replica_takes_are_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "ORDER_SECONDS", 0.0)

    await fleet.start()
    for _ in range(commands.MAX_ORDERS):
        await fleet.order("pause")
    with pytest.raises(ArmError, match="Another request is changing"):
        await fleet.order("pause")


# Database administrators


async def test_foreign_node_row_stops_the_roll_out(fleet: Fleet) -> None:
    """The row of a node of another roll-out, with another source, must not decide what a node gets."""

    await fleet.start()
    await fleet.run("Succeeded")
    first = (await fleet.stored()).number
    await fleet.start("r2", {**BETTER, "nodeConfig": {"maxPods": 70}})
    await fleet.execute(
        "UPDATE rollout_nodes SET source = 1, code = (SELECT o.code FROM rollout_nodes o WHERE o.rollout = $1"
        " AND o.node = rollout_nodes.node) WHERE rollout <> $1",
        first,
    )
    await fleet.idle()
    assert await fleet.is_all_on(2)


async def test_deleted_canary_does_not_start_the_next_wave(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """A wave without nodes has nothing to wait for, so the next one would start without evidence."""

    fleet.stuck = set(fleet.names)
    await fleet.start()
    await fleet.replica.step()
    await fleet.execute("DELETE FROM rollout_nodes WHERE pool = $1 AND wave = 0", fleet.pool)
    fleet.provider_is_away(60)
    await fleet.idle()
    assert await fleet.given() == [(fleet.names[0], 2)]
    assert "the rows of 1 of its nodes were deleted" in caplog.text


async def test_lease_of_another_age_does_not_stop_roll_outs(fleet: Fleet) -> None:
    await fleet.start()
    await fleet.execute("INSERT INTO leases (name, holder, until) VALUES ($1, $2, $3)", "rollouts", "x", 1e18)
    await fleet.run("Succeeded")


async def test_earlier_version_of_a_roll_out_is_refused(fleet: Fleet) -> None:
    """A copy from before an abort would start the roll-out again."""

    store: Any = fleet.store
    fleet.stuck = set(fleet.names)
    await fleet.start()
    await fleet.replica.step()
    read = "SELECT phase, active, open, content, version, code FROM rollouts WHERE pool = $1"
    row = (await store._read(read, fleet.pool))[0]
    await fleet.order("abort")
    text = (
        "UPDATE rollouts SET phase = $1, active = $2, open = $3, content = $4, version = $5, code = $6"
        " WHERE pool = $7"
    )
    await fleet.execute(text, *row, fleet.pool)
    before = await fleet.revisions()
    await fleet.idle()
    assert await fleet.revisions() == before
