"""What is seen of the machine itself, by the site that the agent that stays really has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.vpn import record_file
from aks_flex_node.agent.daemon.managed_node import ManagedNode
from aks_flex_node.agent.jobs.registry import components_to_repair, store_address
from aks_flex_node.agent.jobs.update import update_journal
from aks_flex_node.agent.jobs.update.update_journal import UpdateJournal, UpdateStage
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.vpn.local_state import settings_fingerprint
from aks_flex_node.host.actions import WriteFile
from tests.unit.agent.builders import DATA, config_of
from tests.unit.agent.config.builders import CLUSTER_ID
from tests.unit.agent.daemon.fakes import FakeProvider, Quiet
from tests.unit.agent.jobs.update.harness import Scene

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.client import ApiClient

TOML = "/etc/containerd/config.toml"


def site_of(scene: Scene) -> ManagedNode:
    scene.host.do(WriteFile(TOML, b"other\n"))
    return ManagedNode(scene.engine(scene.config), cast("ApiClient", Quiet()), "edge-1", FakeProvider().real)


def test_what_is_not_as_the_configuration_wants_it_is_drift() -> None:
    assert TOML in [one.subject for one in site_of(Scene()).detect_drift()]


@pytest.mark.parametrize("stage", [UpdateStage.APPLYING, UpdateStage.ROLLING_BACK])
def test_what_an_update_has_changed_and_not_proven_yet_is_none(stage: UpdateStage) -> None:
    scene = Scene()
    update_journal.write_journal(scene.host, UpdateJournal("2 x", "2", stage))
    site = site_of(scene)
    assert site.detect_drift() == ()
    assert not site.scheduler_input(deleted=False, lost=False).drifted, "or a repair would undo it"


def test_an_update_that_has_touched_nothing_yet_hides_no_drift() -> None:
    scene = Scene()
    update_journal.write_journal(scene.host, UpdateJournal("2 x", "2", UpdateStage.PREPARING))
    assert TOML in [one.subject for one in site_of(scene).detect_drift()]


BEHIND_VPN: dict[str, object] = {"azure.vpn.enabled": True, "azure.targetCluster.resourceId": CLUSTER_ID}


def test_a_tunnel_that_the_configuration_means_and_nobody_made_is_to_be_made() -> None:
    scene = Scene(BEHIND_VPN)
    site = site_of(scene)
    site.detect_drift()
    assert site.scheduler_input(deleted=False, lost=False).vpn_due
    scene.host.do(WriteFile(record_file(scene.config), record_of(settings_fingerprint(scene.config)), 0o600))
    site.detect_drift()
    assert not site.scheduler_input(deleted=False, lost=False).vpn_due


def record_of(settings: str) -> bytes:
    return json.dumps({"settings": settings}).encode()


def test_a_tunnel_of_which_the_configuration_knows_nothing_is_told_and_not_taken_down_by_a_repair() -> None:
    """It came by words of the join that the provider never heard of, and may be the only way to the cluster."""
    scene = Scene(BEHIND_VPN)
    without = config_of({"kubernetes.version": "1.33.13"})
    site = ManagedNode(scene.engine(without), cast("ApiClient", Quiet()), "edge-1", FakeProvider().real)
    site.detect_drift()
    site.drift = tuple(one for one in site.drift if one.component == "vpn")
    assert [one.subject for one in site.drift] == [vpn.NAME, vpn.UNIT]
    assert not site.scheduler_input(deleted=False, lost=False).drifted
    assert vpn.COMPONENT not in components_to_repair(scene.engine(without))
    assert vpn.COMPONENT in components_to_repair(scene.engine(scene.config))


def test_a_repair_keeps_the_address_by_which_the_node_is_known_from_then_on() -> None:
    scene = Scene()
    engine, path = scene.engine(scene.config), f"{DATA}/state.json"
    engine.machine = replace(engine.machine, address="192.168.100.7")
    store_address(engine)
    known = node_state.read(scene.host, path)
    assert (known.address, known.phase) == ("192.168.100.7", node_state.Phase.NODE_JOINED.value)
