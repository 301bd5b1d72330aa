"""Follows the remedies of nodes that do not become Ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.cluster.readiness import NodeReadiness, ReadinessEnvironment
from aks_flex_node.agent.components import containerd
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import RestartUnit, WriteFile
from aks_flex_node.host.host import CommandResult, UnitState
from tests.client_certificates import client_pem
from tests.remedies.catalogue import advice
from tests.unit.agent.builders import Answers
from tests.unit.agent.cluster.test_readiness import NODE, document
from tests.unit.agent.cluster.test_readiness import Scene as NodeScene
from tests.unit.agent.drift.test_detection import PLUGINS, SPACE, WITHOUT_CRI, WORKING, reconciled_host

if TYPE_CHECKING:
    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.host.actions import Action

CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
NO_CRI = "failed to run Kubelet: validate service connection: CRI v1 runtime API is not implemented for endpoint"


@pytest.mark.remedy("node-not-ready")
def test_node_is_ready_when_the_network_plugin_runs() -> None:
    waits: dict[str, Any] = document("False")
    waits["spec"] = {}
    waits["status"]["conditions"][0]["message"] = "container runtime network not ready: cni plugin not initialized"
    scene = NodeScene(waits)
    error = scene.fails()
    assert error.name == "node-not-ready"

    advice("node-not-ready", "the network plugin of the cluster does not run on the node yet")
    advice("node-not-ready", "Correct the reason, then run the same command again.")
    scene.api.answers["GET", NODE] = [waits, document()]
    scene.prove()


@pytest.mark.remedy("container-runtime-without-cri")
def test_runtime_serves_the_cri_when_there_is_space() -> None:
    engine = reconciled_host()
    host, known, apply = engine.host, engine.host.query, engine.host.apply
    answers = {PLUGINS: CommandResult(0, WITHOUT_CRI), SPACE: CommandResult(0, "Avail\n4096\n")}
    kubelet = [UnitState("kubelet.service", exists=True, enabled=True, active="activating", restarts=3)]
    unit = host.unit

    def query(*argv: str, seconds: float = 10.0) -> CommandResult:
        if argv[0] == "journalctl":
            return CommandResult(0, NO_CRI if kubelet else "")
        return answers.get(argv) or known(*argv, seconds=seconds)

    def do(action: Action) -> None:
        apply(action)
        if (
            isinstance(action, RestartUnit)
            and action.name == "containerd.service"
            and "4096" not in answers[SPACE].out
        ):
            answers[PLUGINS] = CommandResult(0, WORKING)
            kubelet.clear()  # systemd restarts it, and it finds the CRI

    host.query, host.apply = query, do  # type: ignore[method-assign]
    host.unit = lambda name: kubelet[0] if kubelet and name == "kubelet.service" else unit(name)  # type: ignore[method-assign]
    host.apply(WriteFile(CERTIFICATE, client_pem().encode(), 0o600))

    def run_bootstrap() -> None:
        """Does what the command does: applies the component, then waits for the node."""
        engine.apply(containerd.COMPONENT)
        api = cast("ApiClient", Answers({("GET", NODE): [document()], ("GET", "/version"): [{}]}))
        now = [0.0]
        environment = ReadinessEnvironment(
            lambda: not kubelet,
            lambda: now[0],
            lambda seconds: now.__setitem__(0, now[0] + seconds),
            api,
            lambda: 0.0,
        )
        NodeReadiness(host, engine.config, "edge-1", lambda _: None, environment).wait_registered()

    with pytest.raises(FlexError) as caught:
        run_bootstrap()
    assert caught.value.name == "container-runtime-without-cri"

    advice(
        "container-runtime-without-cri",
        "Free space on that disk, then run the same command again. It restarts containerd.",
    )
    answers[SPACE] = CommandResult(0, "Avail\n99999999999\n")
    run_bootstrap()
