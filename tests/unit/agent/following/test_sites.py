"""What is seen of the machine itself, by the site that the agent that stays really has."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent.following.site import Site
from aks_flex_node.agent.updating import journals
from aks_flex_node.agent.updating.journals import Journal, Stage
from aks_flex_node.host.actions import WriteFile
from tests.unit.agent.following.around import FakeProvider, Quiet
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
