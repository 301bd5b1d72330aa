"""Tests of a config URL for a different node than this machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.bootstrap.workflow import refuse_other_node, refuse_temporary_vpn
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_node.host.actions import MakeDirectory
from tests.unit.agent.builders import DATA, config_of, empty_host, engine_on
from tests.unit.agent.config.builders import CLUSTER_ID

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.config.models import NodeConfig

OTHER = CLUSTER_ID.replace("cluster-1", "cluster-2")


def config(room: Path, name: str = "edge-1", cluster: str = "") -> NodeConfig:
    more: dict[str, object] = {"azure.targetCluster.resourceId": cluster} if cluster else {}
    return config_of({"node.name": name, "paths.kubernetes.kubeletDir": str(room), **more})


def fetched(room: Path, wanted: NodeConfig, applied: NodeConfig | None = None, *, joined: bool = True) -> None:
    """Fetches a configuration on a machine that has joined, or started to join, as edge-1."""
    host = empty_host()
    host.apply(MakeDirectory(DATA))
    place = f"{DATA}/state.json"
    node_state.write(host, place, node_state.read(host, place).with_phase(Phase.NODE_JOINED, node="edge-1"))
    (room / "pki").mkdir()
    if joined:
        (room / "pki/kubelet-client-current.pem").touch()
    refuse_other_node(engine_on(host, wanted), applied)


def test_new_bundle_for_the_same_node_is_accepted(tmp_path: Path) -> None:
    same = config(tmp_path, cluster=CLUSTER_ID)
    fetched(tmp_path, same, config(tmp_path, cluster=CLUSTER_ID.replace("sub-1", "SUB-1")))


def test_bundle_for_another_node_name_is_refused_with_both_names(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"is node edge-1 .* for node edge-2") as caught:
        fetched(tmp_path, config(tmp_path, "edge-2"))
    assert caught.value.name == "config-node-mismatch"


def test_bundle_for_same_node_name_in_another_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"cluster-1.*cluster-2"):
        fetched(tmp_path, config(tmp_path, cluster=OTHER), config(tmp_path, cluster=CLUSTER_ID))


def test_bundle_is_accepted_by_node_name_when_the_cluster_is_unknown(tmp_path: Path) -> None:
    fetched(tmp_path, config(tmp_path, cluster=OTHER), config(tmp_path))


def test_unjoined_machine_accepts_a_bundle_for_another_node(tmp_path: Path) -> None:
    fetched(tmp_path, config(tmp_path, "edge-2", OTHER), config(tmp_path, cluster=CLUSTER_ID), joined=False)


def test_vpn_enabled_only_by_flag_is_refused() -> None:
    said = load_text('{"config": {"azure": {"vpn": {"enabled": true}}}}', "https://rp.example", {}, {})
    refuse_temporary_vpn(said)
    with pytest.raises(ConfigError, match="is enabled only by flag"):
        refuse_temporary_vpn(load_text('{"config": {}}', "https://rp.example", {}, {"azure.vpn.enabled": "true"}))
