"""Tests of base-config.json, as `az aks nodepool get-bootstrap-data` prints it, and of several files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.config.loader import load, load_text, missing_for_join
from aks_flex_node.agent.config.problems import InvalidConfigError
from aks_flex_node.agent.config.sources import SettingsSource
from tests.unit.agent.aks_pool.test_bootstrap_data import DATA
from tests.unit.agent.config.builders import CLUSTER_ID, TOKEN, load_plain, load_settings, problems_of

if TYPE_CHECKING:
    from pathlib import Path

PRINTED: dict[str, Any] = {
    **DATA,
    "node": {**DATA["node"], "labels": {"kubernetes.azure.com/nodepool-type": "FlexNodes"}},
}


def write(file: Path, document: object) -> Path:
    file.write_text(json.dumps(document, indent=2))
    file.chmod(0o600)
    return file


def test_printed_bootstrap_data_is_a_complete_configuration() -> None:
    loaded = load_plain(json.dumps(PRINTED, indent=2), "base-config.json")
    config = loaded.config
    assert missing_for_join(config) == []
    assert loaded.warnings == []
    assert config.azure.bootstrap_token
    assert config.azure.bootstrap_token.token
    assert config.azure.bootstrap_token.token.reveal() == TOKEN
    assert config.azure.target_agent_pool_name == "edge"
    assert config.azure.resource_manager == "https://management.azure.com"
    assert (config.kubernetes.version, config.containerd.version, config.runc.version) == ("1.34.2", "2.0.4", "1.3.0")
    assert (config.cni.version, config.node.kubelet.dns_service_ip) == ("1.6.2", "10.0.0.10")
    assert config.node.kubelet.server_url == "https://c.hcp.example.azmk8s.io:443"
    assert [(each.key, each.value, each.effect) for each in config.node.taints] == [("edge", "yes", "NoSchedule")]


def test_labels_of_the_cluster_in_bootstrap_data_are_a_warning() -> None:
    loaded = load_plain(json.dumps(DATA), "base-config.json")
    assert loaded.config.node.labels == {"kubernetes.azure.com/nodepool-type": "FlexNodes"}
    assert loaded.warnings == ["The label kubernetes.io/role is left to the cluster: a node cannot set it."]
    assert problems_of('{"node": {"labels": {"kubernetes.io/role": "agent"}}}')


@pytest.mark.parametrize("nothing", [None, ""])
def test_empty_pool_settings_leave_the_defaults(nothing: str | None) -> None:
    config = load_settings(
        {
            "components": {"kubernetes": nothing, "containerd": nothing, "runc": nothing},
            "networking": {"dnsServiceIP": nothing, "cniVersion": nothing},
            "azure.targetAgentPoolName": nothing,
            "node.kubelet.clusterFQDN": nothing,
        }
    ).config
    assert config == load_settings({"node": {}}).config
    assert load_settings({"components": None, "networking": {}}).config == config


@pytest.mark.parametrize(
    ("document", "name", "other"),
    [
        (
            {"components.kubernetes": "1.34.2", "kubernetes.version": "1.34.1"},
            "kubernetes.version",
            "components.kubernetes",
        ),
        ({"node.name": "a", "agent.nodeName": "b"}, "agent.nodeName", "node.name"),
        (
            {"node.kubelet.serverURL": "https://a:443", "node.kubelet.clusterFQDN": "b"},
            "node.kubelet.clusterFQDN",
            "node.kubelet.serverURL",
        ),
    ],
)
def test_two_names_with_different_values_are_refused(document: dict[str, Any], name: str, other: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load_settings(document)
    (problem,) = caught.value.problems
    assert problem.path == name
    assert other in problem.reason


def test_two_names_with_the_same_value_are_accepted() -> None:
    config = load_settings(
        {"node.kubelet.serverURL": "https://a.example:443", "node.kubelet.clusterFQDN": "a.example"}
    )
    assert config.config.node.kubelet.server_url == "https://a.example:443"


def test_unknown_components_of_a_later_api_are_a_warning() -> None:
    loaded = load_settings({"components": {"kubernetes": "1.34.2", "gpuDriver": "570"}})
    assert loaded.config.kubernetes.version == "1.34.2"
    assert loaded.warnings == ["components.gpuDriver is not used by this agent."]


def test_invalid_value_is_reported_with_the_line_of_its_pool_name() -> None:
    (problem,) = problems_of('{\n"components": {\n"kubernetes": "newest"}}')
    assert (problem.path, problem.origin) == ("kubernetes.version", "test:3")


def test_pool_names_work_in_yaml_and_flags() -> None:
    text = "components:\n  kubernetes: 1.30.10\nagent:\n  nodeName: edge-1\n"
    config = load_text(text, "a.yaml", {}, {"node.kubelet.clusterFQDN": "c.example"}).config
    assert (config.kubernetes.version, config.node.name) == ("1.30.10", "edge-1")
    assert config.node.kubelet.server_url == "https://c.example:443"


def test_file_of_bootstrap_data_does_not_override_what_the_pool_says_now(tmp_path: Path) -> None:
    file = write(tmp_path / "base-config.json", {**PRINTED, "agent": {"nodeName": "edge-1"}})
    now = SettingsSource({"kubernetes.version": "1.35.4", "node.labels": {"site": "b"}})
    own = write(tmp_path / "own.json", {"node": {"maxPods": 30}})

    config = load([file, own], {}, {}, base=[now]).config

    assert (config.kubernetes.version, config.node.labels) == ("1.35.4", {"site": "b"})
    assert (config.node.name, config.node.max_pods) == ("edge-1", 30), "what the operator has set stays"
    assert config.azure.bootstrap_token


def test_later_file_overrides_an_earlier_one_by_setting(tmp_path: Path) -> None:
    base = write(tmp_path / "base-config.json", PRINTED)
    own = write(
        tmp_path / "own.json",
        {"azure": {"managedIdentity": {}}, "node": {"name": "edge-1", "maxPods": 30, "labels": {"site": "a"}}},
    )
    loaded = load([base, own], {}, {"kubernetes.version": "1.34.1"})
    config = loaded.config
    assert (config.node.name, config.node.max_pods, config.kubernetes.version) == ("edge-1", 30, "1.34.1")
    assert config.node.labels == {"kubernetes.azure.com/nodepool-type": "FlexNodes", "site": "a"}
    assert config.azure.managed_identity is not None
    assert config.azure.target_cluster
    assert config.azure.target_cluster.resource_id == CLUSTER_ID
    assert loaded.origins["node.maxPods"].startswith(f"{own}:")
    assert loaded.origins["containerd.version"].startswith(f"{base}:")
    assert loaded.origins["node.labels.site"].startswith(f"{own}:")
    assert loaded.files == (base, own)


def test_later_file_replaces_a_secret_by_its_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("fedcba.0123456789abcdef")
    token.chmod(0o600)
    base = write(tmp_path / "base-config.json", PRINTED)
    own = write(tmp_path / "own.json", {"azure": {"bootstrapToken": {"tokenFile": str(token)}}})
    found = load([base, own], {}, {}).config.azure.bootstrap_token
    assert found
    assert found.token
    assert found.token.reveal() == "fedcba.0123456789abcdef"


def test_problems_of_all_files_are_reported_together(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", {"node": {"maxPods": "many"}})
    second = write(tmp_path / "b.json", {"nod": {}})
    with pytest.raises(InvalidConfigError, match=f"{first}, {second}") as caught:
        load([first, second], {}, {})
    assert [each.path for each in caught.value.problems] == ["nod", "node.maxPods"]


def test_secret_file_with_a_certificate_is_a_certificate(tmp_path: Path) -> None:
    file = tmp_path / "credential"
    file.write_text(
        "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
        "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n"
    )
    file.chmod(0o600)
    found = load_settings({"azure.servicePrincipal": {"clientId": "1", "clientSecretFile": str(file)}}).config
    principal = found.azure.service_principal
    assert principal
    assert principal.client_secret is None
    assert principal.client_certificate is not None
