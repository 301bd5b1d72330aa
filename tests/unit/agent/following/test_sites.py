"""What is seen of the machine itself, by the site that the agent that stays really has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent.cli.jobs import keep_address, repaired
from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.vpn import record_file
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.following.site import Site
from aks_flex_node.agent.updating import journals
from aks_flex_node.agent.updating.journals import Journal, Stage
from aks_flex_node.agent.vpn.looking import fingerprint
from aks_flex_node.host.actions import WriteFile
from tests.unit.agent.config.samples import CLUSTER_ID
from tests.unit.agent.following.around import FakeProvider, Quiet
from tests.unit.agent.given import DATA, config_of
from tests.unit.agent.updating.scenes import Scene

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.api import Api

TOML = "/etc/containerd/config.toml"


def site_of(scene: Scene) -> Site:
    scene.host.do(WriteFile(TOML, b"other\n"))
    return Site(scene.engine(scene.config), cast("Api", Quiet()), "edge-1", FakeProvider().real)


def test_what_is_not_as_the_configuration_wants_it_is_drift() -> None:
    assert TOML in [one.subject for one in site_of(Scene()).look_for_drift()]


@pytest.mark.parametrize("stage", [Stage.APPLYING, Stage.ROLLING_BACK])
def test_what_an_update_has_changed_and_not_proven_yet_is_none(stage: Stage) -> None:
    scene = Scene()
    journals.write(scene.host, Journal("2 x", "2", stage))
    site = site_of(scene)
    assert site.look_for_drift() == ()
    assert not site.wants(deleted=False, lost=False).drifted, "or a repair would undo it"


def test_an_update_that_has_touched_nothing_yet_hides_no_drift() -> None:
    scene = Scene()
    journals.write(scene.host, Journal("2 x", "2", Stage.PREPARING))
    assert TOML in [one.subject for one in site_of(scene).look_for_drift()]


BEHIND_VPN: dict[str, object] = {"azure.vpn.enabled": True, "azure.targetCluster.resourceId": CLUSTER_ID}


def test_a_tunnel_that_the_configuration_means_and_nobody_made_is_to_be_made() -> None:
    scene = Scene(BEHIND_VPN)
    site = site_of(scene)
    site.look_for_drift()
    assert site.wants(deleted=False, lost=False).worn
    scene.host.do(WriteFile(record_file(scene.config), record_of(fingerprint(scene.config)), 0o600))
    site.look_for_drift()
    assert not site.wants(deleted=False, lost=False).worn


def record_of(settings: str) -> bytes:
    return json.dumps({"settings": settings}).encode()


def test_a_tunnel_of_which_the_configuration_knows_nothing_is_told_and_not_taken_down_by_a_repair() -> None:
    """It came by words of the join that the provider never heard of, and may be the only way to the cluster."""
    scene = Scene(BEHIND_VPN)
    without = config_of({"kubernetes.version": "1.33.13"})
    site = Site(scene.engine(without), cast("Api", Quiet()), "edge-1", FakeProvider().real)
    site.look_for_drift()
    site.drift = tuple(one for one in site.drift if one.component == "vpn")
    assert [one.subject for one in site.drift] == [vpn.NAME, vpn.UNIT]
    assert not site.wants(deleted=False, lost=False).drifted
    assert vpn.COMPONENT not in repaired(scene.engine(without))
    assert vpn.COMPONENT in repaired(scene.engine(scene.config))


def test_a_repair_keeps_the_address_by_which_the_node_is_known_from_then_on() -> None:
    scene = Scene()
    engine, path = scene.engine(scene.config), f"{DATA}/state.json"
    engine.machine = replace(engine.machine, address="192.168.100.7")
    keep_address(engine)
    known = state.read(scene.host, path)
    assert (known.address, known.phase) == ("192.168.100.7", state.Phase.NODE_JOINED.value)
