"""Tests of `az aks flex-node rollout`, with simulated nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.az_extension.commands import flex, ran, refused, table
from tests.az_extension.harness import SiteFleet
from tests.service.rp.api.simulated_fleet import BAD, BETTER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.az_extension.harness import Site
    from tests.az_extension.warm_az import WarmAz

QUICK = ("--soak", "0s", "--stage-timeout", "0", "--max-unavailable", "100%")


@pytest.fixture
def fleet(site: Site) -> SiteFleet:
    return SiteFleet(site.service, 2)


def name_of(fleet: SiteFleet) -> tuple[str, ...]:
    return ("--pool", fleet.pool, "--name", "may")


def test_rollout_is_followed_listed_and_deleted(az: WarmAz, fleet: SiteFleet) -> None:
    pool, one = ("--pool", fleet.pool), name_of(fleet)
    fleet.write(BETTER)
    words = (*QUICK, "--waves", "1", "100%", "--failure-domain", "site=2", "--canary", "site=north")
    with fleet.working():
        made = ran(az, "rollout create", *one, *words)
    assert json.loads(made.out)["properties"]["failureDomain"] == {"label": "site", "maxUnavailable": "2"}
    assert "Running; wave 1 of 2: 1 node: 1 " in made.err
    assert "Succeeded; wave 2 of 2: 1 node: 1 updated" in made.err
    assert table(az, "rollout list", *pool)[2].split()[:7] == ["may", "Succeeded", "2", "2/2", "2", "2", "0"]
    nodes = flex(az, "rollout list-nodes", *one, "--state", "Updated", "--wave", "1")
    assert [each["name"] for each in nodes] == fleet.names[:1]
    ran(az, "rollout wait", *one, "--succeeded", "--timeout", "30")
    shown = flex(az, "rollout show", *one)
    assert az("aks", "flex-node", "rollout", "show", "--ids", shown["id"])["name"] == "may"
    head, _, row = table(az, "pool show", "--name", fleet.pool)
    assert head.split()[:3] == ["Name", "Revision", "Stable"]
    assert row.split()[:3] == [fleet.pool, "2", "2"]

    ran(az, "rollout delete", *one, "--yes")
    assert "(RolloutNotFound)" in refused(az, "rollout show", *one, code=3)
    assert "The roll-out may was not found." in ran(az, "rollout delete", *one, "--yes").err


def test_rollout_that_fails_is_an_error_and_bars_the_revision(az: WarmAz, fleet: SiteFleet) -> None:
    one, pool = name_of(fleet), ("--name", fleet.pool)
    fleet.write(BAD)
    with fleet.working():
        failed = refused(az, "rollout create", *one, *QUICK)
    ended = f"The roll-out may ended as Reversed: {fleet.names[0]}: containerd does not start."
    assert ended in failed
    assert ended in refused(az, "rollout wait", *one, "--succeeded")
    [barred] = flex(az, "pool show", *pool)["properties"]["barredRevisions"]
    assert (barred["revision"], barred["rollout"]) == (2, "may")
    create = ("rollout create", *one[:-1], "june", *QUICK, "--no-wait")
    message = refused(az, *create)
    assert "(RevisionBarred)" in message
    assert "lift the bar with `az aks flex-node pool allow-revision`" in message
    allowed = flex(az, "pool allow-revision", *pool, "--revision", "2")
    assert allowed["properties"]["barredRevisions"] == []
    assert ran(az, *create).out == ""


def test_rollout_takes_the_orders_of_a_person(az: WarmAz, fleet: SiteFleet, tmp_path: Path) -> None:
    one = name_of(fleet)
    gates = tmp_path / "gates.yaml"
    gates.write_text("gates: [{name: manager, approval: {}}]")
    fleet.write(BETTER)
    ran(az, "rollout create", *one, *QUICK, "--gates-file", str(gates), "--no-wait")

    def order(verb: str, *words: str) -> Any:
        return flex(az, f"rollout {verb}", *one, *words)["properties"]

    assert order("pause")["paused"]
    assert not order("resume")["paused"]
    fleet.work_until("Gates", name="may")
    apply = ("pool apply", "--name", fleet.pool)
    assert "(RolloutActive)" in refused(az, *apply)
    assert "--override-rollout is for exactly one node." in refused(az, *apply, "--override-rollout")
    done = flex(az, *apply, "--nodes", fleet.names[1], "--override-rollout")
    assert done["applied"] == [fleet.names[1]]
    update = ("update", "--name", fleet.names[0], "--max-pods", "61", "--override-rollout")
    assert flex(az, *update)["properties"]["nodeConfig"]["maxPods"] == 61
    assert order("approve", "--gate", "manager")["gateResults"][0]["state"] == "Passed"
    fleet.work_until("Succeeded", name="may")
    assert "(RolloutStateConflict)" in refused(az, "rollout abort", *one)
    assert order("reverse")["state"] in {"Reversing", "Reversed"}


def test_wrong_values_of_a_rollout_name_their_options(az: WarmAz, fleet: SiteFleet) -> None:
    create = ("rollout create", *name_of(fleet), "--no-wait")
    for words, message in {
        ("--soak", "soon"): "--soak: 'soon' is not a duration.",
        ("--canary", "site"): "--canary: 'site' is not a label.",
        ("--waves", "1", "50%"): "--waves: properties.waves: ",
        ("--waves", "5", "1", "100%"): "--waves: properties.waves: ",
        ("--max-unavailable", "0"): "--max-unavailable: properties.maxUnavailable: '0' is not a number of nodes",
        ("--canary", "a b=c"): "--canary: properties.canarySelector",
    }.items():
        wrong = refused(az, *create, *words)
        assert message in wrong, wrong
