"""A URL that is for another node than this machine already is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.bootstrap.workflow import (
    keep_fetched_on_failure,
    refuse_other_node,
    refuse_temporary_vpn,
)
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.config.remote import ConfigBundle
from aks_flex_node.agent.context import ledger_paths
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.api import config_urls
from aks_flex_node.errors import ConfigError, FlexError, MachineError
from aks_flex_node.host.actions import MakeDirectory
from tests.unit.agent.builders import DATA, config_of, empty_host, engine_on
from tests.unit.agent.config.builders import CLUSTER_ID

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.reconcile.engine import Engine

OTHER = CLUSTER_ID.replace("cluster-1", "cluster-2")


def config(room: Path, name: str = "edge-1", cluster: str = "") -> NodeConfig:
    more: dict[str, object] = {"azure.targetCluster.resourceId": cluster} if cluster else {}
    return config_of({"node.name": name, "paths.kubernetes.kubeletDir": str(room), **more})


def fetched(room: Path, wanted: NodeConfig, applied: NodeConfig | None = None, *, joined: bool = True) -> None:
    """A machine that is (or was about to be) edge-1 is given this."""
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


URL = config_urls.parse(f"https://rp.example/configs/{'a' * 43}")
BUNDLE = ConfigBundle('{"config": {"node": {"maxPods": 7}}}\n', "12")


def failing(engine: Engine, error: FlexError, bundle: ConfigBundle | None = BUNDLE) -> FlexError:
    with pytest.raises(FlexError) as caught, keep_fetched_on_failure(lambda: engine, bundle, URL):
        raise error
    return caught.value


def test_failed_preflight_keeps_the_fetched_config_for_the_next_run() -> None:
    host = empty_host()
    error = MachineError("preflight-failed", "Preflight found 1 problem.", "Nothing was changed. Fix the problems.")
    told = failing(engine_on(host), error)
    assert told.hint == (
        "Nothing was installed. Fix the problems. The configuration is stored: run the command again without the URL."
    )
    assert load_text((host.read(CURRENT_CONFIG) or b"").decode(), CURRENT_CONFIG, {}, {}).config.node.max_pods == 7
    assert config_store.is_fetched_from(host, URL)
    assert Ledger(host, ledger_paths(config_of())).exists  # unbootstrap removes the directory


def test_config_of_a_joined_or_invalid_node_is_not_kept() -> None:
    host = empty_host()
    assert failing(engine_on(host), MachineError("preflight-failed", "No.", "Fix."), None).hint == "Fix."
    assert failing(engine_on(host), ConfigError("config-invalid", "No.", "Correct it.")).hint == "Correct it."
    assert host.stat(CURRENT_CONFIG) is None


def test_hint_is_true_when_the_config_cannot_be_stored() -> None:
    def broken() -> Engine:
        raise MachineError("disk-full", "Full.", "Free space.")

    with pytest.raises(MachineError) as caught, keep_fetched_on_failure(broken, BUNDLE, URL):
        raise MachineError("preflight-failed", "Preflight found 1 problem.", "Nothing was changed.")
    assert caught.value.hint == "Nothing was changed."
