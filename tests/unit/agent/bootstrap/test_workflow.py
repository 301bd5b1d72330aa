"""Tests of the checks before a join, and of the configuration and service of the daemon after it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.bootstrap import workflow
from aks_flex_node.agent.bootstrap.management import describe_service, refuse_temporary_vpn
from aks_flex_node.agent.bootstrap.sources.config_url import FromConfigUrl, refuse_other_node
from aks_flex_node.agent.bootstrap.sources.source import FromLocalFile
from aks_flex_node.agent.bootstrap.workflow import Join
from aks_flex_node.agent.components import service
from aks_flex_node.agent.config import config_store
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.config.remote import ConfigBundle
from aks_flex_node.agent.context import ConfigSelection, DaemonMode, ledger_paths
from aks_flex_node.agent.machine import UNIT_FILE
from aks_flex_node.agent.paths import (
    CONFIG_COPY,
    CONFIG_URL_DIGEST,
    CONFIG_VERSION_FILE,
    CURRENT_CONFIG,
    DAEMON_STATE,
    NEXT_CONFIG,
)
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase
from aks_flex_node.api import config_urls
from aks_flex_node.errors import ConfigError, FlexError, MachineError
from aks_flex_node.host.actions import MakeDirectory, WriteFile
from tests.client_certificates import client_pem
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import DATA, Answers, config_of, empty_host, engine_on
from tests.unit.agent.config.builders import CLUSTER_ID, Settings, load_plain

if TYPE_CHECKING:
    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig


OTHER = CLUSTER_ID.replace("cluster-1", "cluster-2")


def config(room: Path, name: str = "edge-1", cluster: str = "") -> NodeConfig:
    more: Settings = {"azure.targetCluster.resourceId": cluster} if cluster else {}
    return config_of({"node.name": name, "paths.kubernetes.kubeletDir": str(room), **more})


def fetched(room: Path, wanted: NodeConfig, applied: NodeConfig | None = None, *, joined: bool = True) -> None:
    """Fetches a configuration on a machine that has joined, or started to join, as edge-1."""
    host = empty_host()
    host.apply(MakeDirectory(DATA))
    place = f"{DATA}/state.json"
    node_state.write(host, place, node_state.read(host, place).with_phase(Phase.NODE_JOINED, node="edge-1"))
    if joined:
        host.apply(MakeDirectory(f"{room}/pki"))
        host.apply(WriteFile(f"{room}/pki/kubelet-client-current.pem", client_pem().encode()))
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
    said = load_plain('{"config": {"azure": {"vpn": {"enabled": true}}}}', "https://rp.example")
    refuse_temporary_vpn(said)
    with pytest.raises(ConfigError, match="is enabled only by flag"):
        refuse_temporary_vpn(load_text('{"config": {}}', "https://rp.example", {}, {"azure.vpn.enabled": "true"}))


def join_of(engine: Engine, loaded: LoadedConfig, mode: DaemonMode | None = None) -> Join:
    """Returns a run whose components are applied."""
    source = FromLocalFile(engine.host, ConfigSelection(), loaded)
    join = Join(engine.host, source, ProgressReporter(), daemon_mode=mode)
    join.loaded, join.engine = source.fetch(join.progress), engine
    return join


LOCAL = {"config": {"node": {"maxPods": 33}, "azure": {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}}}}


def stored_after(
    mode: DaemonMode | None, loaded: LoadedConfig, host: RecordedHost | None = None
) -> dict[str, Any] | None:
    """Returns the configuration of the daemon after a run."""
    host = host or empty_host()
    host.apply(MakeDirectory(DATA))
    workflow.store_daemon_config(join_of(engine_on(host, loaded.config), loaded, mode))
    content = host.read(CURRENT_CONFIG)
    return None if content is None else dict(json.loads(content))


@pytest.mark.parametrize("mode", [DaemonMode.SERVICE, DaemonMode.FOREGROUND, DaemonMode.NONE, None])
def test_agent_stores_the_config_that_the_standalone_daemon_keeps(mode: DaemonMode | None) -> None:
    loaded = load_text(json.dumps(LOCAL), "file", {}, {"node.labels.shelf": "2"})
    found = stored_after(mode, loaded)
    if mode in {DaemonMode.SERVICE, DaemonMode.FOREGROUND}:
        assert found == {"config": {**LOCAL["config"], "node": {"maxPods": 33, "labels": {"shelf": "2"}}}}
    else:
        assert found is None


def test_bootstrap_updates_the_config_of_a_standalone_daemon() -> None:
    host, loaded = empty_host(), load_plain(json.dumps(LOCAL), "file")
    engine_on(host, loaded.config).apply(service.COMPONENT)  # an earlier `agent`
    assert stored_after(None, loaded, host)


def test_standalone_config_keeps_the_version_that_came_by_url() -> None:
    host = empty_host()
    config_store.save_standalone(host, json.dumps(LOCAL), "7")
    loaded = load_plain((host.read(CURRENT_CONFIG) or b"").decode(), "https://rp.example")
    assert (stored_after(DaemonMode.SERVICE, loaded, host) or {})["configVersion"] == "7"


def test_managed_node_stores_only_the_settings_of_the_machine() -> None:
    """They replace those of earlier runs, also in a configuration that is not applied yet."""
    host = empty_host()
    host.apply(MakeDirectory(DATA))
    stored = {"continuousMonitoring": True, "proxy": {"http": "http://old:1"}, "npd": {"enabled": False}}
    for path, version in ((CURRENT_CONFIG, "7"), (NEXT_CONFIG, "8")):
        host.apply(WriteFile(path, json.dumps({"config": stored, "configVersion": version}).encode()))
    flags = {"proxy.http": "", "proxy.https": "http://new:1", "node.maxPods": "50"}
    loaded = load_text(json.dumps(stored), CURRENT_CONFIG, {}, flags)
    assert loaded.config.proxy.http is None
    expected = {**stored, "proxy": {"https": "http://new:1"}}
    assert stored_after(None, loaded, host) == {"config": expected, "configVersion": "7"}
    assert json.loads(host.read(NEXT_CONFIG) or b"") == {"config": expected, "configVersion": "8"}
    assert host.read(CONFIG_COPY) == host.read(CURRENT_CONFIG)


def test_config_from_a_file_forgets_the_version_and_url_of_an_earlier_one() -> None:
    host = empty_host()
    host.apply(MakeDirectory(DATA))
    for path in (CONFIG_URL_DIGEST, CONFIG_VERSION_FILE, NEXT_CONFIG):
        host.apply(WriteFile(path, b"7\n"))
    loaded = replace(load_plain(json.dumps(LOCAL), "file"), file=Path("/etc/aks-flex-node/config.json"))
    assert "configVersion" not in (stored_after(DaemonMode.SERVICE, loaded, host) or {})
    assert [path for path in (CONFIG_URL_DIGEST, CONFIG_VERSION_FILE, NEXT_CONFIG) if host.stat(path)] == []


@pytest.mark.parametrize(
    ("before", "mode", "after"),
    [(True, DaemonMode.NONE, False), (True, None, True), (False, DaemonMode.SERVICE, True)],
)
def test_service_of_a_standalone_node_is_kept_added_or_removed(
    before: bool, mode: DaemonMode | None, after: bool
) -> None:
    host, loaded = empty_host(), load_plain(json.dumps(LOCAL), "file")
    engine = engine_on(host, loaded.config)
    if before:
        engine.apply(service.COMPONENT)
    workflow.set_up_service(join_of(engine, loaded, mode))
    assert (host.stat(UNIT_FILE) is not None) is after
    assert (host.unit(service.UNIT_NAME).active == "active") is after
    assert workflow.has_daemon_service(engine) is after


NODE = "/api/v1/nodes/edge-1"


@pytest.mark.parametrize("version", ["7", ""])
def test_bootstrap_only_node_writes_its_applied_config_to_the_node(version: str) -> None:
    host = empty_host()
    host.apply(MakeDirectory(DATA))
    if version:
        host.apply(WriteFile(CONFIG_VERSION_FILE, f"{version}\n".encode()))
    joined = NodeState().with_phase(Phase.NODE_JOINED, applied="2026-01-02T03:04:05Z")
    node_state.write(host, f"{DATA}/state.json", joined)
    api = Answers({("PATCH", NODE): [{}]})
    workflow.record_applied_config(engine_on(host), "edge-1", ProgressReporter(), api.client)
    assert api.asked == ([("PATCH", NODE)] if version else [])


@pytest.mark.parametrize("file", [None, Path(CURRENT_CONFIG), Path("/etc/aks-flex-node/config.json")])
def test_only_a_fetched_config_has_a_version_of_the_provider(file: Path | None) -> None:
    loaded = replace(load_plain(json.dumps(LOCAL), "https://rp.example"), file=file)
    assert join_of(engine_on(empty_host()), loaded).source.comes_from_provider is (
        file != Path("/etc/aks-flex-node/config.json")
    )


URL = config_urls.parse(f"https://rp.example/configs/{'a' * 43}")
BUNDLE = ConfigBundle('{"config": {"node": {"maxPods": 7}}}\n', "12")


def failing(engine: Engine, error: FlexError, *, is_first: bool = True) -> FlexError:
    source = FromConfigUrl(engine.host, ConfigSelection(url=URL), URL, BUNDLE, is_first)
    source.keep_fetched(error, lambda: engine)
    return error


def test_failed_preflight_keeps_the_fetched_config_for_the_next_run() -> None:
    host = empty_host()
    error = MachineError("preflight-failed", "Preflight found 1 problem.", "Nothing was changed. Fix the problems.")
    told = failing(engine_on(host), error)
    assert told.hint == (
        "Nothing was installed. Fix the problems. The configuration is stored: run the command again without the URL."
    )
    assert load_plain((host.read(CURRENT_CONFIG) or b"").decode(), CURRENT_CONFIG).config.node.max_pods == 7
    assert config_store.is_fetched_from(host, URL)
    assert Ledger(host, ledger_paths(config_of())).exists  # unbootstrap removes the directory


def test_config_of_a_joined_or_invalid_node_is_not_kept() -> None:
    host = empty_host()
    assert failing(engine_on(host), MachineError("preflight-failed", "No.", "Fix."), is_first=False).hint == "Fix."
    assert failing(engine_on(host), ConfigError("config-invalid", "No.", "Correct it.")).hint == "Correct it."
    assert host.stat(CURRENT_CONFIG) is None


def test_hint_is_true_when_the_config_cannot_be_stored() -> None:
    def broken() -> Engine:
        raise MachineError("disk-full", "Full.", "Free space.")

    error = MachineError("preflight-failed", "Preflight found 1 problem.", "Nothing was changed.")
    FromConfigUrl(empty_host(), ConfigSelection(url=URL), URL, BUNDLE, True).keep_fetched(error, broken)
    assert error.hint == "Nothing was changed."


def described(state: str, *, follows: bool = True, has_bound_key: bool = False) -> str:
    return describe_service(
        RecordedHost({DAEMON_STATE: state}), "edge-1", follows=follows, has_bound_key=has_bound_key
    )


def test_join_with_a_revoked_key_names_the_remedy() -> None:
    text = described('{"provider_state": "NodeKeyRevoked"}')
    assert "the provider refuses the key of this machine" in text
    assert "`aks-flex-rp node join-command --name edge-1`" in text
    assert "now manages" not in text


def test_join_with_a_new_url_does_not_repeat_an_earlier_refusal() -> None:
    assert "now manages this node" in described('{"provider_state": "NodeKeyRevoked"}', has_bound_key=True)


@pytest.mark.parametrize("state", ["", "{", "[]", "7", '{"provider_state": "Connected"}', '{"provider_state": []}'])
def test_join_says_that_the_service_manages_the_node(state: str) -> None:
    assert "aks-flex-node.service now manages this node." in described(state)
    assert "aks-flex-node.service now watches this node." in described(state, follows=False)
