"""Tests of the checks before a command: Azure changes are shown, and the loss of a node is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.arc.registration_state import ArcRecordStore
from aks_flex_node.agent.bootstrap import prerequisites
from aks_flex_node.agent.cli import exec_credential
from aks_flex_node.agent.components.vpn import record_file
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import VPN_PHASES, Phase
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import WriteFile
from tests.unit.agent.builders import DATA, config_of, empty_host, engine_on

if TYPE_CHECKING:
    from tests.unit.agent.config.builders import Settings

BY_TOKEN: Settings = {"azure.arc.enabled": True}
EXEC: Settings = {**BY_TOKEN, "node.kubelet.auth": "exec"}
CERTIFICATE: Settings = {**BY_TOKEN, "node.kubelet.auth": "certificate"}
PRINCIPAL: Settings = {
    "azure.servicePrincipal.clientId": "a",
    "azure.servicePrincipal.clientSecret": "s",
    "node.kubelet.auth": "exec",
}


@pytest.mark.parametrize(
    ("settings", "lost"), [(EXEC, True), (BY_TOKEN, False), (CERTIFICATE, False), (PRINCIPAL, False)]
)
def test_arc_removal_is_refused_when_the_kubelet_authenticates_through_arc(settings: Settings, lost: bool) -> None:
    config = config_of(settings)
    if not lost:
        return prerequisites.refuse_arc_in_use(config)
    with pytest.raises(MachineError) as caught:
        prerequisites.refuse_arc_in_use(config)
    assert caught.value.name == "arc-in-use"
    assert "unbootstrap" in caught.value.hint
    return None


@pytest.mark.parametrize(
    ("phase", "enabled", "lost"),
    [(Phase.NODE_JOINED, True, True), (Phase.NODE_JOINED, False, False), (Phase.VPN_CONNECTED, True, False)],
)
def test_vpn_removal_is_refused_for_a_node_behind_the_vpn(phase: Phase, enabled: bool, lost: bool) -> None:
    host, config = empty_host(), config_of({"azure.vpn.enabled": enabled})
    node_state.write(host, f"{DATA}/state.json", node_state.NodeState().with_phase(phase, node="edge-1"))
    if not lost:
        return prerequisites.refuse_vpn_in_use(engine_on(host, config))
    with pytest.raises(MachineError, match="Node edge-1 reaches its cluster through this VPN") as caught:
        prerequisites.refuse_vpn_in_use(engine_on(host, config))
    assert caught.value.name == "vpn-in-use"
    return None


@pytest.mark.parametrize(
    ("before", "during", "after"),
    [
        (Phase.NOT_STARTED, Phase.VPN_BOOTSTRAPPING, Phase.VPN_CONNECTED),
        (Phase.VPN_FAILED, Phase.VPN_BOOTSTRAPPING, Phase.VPN_CONNECTED),
        (Phase.NODE_JOINED, Phase.NODE_JOINED, Phase.NODE_JOINED),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_prerequisite_outside_of_a_join_records_its_phases(
    before: Phase, during: Phase, after: Phase, fails: bool
) -> None:
    engine = engine_on(empty_host(), config_of({}))
    node_state.save(engine.host, engine.config, node_state.NodeState(phase=before))
    with (
        contextlib.suppress(MachineError),
        prerequisites.record_stage(engine, "vpn", VPN_PHASES, earlier=[Phase.NOT_STARTED]),
    ):
        assert node_state.load(engine.host, engine.config).phase is during
        if fails:
            raise MachineError("vpn-away", "The VPN is away.")
    state = node_state.load(engine.host, engine.config)
    failure = (Phase.VPN_FAILED, "vpn", "vpn-away")
    is_recorded = fails and before is not Phase.NODE_JOINED
    assert (state.phase, state.step, state.error) == (failure if is_recorded else (after, "", ""))


def test_azure_cleanup_steps_are_described() -> None:
    host, config = empty_host(), config_of({})
    assert prerequisites.describe_azure_cleanup(host, config) == []
    ArcRecordStore(host, config).update(machine="/m", connected=True, installed=True, assignments=("/a",))
    host.apply(WriteFile(record_file(config), json.dumps({"gateway": "/g", "roots": ["ours"]}).encode()))
    assert prerequisites.describe_azure_cleanup(host, config) == [
        "remove this machine's certificate from /g",
        "delete the role assignment /a",
        "unregister /m from Azure Arc",
        "remove azcmagent, its users and its directories",
    ]


class RootOnlyPath(type(Path())):  # type: ignore[misc]
    """A file that only root can read."""

    def read_text(self, *_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")


def test_print_credential_requires_root() -> None:
    with pytest.raises(MachineError) as caught:
        exec_credential.print_credential(RootOnlyPath("/identity.json"))
    assert caught.value.name == "root-required"
