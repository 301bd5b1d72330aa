"""Tests of `aks-flex-rp rollout …` with a real service and simulated nodes, and of the remedies of its errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.remedies.catalogue import command
from tests.service.rp.api.service_harness import PLENTY, settings
from tests.service.rp.api.simulated_fleet import BAD, BETTER, SimulatedFleet
from tests.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_rp.settings import ServiceSettings
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.cli.cli_harness import Person

ON_PLANT = ("--cluster", "plant")
QUICK = ("--soak", "0", "--stage-timeout", "0s", "--max-unavailable", "100%")


@pytest.fixture
def made(tmp_path: Path) -> ServiceSettings:
    return settings(tmp_path / "state", limits=PLENTY)


@pytest.fixture
def fleet(service: Running) -> SimulatedFleet:
    return SimulatedFleet(service)


def pool_of(fleet: SimulatedFleet) -> tuple[str, ...]:
    return (*ON_PLANT, "--pool", fleet.pool)


def test_create_follows_the_waves_until_all_nodes_are_updated(person: Person, fleet: SimulatedFleet) -> None:
    pool = pool_of(fleet)
    assert person.does("rollout", "list", *pool).out == "No roll-outs.\n"
    fleet.write(BETTER)
    create = ("rollout", "create", *pool, "--name", "may", *QUICK, "--wave", "1", "--wave", "100%")
    with fleet.working():
        made = person.does(*create)

    assert made.out == "The roll-out may succeeded: 4 of 4 nodes on revision 2.\n"
    lines = [line.partition(" ")[2] for line in made.err.splitlines()]
    assert lines[0].startswith("Running; wave 1 of 2: 1 node: 1 ")
    assert lines[-1] == "Succeeded; wave 2 of 2: 3 nodes: 3 updated"
    assert set(fleet.revisions().values()) == {2}
    assert person.does(*create).out == made.out  # the same command again follows the same roll-out
    listed = person.does("rollout", "list", *pool).out.splitlines()
    assert listed[1].split()[:7] == ["may", "Succeeded", "2", "2/2", "4", "4", "0"]
    shown = person.does("rollout", "show", *pool, "--name", "may").out
    assert "wave 2     3 nodes: 3 updated" in shown
    nodes = person.does("rollout", "nodes", *pool, "--name", "may", "--wave", "1").out.splitlines()
    assert [line.split()[:3] for line in nodes[1:]] == [[fleet.names[0], "1", "Updated"]]
    kept = person.does("pool", "show", *ON_PLANT, "--name", fleet.pool).out
    assert "stable       2\n" in kept
    assert person.does("rollout", "delete", *pool, "--name", "may", "--yes").out == "may deleted\n"
    assert "RolloutNotFound" in person.types("rollout", "show", *pool, "--name", "may").err


@pytest.mark.remedy("rollout-failed")
def test_failed_rollout_names_the_node_and_bars_the_revision(person: Person, fleet: SimulatedFleet) -> None:
    pool, name = pool_of(fleet), ("--name", fleet.pool)
    fleet.write(BAD)
    with fleet.working():
        failed = person.types("rollout", "create", *pool, "--name", "may", *QUICK)

    assert failed.code == 1
    reason = f"{fleet.names[0]}: containerd does not start"
    assert f"error: The roll-out may ended as Reversed: {reason}." in failed.err
    assert "rollout-failed" in failed.err
    shown = person.does("rollout", "show", *pool, "--name", "may").out
    assert f"reason     {reason}." in shown
    barred = person.does("pool", "show", *ON_PLANT, *name).out
    assert f"2 (may: {reason}.)" in barred

    again = person.types("rollout", "create", *pool, "--name", "june", *QUICK, "--no-wait")
    assert "RevisionBarred" in again.err
    allow = command("rollout-failed", "aks-flex-rp pool allow-revision")[1:]
    allowed = person.does(*allow, *ON_PLANT, *name, "--revision", "2")
    assert allowed.out == f"{fleet.pool} revision 2 is allowed\n"
    assert "RevisionNotBarred" in person.types(*allow, *ON_PLANT, *name, "--revision", "2").err
    update = command("rollout-failed", "aks-flex-rp pool update")[1:]
    person.does(*update, *ON_PLANT, *name, "--max-pods", "60")
    create = command("rollout-failed", "aks-flex-rp rollout create")[1:]
    with fleet.working():
        assert "succeeded: 4 of 4" in person.does(*create, *pool, "--name", "june", *QUICK).out


def test_halted_rollout_keeps_the_failed_node_and_is_reversed(person: Person, fleet: SimulatedFleet) -> None:
    pool = pool_of(fleet)
    fleet.write(BAD)
    with fleet.working():
        halted = person.types("rollout", "create", *pool, "--name", "may", *QUICK, "--on-failure", "halt", "--json")
        assert halted.code == 1
        assert halted.json["properties"]["state"] == "Halted"
        shown = person.does("rollout", "show", *pool, "--name", "may").out
        assert f"failed nodes\n  {fleet.names[0]} (wave 1, Failed): containerd does not start." in shown
        assert "is being reversed." in person.does("rollout", "reverse", *pool, "--name", "may").out
    fleet.work_until("Reversed", name="may")


def test_person_pauses_resumes_approves_and_aborts(person: Person, fleet: SimulatedFleet, tmp_path: Path) -> None:
    pool, one = pool_of(fleet), (*pool_of(fleet), "--name", "may")
    gates = tmp_path / "gates.yaml"
    gates.write_text("- {name: manager, approval: {}}\n")
    fleet.write(BETTER)
    words = (*QUICK, "--wave", "1", "--wave", "100%", "--gates-file", str(gates), "--no-wait")
    made = person.does("rollout", "create", *one, *words)
    assert made.out.startswith("may created, Running; wave 1 of 2: 1 node: 1 ")
    assert f"`aks-flex-rp rollout show --pool {fleet.pool} --name may --cluster plant`" in made.err

    paused = person.does("rollout", "pause", *one).out
    assert "may paused." in paused
    assert "waits for a person: it is paused" in paused
    assert "may resumed." in person.does("rollout", "resume", *one).out
    fleet.work_until("Gates", name="may")
    waiting = person.does("rollout", "show", *one).out
    assert "waits for  a person: approval of the gate manager of wave 1" in waiting
    assert "RolloutStateConflict" in person.types("rollout", "approve", *one, "--gate", "other").err
    assert "may approved." in person.does("rollout", "approve", *one, "--gate", "manager").out
    until(lambda: fleet.shown("may")["wave"] == 2, "the second wave starts", 10)
    assert "Passed" in person.does("rollout", "show", *one).out

    active = person.types("rollout", "create", *pool, "--name", "june", *QUICK)
    assert "RolloutActive" in active.err
    assert "roll-out     may\n" in person.does("pool", "show", *ON_PLANT, "--name", fleet.pool).out
    aborted = person.does("rollout", "abort", *one).out
    assert "may aborted. Nodes keep what they have." in aborted
    resumed = person.types("rollout", "resume", *one)
    assert resumed.code == 5
    assert "RolloutStateConflict" in resumed.err


def test_one_node_is_changed_in_spite_of_a_rollout(person: Person, fleet: SimulatedFleet) -> None:
    pool, name = pool_of(fleet), (*ON_PLANT, "--name", fleet.pool)
    fleet.write(BETTER)
    fleet.stuck = set(fleet.names)
    person.does("rollout", "create", *pool, "--name", "may", *QUICK, "--max-unavailable", "1", "--no-wait")
    until(lambda: bool(fleet.shown("may")["waveProgress"][0]["updating"]), "the first node begins", 10)
    one = ("--node", fleet.names[-1])
    assert "DisruptionBudgetExceeded" in person.types("pool", "apply", *name, *one).err
    refused = person.types("pool", "apply", *name, "--override-rollout")
    assert refused.code == 2
    assert "override-needs-node" in refused.err

    done = person.does("pool", "apply", *name, *one, "--override-rollout")
    assert done.out == f"{fleet.pool} revision 2: 1 node changed, 0 already there\n"
    node = (*ON_PLANT, "--name", fleet.names[-2])
    assert "DisruptionBudgetExceeded" in person.types("node", "update", *node, "--max-pods", "70").err
    person.does("node", "update", *node, "--max-pods", "70", "--override-rollout")

    person.does("rollout", "abort", *pool, "--name", "may")
    person.does("pool", "apply", *name)


def test_invalid_option_of_a_rollout_is_corrected(person: Person, fleet: SimulatedFleet, tmp_path: Path) -> None:
    gates = tmp_path / "gates.json"
    gates.write_text(json.dumps({"name": "manager"}))
    create = ("rollout", "create", *pool_of(fleet), "--name", "may", "--no-wait")
    for words, message in {
        ("--soak", "10 min"): "--soak: '10 min' is not a duration.",
        ("--selector", "site"): "--selector: 'site' is not a label.",
        ("--wave", "50%"): "--wave: '50%' leaves nodes out.",
        ("--max-unavailable", "0"): "--max-unavailable: '0' is not a share of the nodes.",
        ("--failure-domain", "site=many"): "--failure-domain: 'site=many' has the limit 'many', which is no share.",
        ("--gates-file", str(gates)): f"--gates-file: '{gates}' is not a list of gates.",
    }.items():
        wrong = person.types(*create, *words)
        assert wrong.code == 2
        assert f"error: {message}" in wrong.err
        assert "rollout-option-invalid" in wrong.err
    assert "No such file" in person.types(*create, "--gates-file", str(tmp_path / "none")).err

    gates.write_text(json.dumps([{"name": "manager", "approval": {}}]))
    made = person.does(*create, "--soak", "10m", "--selector", "site=north", "--gates-file", str(gates), "--json")
    properties = made.json["properties"]
    assert properties["soakSeconds"] == 600
    assert properties["nodeSelector"] == {"site": "north"}
    assert properties["gates"][0]["name"] == "manager"


def test_service_explains_properties_that_it_refuses(person: Person, fleet: SimulatedFleet) -> None:
    create = ("rollout", "create", *pool_of(fleet), "--name", "may", "--no-wait")
    for words, path in {
        ("--wave", "5", "--wave", "1", "--wave", "100%"): "must be ascending: each wave includes the earlier ones",
        ("--max-unavailable", "2000000"): "'2000000' is not a number of nodes such as 3, nor a percentage",
        ("--failure-domain", "a b"): "'a b' is not a valid key.",
        ("--canary", "a b=c"): "'a b' is not a valid key.",
        ("--selector", "a=b c"): "'b c' is not a label value.",
        ("--revision", "7"): "RevisionNotFound",
    }.items():
        refused = person.types(*create, *words)
        assert refused.code == 5
        assert path in refused.err, refused.err
    for name in ("a" * 41, "Bad_Name", "../other"):
        wrong = person.types(*create[:-2], name, "--no-wait")
        assert wrong.code == 2
        assert f"Invalid value for '--name' / '-n': '{name}' is not a name of a roll-out." in wrong.err
