"""Tests of the sources of settings and of their precedence."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.config.config_store import applied_config_text
from aks_flex_node.agent.config.files import find_config
from aks_flex_node.agent.config.loader import (
    load,
    load_fetch_settings,
    load_machine_settings,
    load_text,
    missing_for_join,
)
from aks_flex_node.agent.config.resolved import ca_certificate, log_file, target_cluster
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.errors import ConfigError
from aks_flex_node.settings.models import NodeConfig
from tests.unit.agent.config.builders import CA, CLUSTER_ID, PEM, Settings, load_plain, load_settings, problems_of

if TYPE_CHECKING:
    from pathlib import Path


def test_flags_override_environment_and_environment_overrides_file() -> None:
    text = '{"node": {"maxPods": 10, "name": "from-file", "ip": "10.0.0.1"}}'
    env = {"AKS_FLEX_NODE_NODE__MAX_PODS": "20", "AKS_FLEX_NODE_NODE__NAME": "from-environment", "HOME": "/root"}

    loaded = load_text(text, "a.json", env, {"node.maxPods": "30"})

    node = loaded.config.node
    assert (node.max_pods, node.name, node.ip) == (30, "from-environment", "10.0.0.1")
    assert loaded.origins["node.maxPods"] == "flag --set node.maxPods"
    assert loaded.origins["node.name"] == "environment AKS_FLEX_NODE_NODE__NAME"
    assert loaded.origins["node.ip"] == "a.json:1"
    assert "kubernetes.version" not in loaded.origins


def test_environment_values_for_maps_and_lists_are_json() -> None:
    env = {
        "AKS_FLEX_NODE_NODE__LABELS": '{"site": "one"}',
        "AKS_FLEX_NODE_PROXY__NO_PROXY": '[".example.com"]',
        "AKS_FLEX_NODE_AZURE__MANAGED_IDENTITY": "{}",
        "AKS_FLEX_NODE_NODE__NAME": "",
    }

    config = load_text("{}", "a.json", env, {}).config

    assert config.node.labels == {"site": "one"}
    assert config.proxy.no_proxy == (".example.com",)
    assert config.azure.managed_identity is not None
    assert config.node.name is None


def test_single_map_entry_can_be_set_without_replacing_the_others() -> None:
    flags = {"node.labels.example.com/site": "two", "node.kubelet.evictionHard.memory.available": "1Gi"}

    config = load_settings({"node.labels": {"a": "b"}}, flags).config

    assert config.node.labels == {"a": "b", "example.com/site": "two"}
    assert config.node.kubelet.eviction_hard["memory.available"] == "1Gi"
    assert config.node.kubelet.eviction_hard["nodefs.available"] == "10%"


def test_empty_flag_returns_a_setting_to_its_default() -> None:
    values = {"node.ip": "10.0.0.9", "node.maxPods": 30, "proxy.noProxy": ["a"], "containerd.metricsAddress": ":1"}
    flags = dict.fromkeys(values, "")

    loaded = load_settings(values, flags)

    assert (loaded.config.node.ip, loaded.config.node.max_pods, loaded.config.proxy.no_proxy) == (None, 110, ())
    assert loaded.config.containerd.metrics_address == "", "an empty text is a value of it"


def test_free_map_entries_are_parsed_as_json_when_possible() -> None:
    flags = {
        "node.kubelet.extraConfig.registryPullQPS": "7",
        "registryMirrors.docker.io": '["https://mirror.example"]',
    }

    config = load_settings({}, flags).config

    assert config.node.kubelet.extra_config == {"registryPullQPS": 7}
    assert config.registry_mirrors == {"docker.io": ("https://mirror.example",)}


def test_loader_unwraps_a_config_bundle() -> None:
    loaded = load_plain('{"configVersion": "1",\n "config": {"node":\n {"maxPods": 50}}}', "bundle")

    assert loaded.config.node.max_pods == 50
    assert loaded.origins["node.maxPods"] == "bundle:3"


def test_yaml_text_values_are_kept_as_text() -> None:
    text = """\
kubernetes: {version: v1.30.0}
node:
  labels: {on: yes, zone: 1}
  taints: [{key: a, value: 1, effect: NoExecute}]
npd: {enabled: no}
agent:
"""

    config = load_plain(text, "a.yaml").config

    assert config.kubernetes.version == "1.30.0"
    assert config.node.labels == {"on": "yes", "zone": "1"}
    assert config.node.taints[0].value == "1"
    assert config.npd.enabled is False


def test_yaml_version_is_not_read_as_a_number() -> None:
    (problem,) = problems_of("kubernetes:\n  version: 1.30\n")

    assert problem.value == '"1.30"'
    assert "patch version" in problem.reason
    assert problem.origin == "test:2"


def test_names_of_the_design_documents_and_of_variables_are_accepted() -> None:
    config = load_settings(
        {
            "azure.arc.autoRegister": True,
            "agent.logDir": "/var/log/flex",
            "node.max_pods": 7,
        }
    ).config

    assert config.azure.arc.enabled
    assert log_file(config) == "/var/log/flex/agent.log"
    assert config.node.max_pods == 7


@pytest.mark.parametrize(
    "azure",
    [
        {"targetCluster": {"resourceId": CLUSTER_ID}},
        {"targetCluster": {"resourceId": CLUSTER_ID.lower()}, "subscriptionId": "SUB-1"},
        {"targetCluster": {"name": "cluster-1", "resourceGroup": "group-1"}, "subscriptionId": "sub-1"},
        {"arc": {"targetCluster": {"name": "cluster-1"}}, "resourceGroup": "group-1", "subscriptionId": "sub-1"},
        {
            "arc": {"targetCluster": {"name": "cluster-1", "resourceGroup": "group-1"}},
            "targetCluster": {"resourceId": CLUSTER_ID},
            "resourceGroup": "another",
        },
    ],
)
def test_target_cluster_is_accepted_in_each_form(azure: object) -> None:
    assert target_cluster(load_settings({"azure": azure}).config) == ("sub-1", "group-1", "cluster-1")


def test_incomplete_target_cluster_is_none() -> None:
    assert target_cluster(load_settings({"azure.arc.targetCluster.name": "c"}).config) is None
    assert target_cluster(NodeConfig()) is None


@pytest.mark.parametrize("certificate", [CA, PEM, "\n".join(CA[at : at + 64] for at in range(0, len(CA), 64))])
def test_ca_certificate_is_accepted_as_pem_or_base64(certificate: str) -> None:
    assert ca_certificate(load_settings({"node.kubelet.caCertData": certificate}).config) == PEM.encode()


def test_partial_config_loads_and_lists_settings_missing_for_a_join() -> None:
    config = load_settings({"node.maxPods": 20}).config

    assert [problem.path for problem in missing_for_join(config)] == [
        "node.kubelet.serverURL",
        "node.kubelet.caCertData",
        "azure.bootstrapToken.tokenFile",
        "kubernetes.version",
    ]


def test_config_file_of_the_variable_precedes_that_of_the_default_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    variable = tmp_path / "variable.json"

    assert find_config({"AKS_FLEX_NODE_CONFIG": str(variable)}, tmp_path) == variable
    assert find_config({}, tmp_path) == tmp_path / "config.json"
    assert find_config({}, tmp_path / "none") is None


def test_config_file_is_optional_when_flags_give_settings() -> None:
    assert load((), {}, {"node.maxPods": "9"}).config.node.max_pods == 9
    with pytest.raises(ConfigError) as caught:
        load((), {}, {})
    assert caught.value.name == "config-not-found"


def test_two_config_files_in_the_default_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "config.yml").write_text("")

    with pytest.raises(ConfigError) as caught:
        find_config({}, tmp_path)

    assert caught.value.name == "config-ambiguous"


def test_loading_a_json_file_does_not_import_yaml() -> None:
    had = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ("yaml", "_yaml")}
    try:
        load_plain("{}")
        assert "yaml" not in sys.modules
    finally:
        sys.modules.update(had)


def test_one_time_flags_can_be_omitted_from_the_stored_config(tmp_path: Path) -> None:
    client = "azure.servicePrincipal.clientId"
    file = tmp_path / "config.json"
    file.write_text('{"azure": {"arc": {"enabled": true}}}')
    file.chmod(0o600)
    loaded = load(file, {}, {client: "1", "azure.servicePrincipal.clientSecret": "for-this-run"})
    assert "for-this-run" in loaded.text()
    assert json.loads(loaded.text("azure.servicePrincipal."))["config"]["azure"] == {"arc": {"enabled": True}}

    file.write_text('{"azure": {"servicePrincipal": {"clientId": "1", "clientSecret": "for-good"}}}')
    assert "for-good" in load(file, {}, {}).text("azure.servicePrincipal.")


@pytest.mark.parametrize(
    ("arc", "enabled"),
    [
        ({"machineName": "edge-1"}, True),
        ({"resourceGroup": "group-1"}, True),
        ({"location": "westeurope"}, True),
        ({"tags": {"site": "one"}}, True),
        ({"autoRoleAssignment": True}, True),
        ({"autoRoleAssignment": False}, False),
        ({"targetCluster": {"name": "cluster-1"}}, False),
        ({"package": {"install": False}}, False),
        ({}, False),
    ],
    ids=str,
)
def test_arc_is_enabled_by_settings_that_describe_its_machine(arc: Settings, enabled: bool) -> None:
    loaded = load_settings({"azure.arc": arc})
    assert (loaded.config.azure.arc.enabled, loaded.warnings) == (enabled, [])
    assert ("azure.arc.enabled" in loaded.origins) == enabled


@pytest.mark.parametrize("name", ["a file", CURRENT_CONFIG])
def test_stored_configuration_keeps_the_described_arc_machine(name: str) -> None:
    given = load_plain(json.dumps({"config": {"azure": {"arc": {"machineName": "edge-1"}}}}), name)
    assert given.config.azure.arc.enabled
    assert load_plain(given.text(), CURRENT_CONFIG).config.azure.arc.enabled


def test_arc_key_that_is_false_in_the_environment_does_not_enable_arc() -> None:
    env = {"AKS_FLEX_NODE_AZURE__ARC__AUTO_ROLE_ASSIGNMENT": "no"}
    assert not load_text("{}", "a.json", env, {}).config.azure.arc.enabled


@pytest.mark.parametrize("key", ["enabled", "autoRegister"])
def test_disabled_arc_stays_off_and_unused_settings_give_a_warning(key: str) -> None:
    loaded = load_settings({f"azure.arc.{key}": False, "azure.arc.machineName": "edge-1"})
    assert not loaded.config.azure.arc.enabled
    assert loaded.warnings == ["azure.arc.enabled is false, so these settings are not used: azure.arc.machineName."]

    stored = load_plain(applied_config_text(loaded.config))
    assert not stored.config.azure.arc.enabled


def test_unknown_names_of_the_stored_config_do_not_stop_a_join_by_url() -> None:
    stored = '{"config": {"proxy": {"https": "http://proxy.example:3128"}, "later": {"x": 1}}}'
    own = load_machine_settings(stored, None)
    assert load_fetch_settings({}, {}, own).proxy.https == "http://proxy.example:3128"
