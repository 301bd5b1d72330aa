"""Tests of `aks-flex-rp rollout …` with a real service and simulated nodes, and of the remedies of its errors."""

from __future__ import annotations

import json
import shlex
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

QUICK = "--soak 0 --stage-timeout 0s --max-unavailable 100%"


@pytest.fixture
def made(tmp_path: Path) -> ServiceSettings:
    return settings(tmp_path / "state", limits=PLENTY)


@pytest.fixture
def fleet(service: Running) -> SimulatedFleet:
    return SimulatedFleet(service)


def pool_of(fleet: SimulatedFleet) -> str:
    return f"--cluster plant --pool {fleet.pool}"


def test_create_follows_the_waves_until_all_nodes_are_updated(person: Person, fleet: SimulatedFleet) -> None:
    pool = pool_of(fleet)
    assert person.does(f"rollout list {pool}").out == "No roll-outs.\n"
    fleet.write(BETTER)
    create = f"rollout create {pool} --name may {QUICK} --wave 1 --wave 100%"
    with fleet.working():
        made = person.does(create)

    assert made.out == "The roll-out may succeeded: 4 of 4 nodes on revision 2.\n"
    lines = [line.partition(" ")[2] for line in made.err.splitlines()]
    assert lines[0].startswith("Running; wave 1 of 2: 1 node: 1 ")
    assert lines[-1] == "Succeeded; wave 2 of 2: 3 nodes: 3 updated"
    assert set(fleet.revisions().values()) == {2}
    assert person.does(create).out == made.out  # the same command again follows the same roll-out
    listed = person.does(f"rollout list {pool}").out.splitlines()
    assert listed[1].split()[:7] == ["may", "Succeeded", "2", "2/2", "4", "4", "0"]
    shown = person.does(f"rollout show {pool} --name may").out
    assert "wave 2     3 nodes: 3 updated" in shown
    nodes = person.does(f"rollout nodes {pool} --name may --wave 1").out.splitlines()
    assert [line.split()[:3] for line in nodes[1:]] == [[fleet.names[0], "1", "Updated"]]
    kept = person.does(f"pool show --cluster plant --name {fleet.pool}").out
    assert "stable       2\n" in kept
    assert person.does(f"rollout delete {pool} --name may --yes").out == "may deleted\n"
    assert "RolloutNotFound" in person.types(f"rollout show {pool} --name may").err


@pytest.mark.remedy("rollout-failed")
def test_failed_rollout_names_the_node_and_bars_the_revision(person: Person, fleet: SimulatedFleet) -> None:
    pool, name = pool_of(fleet), f"--cluster plant --name {fleet.pool}"
    fleet.write(BAD)
    with fleet.working():
        failed = person.types(f"rollout create {pool} --name may {QUICK}")

    assert failed.code == 1
    reason = f"{fleet.names[0]}: containerd does not start"
    assert f"error: The roll-out may ended as Reversed: {reason}." in failed.err
    assert "rollout-failed" in failed.err
    shown = person.does(f"rollout show {pool} --name may").out
    assert f"reason     {reason}." in shown
    barred = person.does(f"pool show {name}").out
    assert f"2 (may: {reason}.)" in barred

    again = person.types(f"rollout create {pool} --name june {QUICK} --no-wait")
    assert "RevisionBarred" in again.err
    allow = shlex.join(command("rollout-failed", "aks-flex-rp pool allow-revision")[1:])
    allowed = person.does(f"{allow} {name} --revision 2")
    assert allowed.out == f"{fleet.pool} revision 2 is allowed\n"
    assert "RevisionNotBarred" in person.types(f"{allow} {name} --revision 2").err
    update = shlex.join(command("rollout-failed", "aks-flex-rp pool update")[1:])
    person.does(f"{update} {name} --max-pods 60")
    create = shlex.join(command("rollout-failed", "aks-flex-rp rollout create")[1:])
    with fleet.working():
        assert "succeeded: 4 of 4" in person.does(f"{create} {pool} --name june {QUICK}").out


def test_halted_rollout_keeps_the_failed_node_and_is_reversed(person: Person, fleet: SimulatedFleet) -> None:
    pool = pool_of(fleet)
    fleet.write(BAD)
    with fleet.working():
        halted = person.types(f"rollout create {pool} --name may {QUICK} --on-failure halt --json")
        assert halted.code == 1
        assert halted.properties["state"] == "Halted"
        shown = person.does(f"rollout show {pool} --name may").out
        assert f"failed nodes\n  {fleet.names[0]} (wave 1, Failed): containerd does not start." in shown
        assert "is being reversed." in person.does(f"rollout reverse {pool} --name may").out
    fleet.work_until("Reversed", name="may")


def test_person_pauses_resumes_approves_and_aborts(person: Person, fleet: SimulatedFleet, tmp_path: Path) -> None:
    pool, one = pool_of(fleet), f"{pool_of(fleet)} --name may"
    gates = tmp_path / "gates.yaml"
    gates.write_text("- {name: manager, approval: {}}\n")
    fleet.write(BETTER)
    words = f"{QUICK} --wave 1 --wave 100% --gates-file {gates} --no-wait"
    made = person.does(f"rollout create {one} {words}")
    assert made.out.startswith("may created, Running; wave 1 of 2: 1 node: 1 ")
    assert f"`aks-flex-rp rollout show --pool {fleet.pool} --name may --cluster plant`" in made.err

    paused = person.does(f"rollout pause {one}").out
    assert "may paused." in paused
    assert "waits for a person: it is paused" in paused
    assert "may resumed." in person.does(f"rollout resume {one}").out
    fleet.work_until("Gates", name="may")
    waiting = person.does(f"rollout show {one}").out
    assert "waits for  a person: approval of the gate manager of wave 1" in waiting
    assert "RolloutStateConflict" in person.types(f"rollout approve {one} --gate other").err
    assert "may approved." in person.does(f"rollout approve {one} --gate manager").out
    until(lambda: fleet.shown("may")["wave"] == 2, "the second wave starts", 10)
    assert "Passed" in person.does(f"rollout show {one}").out

    active = person.types(f"rollout create {pool} --name june {QUICK}")
    assert "RolloutActive" in active.err
    assert "roll-out     may\n" in person.does(f"pool show --cluster plant --name {fleet.pool}").out
    aborted = person.does(f"rollout abort {one}").out
    assert "may aborted. Nodes keep what they have." in aborted
    resumed = person.types(f"rollout resume {one}")
    assert resumed.code == 5
    assert "RolloutStateConflict" in resumed.err


def test_one_node_is_changed_in_spite_of_a_rollout(person: Person, fleet: SimulatedFleet) -> None:
    pool, name = pool_of(fleet), f"--cluster plant --name {fleet.pool}"
    fleet.write(BETTER)
    fleet.stuck = set(fleet.names)
    person.does(f"rollout create {pool} --name may {QUICK} --max-unavailable 1 --no-wait")
    until(lambda: bool(fleet.shown("may")["waveProgress"][0]["updating"]), "the first node begins", 10)
    one = f"--node {fleet.names[-1]}"
    assert "DisruptionBudgetExceeded" in person.types(f"pool apply {name} {one}").err
    refused = person.types(f"pool apply {name} --override-rollout")
    assert refused.code == 2
    assert "override-needs-node" in refused.err

    done = person.does(f"pool apply {name} {one} --override-rollout")
    assert done.out == f"{fleet.pool} revision 2: 1 node changed, 0 already there\n"
    node = f"--cluster plant --name {fleet.names[-2]}"
    assert "DisruptionBudgetExceeded" in person.types(f"node update {node} --max-pods 70").err
    person.does(f"node update {node} --max-pods 70 --override-rollout")

    person.does(f"rollout abort {pool} --name may")
    person.does(f"pool apply {name}")


def test_invalid_option_of_a_rollout_is_corrected(person: Person, fleet: SimulatedFleet, tmp_path: Path) -> None:
    gates = tmp_path / "gates.json"
    gates.write_text(json.dumps({"name": "manager"}))
    create = f"rollout create {pool_of(fleet)} --name may --no-wait"
    for words, message in {
        ("--soak", "10 min"): "--soak: '10 min' is not a duration.",
        ("--selector", "site"): "--selector: 'site' is not a label.",
        ("--failure-domain", "=2"): "--failure-domain: '=2' is not a label.",
        ("--gates-file", str(gates)): f"--gates-file: '{gates}' is not a list of gates.",
    }.items():
        wrong = person.types(create, *words)
        assert wrong.code == 2
        assert f"error: {message}" in wrong.err
        assert "rollout-option-invalid" in wrong.err
    assert "No such file" in person.types(f"{create} --gates-file {tmp_path}/none").err

    gates.write_text(json.dumps([{"name": "manager", "approval": {}}]))
    made = person.does(f"{create} --soak 10m --selector site=north --gates-file {gates} --json")
    properties = made.properties
    assert properties["soakSeconds"] == 600
    assert properties["nodeSelector"] == {"site": "north"}
    assert properties["gates"][0]["name"] == "manager"


def test_service_explains_properties_that_it_refuses(person: Person, fleet: SimulatedFleet) -> None:
    create = f"rollout create {pool_of(fleet)} --name may --no-wait"
    for words, path in {
        ("--wave", "5", "--wave", "1", "--wave", "100%"): "must be ascending: each wave includes the earlier ones",
        ("--wave", "50%"): "must end with 100%, so that no node is left out. (properties.waves)",
        ("--soak", "8d"): "should be less than or equal to 604800. (properties.soakSeconds)",
        ("--failure-domain", "site=many"): "'many' is not a number of nodes",
        ("--on-failure", "retry"): "must be one of 'halt' or 'reverse'. (properties.onFailure)",
        ("--max-unavailable", "2000000"): "'2000000' is not a number of nodes such as 3, nor a percentage",
        ("--failure-domain", "a b"): "'a b' is not a valid key.",
        ("--canary", "a b=c"): "'a b' is not a valid key.",
        ("--selector", "a=b c"): "'b c' is not a label value.",
        ("--revision", "7"): "RevisionNotFound",
    }.items():
        refused = person.types(create, *words)
        assert refused.code == 5
        assert path in refused.err, refused.err
    for name in ("a" * 41, "Bad_Name", "../other"):
        wrong = person.types(f"{create} --name {name}")
        assert wrong.code == 2
        assert f"Invalid value for '--name' / '-n': '{name}' is not a name of a roll-out." in wrong.err
