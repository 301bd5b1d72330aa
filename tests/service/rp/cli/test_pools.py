"""Tests of `aks-flex-rp pool …` with a real service on this machine, and of the remedies of its errors."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.cli.command_context import ServiceOptions
from aks_flex_rp.cli.pool_commands import put_pool
from tests.service.rp.api.fake_clusters import CLUSTER_VERSION, PLANT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.cli.cli_harness import Person

POOL = "--cluster plant --name edge"


def test_pool_from_creation_to_deletion(person: Person, tmp_path: Path) -> None:
    assert person.does("pool list --cluster plant").out == "No pools.\n"
    made = person.does(f"pool create --label site=north --max-pods 50 --description Pumps {POOL}")
    assert made.out == "edge created, revision 1\n"
    for name in ("edge-1", "edge-2"):
        person.does(f"node create --cluster plant --name {name} --pool edge")
    shown = person.does("node show --cluster plant --name edge-1 --json").out
    properties = json.loads(shown)["properties"]
    assert properties["effective"]["continuousMonitoring"] is True
    assert properties["origins"]["continuousMonitoring"] == "pool"

    updated = person.does(f"pool update --max-pods 60 --taint a=b:NoSchedule {POOL}")
    assert updated.out == "edge updated, revision 2\n"
    assert "2 of 2 nodes are on another revision" in updated.err
    assert "`aks-flex-rp pool apply --name edge --cluster plant --node NODE`" in updated.err
    assert person.does("pool list --cluster plant").out.splitlines()[1].split() == ["edge", "2", "2", "2", "Pumps"]
    listed = person.does(f"pool revisions {POOL}").out.splitlines()
    assert [line.split()[0] for line in listed] == ["REVISION", "2", "1"]
    assert listed[1].endswith("nodeConfig.maxPods, nodeConfig.taints['a:NoSchedule']")
    changes = person.does(f"pool diff {POOL}").out
    assert "nodeConfig.maxPods: 50 -> 60\n" in changes
    assert "nodeConfig.taints['a:NoSchedule']: (none) -> " in changes
    assert "nodeConfig.maxPods: (none) -> 50" in person.does(f"pool diff --revision 1 {POOL}").out

    one = person.does(f"pool apply --node edge-1 {POOL}")
    assert one.out == "edge revision 2: 1 node changed, 0 already there\n"
    assert person.does(f"pool apply {POOL}").out == "edge revision 2: 1 node changed, 1 already there\n"
    shown = person.does("node show --cluster plant --name edge-1").out
    assert "edge (revision 2)" in shown
    for taken in ("nodeConfig.maxPods 60", "nodeConfig.labels.site north", "nodeConfig.taints['a:NoSchedule'] {"):
        assert re.search(rf"setting +{re.escape(taken)}.*\(pool\)", shown)
    assert "edge 2/2" in person.does("node list --cluster plant").out
    nodes = person.does("node list --cluster plant --pool edge --json").json
    assert [each["name"] for each in nodes] == ["edge-1", "edge-2"]

    refused = person.types(f"pool delete --yes {POOL}")
    assert refused.code == 5
    assert "has 2 nodes: edge-1, edge-2." in refused.err
    assert "`aks-flex-rp node update --name NODE --pool ''`" in refused.err
    assert refused.err.count("Nothing was changed.") == 1
    for name in ("edge-1", "edge-2"):
        left = person.does(f"node update --cluster plant --name {name} --pool ''")
        assert f"{name} stays managed, as in the pool edge" in left.err
        shown = person.does(f"node show --cluster plant --name {name} --json").properties
        assert shown["continuousMonitoring"] is True
        assert "poolName" not in shown
    assert person.does(f"pool delete --yes {POOL}").out == "edge deleted\n"
    assert person.does(f"pool delete --yes {POOL}").out == "pool edge not found\n"
    missing = person.does("node list --cluster plant --pool edge")
    assert missing.out == "No nodes.\n"
    assert "has no pool edge." in missing.err


def test_node_that_leaves_its_pool_may_become_unmanaged_on_purpose(person: Person) -> None:
    person.does(f"pool create {POOL}")
    person.does("node create --cluster plant --name edge-1 --pool edge")
    left = person.does("node update --cluster plant --name edge-1 --pool '' --no-monitor")
    assert "stays managed" not in left.err
    shown = person.does("node show --cluster plant --name edge-1 --json").properties
    assert shown["effective"]["continuousMonitoring"] is False


def test_template_comes_from_a_file_or_from_pool_show(person: Person, tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("nodeConfig: {maxPods: 70}\n")
    person.does(f"pool create --file {file} --label a=b {POOL}")
    shown = person.does(f"pool show --json {POOL}")
    assert shown.properties["template"] == {
        "continuousMonitoring": True,
        "nodeConfig": {"maxPods": 70, "labels": {"a": "b"}},
    }
    assert '"maxPods": 70' in person.does(f"pool show {POOL}").out
    file.write_text(shown.out)
    assert person.does(f"pool update --file {file} {POOL}").out == "No changes.\n"
    file.write_text("nodeConfig: {maxPods: 70, labels: {a: b}}\n")
    assert person.does(f"pool update --file {file} {POOL}").out == "No changes.\n"
    file.write_text("properties: {nodeconfig: {maxPods: 80}, template: {}}\n")
    assert "nodeconfig is unknown beside template" in person.types(f"pool update --file {file} {POOL}").err
    for words in (("--no-monitor",), ("--file", str(file))):
        file.write_text("continuousMonitoring: false\n")
        person.does(f"pool create --cluster plant --name plain{len(words)}", *words)
        kept = person.does(f"pool show --cluster plant --name plain{len(words)} --json").json
        assert kept["properties"]["template"] == {"continuousMonitoring": False}
    file.write_text("template: []\n")
    assert "template has the wrong type" in person.types(f"pool update --file {file} {POOL}").err


def test_node_without_own_identity_takes_that_of_its_pool(person: Person) -> None:
    person.does(f"pool create --auth-method arc --monitor {POOL}")
    person.does("node create --cluster plant --name edge-1")
    moved = person.does("node update --cluster plant --name edge-1 --pool edge --json").json
    assert "azureAuth" not in moved["properties"]
    assert moved["properties"]["effective"]["azureAuth"] == {"method": "arc"}
    assert "arc" in person.does("node show --cluster plant --name edge-1").out


def test_existing_pool_is_updated_or_another_name_is_chosen(person: Person) -> None:
    person.does(f"pool create {POOL}")
    assert "pool-exists" in person.types(f"pool create --max-pods 50 {POOL}").err
    person.does(f"pool update --max-pods 50 {POOL}")
    person.does("pool create --cluster plant --name other --max-pods 50")


def test_concurrent_change_of_a_pool_is_refused(person: Person) -> None:
    person.does(f"pool create {POOL}")
    pool = ServiceOptions(cluster=str(PLANT), state=person.state).pools.at("edge")
    before = pool.get()
    person.does(f"pool update --max-pods 50 {POOL}")
    with pytest.raises(ConfigError) as caught:
        put_pool(pool, "edge", {"template": {}}, before["etag"])
    assert caught.value.name == "pool-conflict"
    put_pool(pool, "edge", {"template": {}}, pool.get()["etag"])


def test_refused_nodes_are_named_and_can_be_corrected(person: Person) -> None:
    person.does(f"pool create {POOL} --kubernetes-version {CLUSTER_VERSION}")
    person.does("node create --cluster plant --name edge-1 --pool edge")
    person.does(f"pool update --kubernetes-version 1.33.1 {POOL}")
    refused = person.types(f"pool apply {POOL}")
    assert refused.code == 3
    assert "pool-apply-refused" in refused.err
    assert "edge-1: '1.33.1' is older than the current version" in refused.err

    person.does(f"pool apply --allow-downgrade {POOL}")
    person.does(f"pool update --kubernetes-version 1.33.0 {POOL}")
    assert person.types(f"pool apply {POOL}").code == 3
    person.does(f"pool update --kubernetes-version {CLUSTER_VERSION} {POOL}")
    person.does(f"pool apply {POOL}")
