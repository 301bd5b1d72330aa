"""Tests of the internal commands, the stored configuration, and its precedence over the configuration file."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent import context
from aks_flex_node.agent.aks_pool.pool_facts import POOL_FACTS_FILE, PoolFacts
from aks_flex_node.agent.aks_pool.pool_ids import parse_pool_id
from aks_flex_node.agent.bootstrap import management
from aks_flex_node.agent.cli import main
from aks_flex_node.agent.config.loader import load, load_text
from aks_flex_node.agent.context import ConfigSelection
from aks_flex_node.errors import ConfigError
from aks_flex_node.settings.base import to_document
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import CLUSTER_ID, PEM, TOKEN, Settings, load_plain, load_settings, settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aks_flex_node.settings.models import NodeConfig

CANARY = "canary-8Q~never-to-be-seen"
PRINCIPAL = {"azure.servicePrincipal.tenantId": "t", "azure.servicePrincipal.clientId": "c"}
CLUSTER = {"azure.targetCluster.resourceId": CLUSTER_ID}
SECRET = "azure.servicePrincipal.clientSecret"


def exit_code_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["aks-flex-node", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize("words", [["daemon"], ["job", "update"]])
def test_daemon_and_job_commands_require_root(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert exit_code_of(monkeypatch, *words) == 4
    assert "root-required" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["job"], ["job", "bake"], ["job", "--help"]])
def test_unknown_job_is_refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(monkeypatch, *words) == 2
    assert "job-unknown" in capsys.readouterr().err


WAYS: dict[str, tuple[Settings, dict[str, str], Settings]] = {
    "in the file": ({**JOIN, **PRINCIPAL, SECRET: CANARY}, {}, {}),
    "in files": (
        {**PRINCIPAL, "azure.bootstrapToken.tokenFile": "{room}/token", f"{SECRET}File": "{room}/secret"},
        {},
        {},
    ),
    "in the environment": (
        {**JOIN, **PRINCIPAL},
        {"AKS_FLEX_NODE_AZURE__SERVICE_PRINCIPAL__CLIENT_SECRET": CANARY},
        {},
    ),
    "on the command line": ({**JOIN, **PRINCIPAL}, {}, {SECRET: CANARY}),
    "a file in place of what the file says": (
        {**JOIN, **PRINCIPAL, SECRET: "x"},
        {},
        {f"{SECRET}File": "{room}/secret"},
    ),
}


def in_room(values: Mapping[str, object], room: Path) -> dict[str, Any]:
    return {
        key: value.replace("{room}", str(room)) if isinstance(value, str) else value for key, value in values.items()
    }


@pytest.mark.parametrize("way", WAYS)
def test_stored_config_loads_without_the_secret_files_it_came_from(way: str, tmp_path: Path) -> None:
    for name, content in (("token", TOKEN), ("secret", CANARY)):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(f"{content}\n")
    given, environment, flags = WAYS[way]
    text = settings(in_room(given, tmp_path))
    loaded = load_text(text, "test", in_room(environment, tmp_path), in_room(flags, tmp_path))
    kept = loaded.text()
    for name in ("token", "secret"):
        (tmp_path / name).unlink()
    again = load_plain(kept).config
    assert secrets(again) == (TOKEN, CANARY)
    assert plain(again) == plain(loaded.config)
    assert CANARY not in repr(loaded)


def secrets(config: NodeConfig) -> tuple[str, str]:
    token, principal = config.azure.bootstrap_token, config.azure.service_principal
    assert token
    assert token.token
    assert principal
    assert principal.client_secret
    return token.token.reveal(), principal.client_secret.reveal()


def plain(config: NodeConfig) -> dict[str, Any]:
    """Returns the configuration without the paths of files that are no longer needed."""
    document = to_document(config)
    document["azure"]["bootstrapToken"].pop("tokenFile")
    document["azure"]["servicePrincipal"].pop("clientSecretFile")
    document["node"]["kubelet"].pop("caCertFile")
    return document


def test_stored_config_contains_the_cluster_ca_content(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(PEM)
    given = {**JOIN, "node.kubelet.caCertFile": str(tmp_path / "ca.crt")}
    del given["node.kubelet.caCertData"]
    kept = load_settings(given).text()
    (tmp_path / "ca.crt").unlink()
    found = load_plain(kept).config.node.kubelet.ca_cert_data
    assert base64.b64decode(found or "").decode().strip() == PEM.strip()


def test_stored_config_keeps_maps_lists_and_proxy_password() -> None:
    given = {
        **JOIN,
        "node.labels": {"site": "north", "example.com/rack": "7"},
        "node.taints": ["edge=yes:NoSchedule"],
        "proxy.https": f"http://me:{CANARY}@proxy.example:3128",
        "proxy.noProxy": ["10.0.0.0/8"],
    }
    loaded = load_settings(given, {"node.labels.shelf": "2"})
    again = load_plain(loaded.text()).config
    assert again == loaded.config
    assert again.proxy.https == given["proxy.https"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Yields a directory in place of the agent's file paths."""
    monkeypatch.setattr(context, "UNIT_FILE", str(tmp_path / "unit"))
    monkeypatch.setattr(context, "CURRENT_CONFIG", str(tmp_path / "current"))
    monkeypatch.setenv("AKS_FLEX_NODE_CONFIG", str(tmp_path / "file"))
    for name, pods in (("current", 11), ("file", 22)):
        (tmp_path / name).touch(mode=0o600)
        settings = {"node": {"maxPods": pods}, "continuousMonitoring": True}
        (tmp_path / name).write_text(json.dumps({"config": settings}))
    return tmp_path


def test_node_is_managed_only_with_daemon_unit_and_stored_config(machine: Path) -> None:
    assert not context.is_managed()
    (machine / "unit").touch()
    assert context.is_managed()
    (machine / "current").write_text(json.dumps({"node": {"maxPods": 11}}))
    assert not context.is_managed()  # the daemon of a standalone node
    (machine / "current").write_text("{")
    assert context.is_managed()  # a damaged configuration is reported, not replaced
    (machine / "current").unlink()
    assert not context.is_managed()


def test_managed_node_uses_the_stored_config_over_the_config_file(machine: Path) -> None:
    assert context.load_config(ConfigSelection()).config.node.max_pods == 22
    (machine / "unit").touch()
    assert context.load_config(ConfigSelection()).config.node.max_pods == 11
    assert context.load_config(ConfigSelection(machine / "file")).config.node.max_pods == 22


POOL = parse_pool_id(f"{CLUSTER_ID}/agentPools/edge")


def test_pool_node_uses_its_stored_config_over_the_config_file(machine: Path) -> None:
    (machine / "unit").touch()
    azure = {"targetCluster": {"resourceId": CLUSTER_ID}, "targetAgentPoolName": "edge", "managedIdentity": {}}
    (machine / "current").write_text(json.dumps({"config": {"azure": azure, "node": {"maxPods": 11}}}))
    assert context.stored_source() == "aksPool"
    assert not context.is_managed()
    assert context.load_config(ConfigSelection()).config.node.max_pods == 11
    assert context.load_config(ConfigSelection(pool=POOL)).origins["azure.targetAgentPoolName"] == "flag --aks-pool"


def test_stored_pool_settings_complete_the_file_of_a_joined_node(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet = {"serverURL": "https://api.example:443"}
    settings = {"kubernetes": {"version": "1.34.2"}, "node": {"labels": {"a": "pool"}, "kubelet": kubelet}}
    host = RecordedHost()
    POOL_FACTS_FILE.write(host, PoolFacts(str(POOL), settings))
    monkeypatch.setattr(context, "RealHost", lambda: host)
    (machine / "file").write_text(json.dumps({"node": {"labels": {"b": "file"}}}))
    (machine / "current").unlink()

    config = context.load_config(ConfigSelection(pool=POOL)).config
    assert (config.kubernetes.version, config.node.labels) == ("1.34.2", {"a": "pool", "b": "file"})
    assert config.node.kubelet.server_url == "https://api.example:443"
    other = parse_pool_id(f"{CLUSTER_ID}/agentPools/other")
    assert context.load_config(ConfigSelection(pool=other)).config.kubernetes.version is None


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "cluster-id-missing"),
        (CLUSTER, "azure-identity-missing"),
        ({**CLUSTER, **PRINCIPAL}, "azure-identity-incomplete"),
        ({**CLUSTER, "azure.servicePrincipal.clientId": "c", SECRET: "s"}, "azure-identity-incomplete"),
        ({**CLUSTER, **PRINCIPAL, SECRET: "s", "azure.cloud": "Elsewhere"}, "cloud-unknown"),
    ],
    ids=str,
)
def test_management_is_refused_without_cluster_or_azure_identity(values: Settings, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        management.check_management(load_settings({**JOIN, **values}).config, "edge-1", is_key_bound=False)
    assert caught.value.name == name


@pytest.mark.parametrize(
    "identity", [{**PRINCIPAL, SECRET: "s"}, {"azure.managedIdentity": {}}, {"azure.managedIdentity.clientId": "c"}]
)
def test_management_is_accepted_with_cluster_and_azure_identity(identity: Settings) -> None:
    management.check_management(load_settings({**JOIN, **CLUSTER, **identity}).config, "edge-1", is_key_bound=False)


def test_management_is_accepted_with_a_bound_key_and_no_azure_identity() -> None:
    management.check_management(load_settings({**JOIN, **CLUSTER}).config, "edge-1", is_key_bound=True)


def test_stored_config_loads_without_warnings(machine: Path) -> None:
    assert load(machine / "current", {}, {}).warnings == []


def managed(**values: object) -> NodeConfig:
    return load_settings({**JOIN, "continuousMonitoring": True, **values}).config


def test_local_settings_on_a_managed_node_give_a_warning() -> None:
    told = management.ignored_settings_warning(managed(**{"node.maxPods": 50}), managed())
    assert "restores the configuration of the node resource" in told
    assert management.ignored_settings_warning(managed(), managed()) == ""
    standalone = load_settings(JOIN).config
    assert "restores that configuration" in management.ignored_settings_warning(managed(), standalone)
