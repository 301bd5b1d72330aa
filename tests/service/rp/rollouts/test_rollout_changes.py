"""People and the database change things during roll-outs, on both stores: what happens, and what people see."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.nodes.pool_apply import PoolStage
from aks_flex_rp.store.model import Conflict, RecordRefused
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.simulated_fleet import BAD, BETTER, GOOD
from tests.service.rp.rollouts.rollout_world import PERSON, Fleet

# People


async def test_pool_edited_and_node_moved_during_a_roll_out(fleet: Fleet) -> None:
    await fleet.start()
    await fleet.replica.step()
    assert await fleet.write({**BETTER, "nodeConfig": {"maxPods": 70}}) == 3  # it goes on with revision 2
    other = Fleet(fleet.replica, f"{fleet.pool}x", size=0)
    await other.create(GOOD)
    await fleet.put(fleet.names[3], override=True, poolName=other.pool)
    await fleet.run("Succeeded")
    assert (await fleet.states())[fleet.names[3]] == "Gone"
    assert (await fleet.causes())[fleet.names[3]] in {
        f"It is in the pool {other.pool} now.",
        "It was taken out by somebody@example.com.",
    }
    assert list((await fleet.revisions()).values()) == [2, 2, 2, 1]


async def test_node_that_leaves_between_decision_and_writing_is_no_failure(fleet: Fleet) -> None:
    first, second = fleet.names[:2]
    await fleet.start(waves=["100%"])
    put_rollout: Any = fleet.store.put_rollout

    async def decide(*values: Any, **named: Any) -> Any:
        stored = await put_rollout(*values, **named)
        fleet.store.put_rollout = put_rollout  # type: ignore[method-assign]
        await fleet.delete(first, override=True)
        await fleet.put(second, override=True, continuousMonitoring=True)
        return stored

    fleet.store.put_rollout = decide  # type: ignore[method-assign]
    await fleet.replica.step()
    fleet.silent = {first, second}
    found = await fleet.run("Succeeded")
    assert found.state["failures"] == 0
    causes = await fleet.causes()
    assert (causes[first], causes[second]) == ("It was deleted.", "It is in no pool now.")
    assert sorted(await fleet.given()) == [(name, 2) for name in fleet.names[2:]]


async def test_pool_deleted_during_a_roll_out_ends_it(fleet: Fleet) -> None:
    other = await fleet.neighbour()
    fleet.stuck = set(fleet.names)
    await fleet.start()
    fleet.replica.clocks.advance(1)
    await other.start()
    await fleet.replica.step()
    await fleet.delete_with_pool()
    await other.run("Succeeded")
    assert (await fleet.stored()).phase == "None"
    assert await fleet.store.rollout_signals(10) == ()


async def test_abort_during_a_reversal_begins_nothing_more(fleet: Fleet) -> None:
    fleet.breaks(fleet.names[2])
    await fleet.start(maxUnavailable="1", waves=["2", "100%"])
    await fleet.run("Reversing")
    before = await fleet.given()
    aborted = await fleet.order("abort")
    assert (aborted.phase, aborted.state["reason"]) == ("Aborted", "Aborted by somebody@example.com.")
    await fleet.steps(5)
    assert await fleet.given() == before
    assert (await fleet.revisions())[fleet.names[1]] == 2
    assert not (await fleet.stored()).open
    assert [each.revision for each in (await fleet.versions()).barred] == [2]
    fleet.breaks()  # and nobody is lost: a roll-out back to revision 1
    await fleet.start("back", BETTER, revision=1)
    await fleet.run("Succeeded", name="back")
    assert await fleet.is_all_on(1)


async def test_bar_that_a_person_lifts_during_a_reversal_stays_lifted(fleet: Fleet) -> None:
    fleet.breaks(fleet.names[0])
    await fleet.start()
    await fleet.run("Reversing")
    await fleet.replica.rollouts.allow_revision(fleet.cluster, fleet.pool, 2, PERSON)
    await fleet.run("Reversed")
    assert (await fleet.versions()).barred == ()
    assert len(await fleet.events("revision.barred")) == 1


async def test_order_given_while_no_replica_runs_is_carried_out(fleet: Fleet) -> None:
    fleet.stuck = set(fleet.names)
    await fleet.start()
    await fleet.replica.step()
    fleet.replica.restart()

    async def do_not_step(_seconds: float) -> None:
        raise ArmError(503, "Away", "The test has no replica that steps.")

    object.__setattr__(fleet.replica.rollouts, "sleep", do_not_step)
    with pytest.raises(ArmError):
        await fleet.order("abort")
    assert (await fleet.shown())["state"] == "Running"
    fleet.replica.clocks.advance(20)
    await fleet.replica.step()
    assert (await fleet.shown())["reason"] == "Aborted by somebody@example.com."


# The database


CHANGES = {
    "rollout": "UPDATE rollouts SET content = content || ' ' WHERE pool = $1",
    "phase": "UPDATE rollouts SET phase = 'Succeeded' WHERE pool = $1",
    "node": "UPDATE rollout_nodes SET state = 'Updated' WHERE pool = $1",
    "source": "UPDATE rollout_nodes SET source = 7 WHERE pool = $1 AND wave = 0",
}


@pytest.mark.parametrize("what", CHANGES)
async def test_roll_out_whose_record_was_changed_by_hand_stops(
    fleet: Fleet, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = await fleet.neighbour()
    fleet.stuck = set(fleet.names)
    await fleet.start(template=BAD)
    fleet.replica.clocks.advance(1)
    await other.start()
    await fleet.replica.step()
    given = await fleet.given()
    await fleet.execute(CHANGES[what], fleet.pool)
    fleet.provider_is_away(20)
    fleet.stuck.clear()
    await other.run("Succeeded")  # others go on
    with suppress(RecordRefused):
        await fleet.work()
    await fleet.idle()
    assert await fleet.given() == given
    assert [each for each in await fleet.store.audit(limit=100) if each.what.value == "record.refused"]
    told = [each for each in caplog.records if f"of the pool {fleet.pool} is not stepped" in each.getMessage()]
    assert len(told) == 1  # not at every step
    if what in {"rollout", "phase"}:
        with pytest.raises(RecordRefused):
            await fleet.stored()


@pytest.mark.parametrize("database", [None])  # PostgreSQL takes nothing but numbers
async def test_version_that_is_no_number_stops_one_roll_out_alone(fleet: Fleet) -> None:
    other = await fleet.neighbour()
    fleet.stuck = set(fleet.names)
    await fleet.start()
    fleet.replica.clocks.advance(1)
    await other.start()
    await fleet.replica.step()
    await fleet.execute("UPDATE rollouts SET version = 'x' WHERE pool = $1", fleet.pool)
    await other.run("Succeeded")


async def test_override_is_kept_if_the_decision_about_it_is_not_stored(fleet: Fleet) -> None:
    fleet.stuck = set(fleet.names)
    await fleet.start()
    await fleet.replica.step()
    last = fleet.names[3]
    await fleet.put(last, override=True, poolName=fleet.pool, nodeConfig={"maxPods": 99})
    put_rollout: Any = fleet.store.put_rollout

    async def be_late(*_values: Any, **_named: Any) -> Any:
        raise Conflict("Another writer was faster.")

    fleet.store.put_rollout = be_late  # type: ignore[method-assign]
    await fleet.replica.step()
    fleet.store.put_rollout = put_rollout  # type: ignore[method-assign]
    await fleet.replica.step()
    assert (await fleet.causes())[last] == "It was taken out by somebody@example.com."


async def test_end_of_a_roll_out_keeps_what_the_next_one_has_downloaded(fleet: Fleet) -> None:
    await fleet.start(stageTimeoutSeconds=600)
    await fleet.replica.step()
    stage = PoolStage(fleet.replica.context, fleet.cluster, fleet.pool, PERSON)

    async def next_revision() -> int:
        pool = (await fleet.node(fleet.names[0])).pool
        return pool.next.revision if pool and pool.next else 0

    assert await next_revision() == 2
    await stage.unstage(fleet.names[0], 1)  # late, of an earlier roll-out
    assert await next_revision() == 2
    await stage.unstage(fleet.names[0], 2)
    assert await next_revision() == 0


async def test_two_roll_outs_of_the_same_moment_are_not_mixed(fleet: Fleet) -> None:
    made = await fleet.start()
    nodes = await fleet.store.rollout_nodes(made)
    await fleet.order("abort")
    with pytest.raises(Conflict):
        await fleet.store.create_rollout(replace(made, key="r2"), nodes)
    assert await fleet.store.rollout(PLANT.key, fleet.pool, "r2") is None


async def test_roll_out_that_cannot_be_read_is_logged_once_and_tried_later(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await fleet.start()
    nodes: Any = fleet.store.rollout_nodes

    async def fail(_rollout: Any) -> Any:
        raise ValueError("not a node")

    fleet.store.rollout_nodes = fail  # type: ignore[assignment]
    await fleet.idle(3)
    assert [each.getMessage() for each in caplog.records if each.exc_info] == [
        f"The roll-out r1 of the pool {fleet.pool} cannot be read. It is tried again."
    ]
    fleet.store.rollout_nodes = nodes  # type: ignore[method-assign]
    fleet.replica.clocks.advance(60)
    await fleet.run("Succeeded")
