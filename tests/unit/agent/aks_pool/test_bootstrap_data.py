from __future__ import annotations

import copy
from typing import Any

import pytest

from aks_flex_node.agent.aks_pool.bootstrap_data import parse_bootstrap_data
from aks_flex_node.agent.aks_pool.pool_ids import PoolId
from aks_flex_node.agent.config.pool_names import server_url
from aks_flex_node.errors import FlexError
from tests.unit.agent.config.builders import CA, CLUSTER_ID, TOKEN, node_config

POOL = PoolId("sub-1", "group-1", "cluster-1", "edge")
DATA: dict[str, Any] = {
    "azure": {
        "resourceManagerEndpoint": "https://management.azure.com/",
        "targetCluster": {"resourceId": CLUSTER_ID},
        "targetAgentPoolName": "edge",
        "bootstrapToken": {"token": TOKEN},
    },
    "components": {"kubernetes": "1.34.2", "containerd": "2.0.4", "runc": "1.3.0"},
    "networking": {"dnsServiceIP": "10.0.0.10", "cniVersion": "1.6.2"},
    "node": {
        "maxPods": 60,
        "labels": {"kubernetes.azure.com/nodepool-type": "FlexNodes", "kubernetes.io/role": "agent"},
        "taints": ["edge=yes:NoSchedule"],
        "kubelet": {"clusterFQDN": "c.hcp.example.azmk8s.io", "caCertData": CA},
    },
}


def test_bootstrap_data_becomes_a_configuration_without_the_token() -> None:
    found = parse_bootstrap_data(DATA, POOL)
    config = node_config(found.settings)
    assert found.token.reveal() == TOKEN
    assert TOKEN not in str(found)
    assert config.azure.bootstrap_token is None
    assert config.node.kubelet.server_url == "https://c.hcp.example.azmk8s.io:443"
    assert config.node.kubelet.dns_service_ip == "10.0.0.10"
    assert (config.kubernetes.version, config.containerd.version) == ("1.34.2", "2.0.4")
    assert (config.runc.version, config.cni.version, config.node.max_pods) == ("1.3.0", "1.6.2", 60)
    assert config.azure.target_agent_pool_name == "edge"
    only_settable = {"kubernetes.azure.com/nodepool-type": "FlexNodes"}
    assert config.node.labels == only_settable, "the others are left to the cluster"


def test_null_and_unknown_fields_of_bootstrap_data_are_ignored() -> None:
    data = copy.deepcopy(DATA) | {"futureSection": {"a": 1}}
    data["components"] |= {"containerd": None, "runc": "", "futureProgram": "1.0"}
    data["networking"] = None
    data["node"] |= {"maxPods": None, "labels": None, "taints": None, "futureKey": True}
    config = node_config(parse_bootstrap_data(data, POOL).settings)
    assert config.node.labels == {}
    assert config.containerd.version == node_config({}).containerd.version


@pytest.mark.parametrize(
    ("section", "key"),
    [("azure", "bootstrapToken"), ("components", "kubernetes"), ("node", "kubelet")],
)
def test_incomplete_bootstrap_data_is_refused_by_name(section: str, key: str) -> None:
    data = copy.deepcopy(DATA)
    del data[section][key]
    with pytest.raises(FlexError, match=f"{section}.{key}") as caught:
        parse_bootstrap_data(data, POOL)
    assert caught.value.name == "aks-pool-data-invalid"
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("fqdn", "expected"),
    [
        ("c.example", "https://c.example:443"),
        ("c.example:6443", "https://c.example:6443"),
        ("https://c.example:443/", "https://c.example:443"),
    ],
)
def test_api_server_address_becomes_a_url(fqdn: str, expected: str) -> None:
    assert server_url(fqdn) == expected
