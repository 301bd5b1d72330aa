"""Tests of `az aks flex-node rollout`, with simulated nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.az_extension.harness import SiteFleet
from tests.service.rp.api.simulated_fleet import BAD, BETTER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.az_extension.harness import Site
    from tests.az_extension.warm_az import WarmAz

ON = ("--cluster", "plant", "--resource-group", "edge")
QUICK = ("--soak", "0s", "--stage-timeout", "0", "--max-unavailable", "100%")


@pytest.fixture
def fleet(site: Site) -> SiteFleet:
    return SiteFleet(site.service, 2)


def name_of(fleet: SiteFleet) -> tuple[str, ...]:
    return (*ON, "--pool", fleet.pool, "--name", "may")


def test_rollout_is_followed_listed_and_deleted(az: WarmAz, fleet: SiteFleet) -> None:
    pool, one = (*ON, "--pool", fleet.pool), name_of(fleet)
    fleet.write(BETTER)
    words = (*QUICK, "--waves", "1", "100%", "--failure-domain", "site=2", "--canary", "site=north")
    with fleet.working():
        made = az.run("aks", "flex-node", "rollout", "create", *one, *words)
    assert json.loads(made.out)["properties"]["failureDomain"] == {"label": "site", "maxUnavailable": "2"}
    assert "Running; wave 1 of 2: 1 node: 1 " in made.err
    assert "Succeeded; wave 2 of 2: 1 node: 1 updated" in made.err
    table = az.run("aks", "flex-node", "rollout", "list", *pool, "-o", "table").out.splitlines()
    assert table[2].split()[:7] == ["may", "Succeeded", "2", "2/2", "2", "2", "0"]
    nodes = az("aks", "flex-node", "rollout", "list-nodes", *one, "--state", "Updated", "--wave", "1")
    assert [each["name"] for each in nodes] == fleet.names[:1]
    az.run("aks", "flex-node", "rollout", "wait", *one, "--succeeded", "--timeout", "30")
    shown = az("aks", "flex-node", "rollout", "show", *one)
    assert az("aks", "flex-node", "rollout", "show", "--ids", shown["id"])["name"] == "may"
    table = az.run("aks", "flex-node", "pool", "show", *ON, "--name", fleet.pool, "-o", "table").out.splitlines()
    assert table[0].split()[:3] == ["Name", "Revision", "Stable"]
    assert table[2].split()[:3] == [fleet.pool, "2", "2"]

    az.run("aks", "flex-node", "rollout", "delete", *one, "--yes")
    gone = az.run("aks", "flex-node", "rollout", "show", *one, check=False)
    assert gone.code == 3
    assert "(RolloutNotFound)" in gone.err
    assert "The roll-out may was not found." in az.run("aks", "flex-node", "rollout", "delete", *one, "--yes").err


def test_rollout_that_fails_is_an_error_and_bars_the_revision(az: WarmAz, fleet: SiteFleet) -> None:
    one, pool = name_of(fleet), (*ON, "--name", fleet.pool)
    fleet.write(BAD)
    with fleet.working():
        failed = az.run("aks", "flex-node", "rollout", "create", *one, *QUICK, check=False)
    assert failed.code == 1
    ended = f"The roll-out may ended as Reversed: {fleet.names[0]}: containerd does not start."
    assert ended in failed.err
    assert ended in az.run("aks", "flex-node", "rollout", "wait", *one, "--succeeded", check=False).err
    [barred] = az("aks", "flex-node", "pool", "show", *pool)["properties"]["barredRevisions"]
    assert (barred["revision"], barred["rollout"]) == (2, "may")
    create = ("aks", "flex-node", "rollout", "create", *one[:-1], "june", *QUICK, "--no-wait")
    again = az.run(*create, check=False)
    assert "(RevisionBarred)" in again.err
    assert "lift the bar with `az aks flex-node pool allow-revision`" in again.err
    allowed = az("aks", "flex-node", "pool", "allow-revision", *pool, "--revision", "2")
    assert allowed["properties"]["barredRevisions"] == []
    assert az.run(*create).out == ""


def test_rollout_takes_the_orders_of_a_person(az: WarmAz, fleet: SiteFleet, tmp_path: Path) -> None:
    one = name_of(fleet)
    gates = tmp_path / "gates.yaml"
    gates.write_text("gates: [{name: manager, approval: {}}]")
    fleet.write(BETTER)
    az.run("aks", "flex-node", "rollout", "create", *one, *QUICK, "--gates-file", str(gates), "--no-wait")

    def order(verb: str, *words: str) -> Any:
        return az("aks", "flex-node", "rollout", verb, *one, *words)["properties"]

    assert order("pause")["paused"]
    assert not order("resume")["paused"]
    fleet.work_until("Gates", name="may")
    apply = ("aks", "flex-node", "pool", "apply", *ON, "--name", fleet.pool)
    assert "(RolloutActive)" in az.run(*apply, check=False).err
    wrong = az.run(*apply, "--override-rollout", check=False)
    assert "--override-rollout is for exactly one node." in wrong.err
    done = az(*apply[:-1], fleet.pool, "--nodes", fleet.names[1], "--override-rollout")
    assert done["applied"] == [fleet.names[1]]
    update = ("aks", "flex-node", "update", *ON, "--name", fleet.names[0], "--max-pods", "61", "--override-rollout")
    assert az(*update)["properties"]["nodeConfig"]["maxPods"] == 61
    assert order("approve", "--gate", "manager")["gateResults"][0]["state"] == "Passed"
    fleet.work_until("Succeeded", name="may")
    assert "(RolloutStateConflict)" in az.run("aks", "flex-node", "rollout", "abort", *one, check=False).err
    assert order("reverse")["state"] in {"Reversing", "Reversed"}


def test_wrong_values_of_a_rollout_name_their_options(az: WarmAz, fleet: SiteFleet) -> None:
    create = ("aks", "flex-node", "rollout", "create", *name_of(fleet), "--no-wait")
    for words, message in {
        ("--soak", "soon"): "--soak: 'soon' is not a duration.",
        ("--canary", "site"): "--canary: 'site' is not a label.",
        ("--waves", "1", "50%"): "--waves: '50%' leaves nodes out.",
        ("--waves", "5", "1", "100%"): "--waves: properties.waves: ",
        ("--max-unavailable", "0"): "--max-unavailable: '0' is not a share of the nodes.",
        ("--canary", "a b=c"): "--canary: properties.canarySelector",
    }.items():
        wrong = az.run(*create, *words, check=False)
        assert wrong.code == 1
        assert message in wrong.err, wrong.err
