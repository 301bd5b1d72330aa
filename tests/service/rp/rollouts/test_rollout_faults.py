"""Faults during roll-outs on both stores: what happens, what people see, and that no node is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.rollouts.gate_run import GateAnswer
from tests.service.rp.api.simulated_fleet import BETTER
from tests.service.rp.rollouts.rollout_world import job_gate

if TYPE_CHECKING:
    from tests.service.rp.rollouts.rollout_world import Fleet

DAY = 86400.0


# Nodes


async def test_node_that_goes_silent_in_the_soak_comes_back_later(fleet: Fleet) -> None:
    first = fleet.names[0]
    await fleet.start(soakSeconds=600)
    await fleet.run("Soaking")
    await fleet.note_silence(first)
    found = await fleet.run("Reversed")
    assert found.state["reason"] == f"{first}: It stopped reporting after its update."
    assert found.open
    assert (await fleet.revisions())[first] == 2  # it cannot be asked yet
    assert (await fleet.shown())["waveProgress"][0]["offline"] == 1
    await fleet.note_silence()
    await fleet.steps(5)
    assert (await fleet.states())[first] == "Reversed"
    assert await fleet.is_all_on(1)
    assert not (await fleet.stored()).open


async def test_node_offline_for_a_whole_roll_out_gets_the_newest(fleet: Fleet) -> None:
    last = fleet.names[3]
    await fleet.note_silence(last)
    await fleet.start()
    await fleet.run("Succeeded")
    assert (await fleet.states())[last] == "Pending"
    await fleet.start("r2", {**BETTER, "nodeConfig": {"maxPods": 70}})
    await fleet.run("Succeeded", name="r2")
    await fleet.note_silence()
    await fleet.steps(5)
    assert await fleet.is_all_on(3)
    assert await fleet.given("r1") == [(name, 2) for name in fleet.names[:3]]  # never the older one
    assert (await fleet.states("r2"))[last] == "Updated"


# The service was away


@pytest.mark.parametrize("when", ["update", "soak"])
async def test_nodes_do_not_fail_because_the_provider_was_away(fleet: Fleet, when: str) -> None:
    """They could not report. They get the time for it after the return."""

    await fleet.start(soakSeconds=60, nodeTimeoutSeconds=600)
    if when == "update":
        await fleet.replica.step()
        assert await fleet.given() == [(fleet.names[0], 2)]
    else:
        await fleet.run("Soaking")
    fleet.provider_is_away(DAY)
    await fleet.replica.step()
    assert (await fleet.shown())["failures"] == 0
    found = await fleet.run("Succeeded", seconds=30)
    assert found.state["failures"] == 0


async def test_node_that_never_reports_after_the_return_fails(fleet: Fleet) -> None:
    await fleet.start(nodeTimeoutSeconds=600)
    await fleet.replica.step()
    fleet.stuck = set(fleet.names)
    fleet.provider_is_away(DAY)
    found = await fleet.run("Reversing", "Reversed", seconds=10)
    assert found.state["reason"] == f"{fleet.names[0]}: It was not done after 600 s."


async def test_gate_does_not_fail_because_the_provider_was_away(fleet: Fleet) -> None:
    gate = job_gate("job", 60)
    await fleet.start(waves=["100%"], gates=[gate])
    await fleet.run("Gates")
    fleet.provider_is_away(DAY)
    fleet.replica.gates.answers["job"] = GateAnswer(True, "All Jobs succeeded.")  # its Jobs ended meanwhile
    await fleet.run("Succeeded")
    assert len({each.id for each in fleet.replica.gates.runs}) == 1  # the same run, continued


async def test_what_happened_while_no_replica_ran_is_taken_in(fleet: Fleet) -> None:
    fleet.breaks(fleet.names[0])
    await fleet.start(onFailure="halt")
    await fleet.replica.step()
    fleet.replica.restart()
    await fleet.work()  # a failure, with nobody to take it in
    assert (await fleet.shown())["state"] == "Running"
    fleet.replica.clocks.advance(20)
    found = await fleet.run("Halted", rounds=1)
    assert found.state["reason"] == f"{fleet.names[0]}: containerd does not start."
    assert await fleet.given() == [(fleet.names[0], 2)]


async def test_failure_while_away_stops_what_was_decided_before(fleet: Fleet) -> None:
    """The process ended between the decision and giving the revision, and another node has failed meanwhile."""

    first, second = fleet.names[:2]
    fleet.breaks(first)
    await fleet.start(onFailure="halt", waves=["2", "100%"])
    put_node: Any = fleet.store.put_node

    async def fail_second(node: Any, *values: Any, **named: Any) -> None:
        if node.key == second:
            raise asyncio.CancelledError
        await put_node(node, *values, **named)

    fleet.store.put_node = fail_second  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await fleet.replica.step()
    fleet.store.put_node = put_node  # type: ignore[method-assign]
    while (await fleet.revisions())[first] == 1:  # its write is not interrupted
        await asyncio.sleep(0.01)
    assert await fleet.states() == dict(zip(fleet.names, ["Updating", "Updating", "Pending", "Pending"], strict=True))
    await fleet.work()
    fleet.provider_is_away(20)
    await fleet.run("Halted", rounds=2)
    await fleet.steps(3)
    assert await fleet.given() == [(first, 2)]
    assert (await fleet.states())[second] == "Pending"
    assert not (await fleet.stored()).open


# Clocks


@pytest.mark.parametrize("jump", [-DAY, DAY])
async def test_clock_jump_neither_skips_nor_extends_a_wait(fleet: Fleet, jump: float) -> None:
    await fleet.start(soakSeconds=60, nodeTimeoutSeconds=600, stageTimeoutSeconds=600)
    fleet.stuck = set(fleet.names)
    await fleet.replica.step()
    fleet.replica.clocks.wall += jump
    await fleet.replica.step()
    fleet.stuck.clear()
    assert (await fleet.shown())["failures"] == 0
    await fleet.run("Soaking")
    began = fleet.replica.clocks.steady
    fleet.replica.clocks.wall -= jump
    await fleet.replica.step()
    assert (await fleet.shown())["state"] == "Soaking"  # not skipped
    for _ in range(40):
        await fleet.replica.step(5)
        await fleet.work()
        if (await fleet.shown())["wave"] == 2:
            break
    assert 60 <= fleet.replica.clocks.steady - began <= 80
    await fleet.run("Succeeded", seconds=10, rounds=100)


async def test_clock_jump_back_does_not_hold_up_downloads(fleet: Fleet) -> None:
    """A node that cannot download begins without it, after the same time."""

    await fleet.start(stageTimeoutSeconds=120, waves=["100%"])
    await fleet.replica.step()
    assert (await fleet.shown())["waitsFor"][0] == f"{fleet.names[0]}: its downloads"
    await fleet.replica.step()
    await fleet.replica.step()
    fleet.replica.clocks.wall -= DAY
    for _ in range(15):
        await fleet.replica.step(9)
    assert sorted(await fleet.given()) == [(name, 2) for name in fleet.names]


# Gates


async def test_abort_ends_the_gate_that_runs_and_removes_its_jobs(fleet: Fleet) -> None:
    gates = fleet.replica.gates
    await fleet.start(gates=[job_gate("load", 3600)])
    await fleet.run("Gates")
    while not gates.runs:
        await fleet.replica.step()
    await fleet.order("abort")
    await fleet.idle(3)
    assert [each.id for each in gates.cleaned] == [gates.runs[0].id]
    [shown] = (await fleet.shown())["gateResults"]
    assert (shown["state"], shown["message"]) == ("Failed", "The roll-out ended before it answered.")


async def test_gate_that_flaps_between_waves_stops_the_next(fleet: Fleet) -> None:
    gates = fleet.replica.gates
    gates.answers["load"] = GateAnswer(True, "Good.")
    await fleet.start(gates=[job_gate("load", 60)])
    while len(gates.runs) < 1:
        await fleet.replica.step()
        await fleet.work()
    gates.answers["load"] = GateAnswer(False, "Errors: 12 %.")
    found = await fleet.run("Reversed")
    assert found.state["reason"].endswith("failed: Errors: 12 %.")
    results = [(each["wave"], each["state"]) for each in (await fleet.shown())["gateResults"]]
    assert results[-1][1] == "Failed"
    assert await fleet.is_all_on(1)
    assert fleet.names[3] not in {name for name, _ in await fleet.given()}
