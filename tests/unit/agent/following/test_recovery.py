"""A node that has lost its way back to the cluster; the token itself is shown with a real provider."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from aks_flex_node.agent.components.agent import CURRENT
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.following.provider import Unanswered
from aks_flex_node.agent.following.recovery import Recovery
from aks_flex_node.agent.following.verdicts import Standing, Verdict
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import RestartUnit
from tests.unit.agent.following.around import READY, WELL, FakeHost, FakeProvider
from tests.unit.agent.given import engine_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.nodes import Node
    from aks_flex_node.agent.cluster.proof import Proof
    from aks_flex_node.agent.following.sights import Sight

RESTART = RestartUnit("kubelet.service")


@dataclass
class FakeProof:
    error: ClusterError | None = None
    asked: list[str] = field(default_factory=list)

    def registered(self) -> Node:
        self.asked.append("registered")
        if self.error:
            raise self.error
        return READY

    def ready(self, seen: Callable[[Node], None]) -> Node:
        self.asked.append("ready")
        seen(READY)
        return READY


@dataclass
class Scene:
    sight: Sight
    provider: FakeProvider = field(default_factory=FakeProvider)
    proof: FakeProof = field(default_factory=FakeProof)
    host: FakeHost = field(default_factory=FakeHost)

    def recovery(self) -> Recovery:
        config = load_text((self.host.read(CURRENT) or b"").decode(), CURRENT, {}, {}).config
        engine = engine_on(self.host, config)
        return Recovery(engine, self.provider.real, cast("Proof", self.proof), lambda: self.sight)


def test_a_node_that_came_back_meanwhile_is_left_alone() -> None:
    scene = Scene(WELL)
    assert scene.recovery().run().result == "done"
    assert (scene.provider.acts, scene.host.done) == ([], [])


def test_a_deleted_node_registers_anew_with_the_certificate_that_it_has() -> None:
    scene = Scene(replace(WELL, node=None, missing=True))
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.reason) == ("done", "Recovered")
    assert "its Node was deleted" in outcome.message
    assert (scene.provider.acts, scene.proof.asked) == ([], ["registered", "ready"])
    assert RESTART in scene.host.done


@pytest.mark.parametrize("standing", [Standing.UNREACHABLE, Standing.SIGN_IN_FAILED, Standing.DELETED])
def test_without_a_new_token_nothing_is_touched_and_it_is_tried_again(standing: Standing) -> None:
    scene = Scene(replace(WELL, certificate=False))
    scene.provider.answers["regenerateToken"] = Unanswered(Verdict(standing, "Not now."))
    before = scene.host.read(CURRENT)
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.reason, outcome.again) == ("failed", standing.value, True)
    assert "Not now." in outcome.message
    assert (scene.host.done, scene.host.read(CURRENT)) == ([], before)


@pytest.mark.parametrize("url", ["", "http://provider.example/x", "nonsense"])
def test_an_answer_without_a_good_url_touches_nothing(url: str) -> None:
    scene = Scene(replace(WELL, kubeconfig=False))
    scene.provider.answers["regenerateToken"] = {"configUrl": url}
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.again, scene.host.done) == ("failed", True, [])


def test_a_kubelet_that_does_not_come_back_is_told_with_its_cause() -> None:
    scene = Scene(replace(WELL, missing=True), proof=FakeProof(ClusterError("node-not-registered", "It hangs.")))
    outcome = scene.recovery().run()
    assert (outcome.result, outcome.reason, outcome.message) == ("failed", "node-not-registered", "It hangs.")
    assert outcome.again
