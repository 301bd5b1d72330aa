"""Tests that the examples of the design documents are accepted, with their placeholders replaced."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.agent.config.config_store import applied_config_text
from aks_flex_node.agent.config.loader import load_text, missing_for_join, with_join_method
from aks_flex_node.agent.config.remote import ConfigBundle
from aks_flex_node.agent.config.resolved import kubelet_auth, log_file, target_cluster
from aks_flex_node.agent.paths import APPLIED_CONFIG, CURRENT_CONFIG
from tests.unit.agent.config.builders import CA, CLUSTER_ID, TOKEN, Settings, load_plain, load_settings

BUNDLE = {
    "config": {
        "continuousMonitoring": True,
        "azure": {
            "subscriptionId": "sub-1",
            "tenantId": "tenant-1",
            "servicePrincipal": {
                "clientId": "11111111-2222-3333-4444-555555555555",
                "clientSecret": "your-secret-here",
                "clientTenant": "your-tenant-here",
            },
            "targetCluster": {"resourceId": CLUSTER_ID, "location": "westeurope"},
        },
        "kubernetes": {"version": "1.30.0"},
        "node": {
            "maxPods": 50,
            "kubelet": {"dnsServiceIP": "10.0.0.10", "serverURL": "https://api.example:443", "caCertData": CA},
        },
    }
}

FILE = """\
# /etc/aks-flex-node/config.yaml
azure:
  subscriptionId: "sub-1"
  tenantId: "tenant-1"
  location: "westeurope"
  resourceGroup: "group-1"
  arc:
    autoRegister: true
    targetCluster:
      name: "cluster-1"
      # resourceGroup: "" // only needed if different from the above resourceGroup
  vpn:
    enabled: true
    autoProvision: true
    p2sGatewayCIDR: "192.168.100.0/24"    # VPN client address pool
    gatewaySKU: "VpnGw2AZ"

node:
  labels:
    node-type: "edge"
    location: "edge-site-1"

agent:
  logLevel: "info"
  logFile: "/var/log/aks-flex-node/agent.log"

paths:
  configDir: "/etc/aks-flex-node"
  dataDir: "/var/lib/aks-flex-node"
  logDir: "/var/log/aks-flex-node"
  kubernetes:
    configDir: "/etc/kubernetes"
    certsDir: "/etc/kubernetes/certs"
    manifestsDir: "/etc/kubernetes/manifests"
    volumePluginDir: "/etc/kubernetes/volumeplugins"
    kubeletDir: "/var/lib/kubelet"
  cni:
    binDir: "/opt/cni/bin"
    confDir: "/etc/cni/net.d"
    libDir: "/var/lib/cni"

containerd:
  version: "1.7.20"
  pauseImage: "mcr.microsoft.com/oss/kubernetes/pause:3.6"
  metricsAddress: "0.0.0.0:10257"

kubernetes:
  version: "1.32.7"
  urlTemplate: "https://acs-mirror.azureedge.net/kubernetes/v%s/binaries/kubernetes-node-linux-%s.tar.gz"

runc:
  version: "1.1.12"
  url: "https://github.com/opencontainers/runc/releases/download/v1.1.12/runc.amd64"
"""

# Settings in the reference of the first release, besides those of the file above.
REFERENCE = {
    "azure": {
        "arc": {
            "machineName": "edge-1",
            "resourceGroup": "group-1",
            "location": "westeurope",
            "tags": {"site": "one"},
            "autoRoleAssignment": True,
        },
        "targetCluster": {"resourceId": CLUSTER_ID, "name": "cluster-1", "resourceGroup": "group-1"},
    },
    "node": {
        "maxPods": 110,
        "kubelet": {"kubeReserved": {"cpu": "100m"}, "evictionHard": {"memory.available": "100Mi"}},
    },
}


def test_provider_config_bundle_from_the_design_is_accepted() -> None:
    config = load_plain(json.dumps(BUNDLE), "bundle").config

    assert config.continuous_monitoring
    assert config.kubernetes.version == "1.30.0"
    assert config.azure.service_principal is not None
    assert config.azure.service_principal.tenant_id == "your-tenant-here"
    assert target_cluster(config) == ("sub-1", "group-1", "cluster-1")


@pytest.mark.parametrize(
    "more",
    [{}, {"provider": {"url": "https://rp.example"}}],
    ids=["bundle", "file with a provider"],
)
def test_managed_node_without_a_token_joins_with_its_identity(more: Settings) -> None:
    text = json.dumps({"config": {**BUNDLE["config"], **more}})

    loaded = with_join_method(load_plain(text, "bundle"), None)

    assert kubelet_auth(loaded.config) == "certificate"
    assert missing_for_join(loaded.config) == []
    again = load_plain(loaded.text()).config  # as the daemon reads it
    assert kubelet_auth(again) == "certificate"
    stored = ConfigBundle(text).with_settings({"node.kubelet.auth": kubelet_auth(loaded.config)}).text
    assert kubelet_auth(load_plain(stored).config) == "certificate"


@pytest.mark.parametrize(
    ("change", "applied"),
    [
        ({"azure.bootstrapToken.token": TOKEN}, None),
        ({"azure.bootstrapToken.tokenFile": "/missing"}, None),
        ({"node.kubelet.auth": "bootstrapToken"}, None),
        ({}, {"continuousMonitoring": True}),
    ],
    ids=["token", "token file", "auth", "joined with a token"],
)
def test_managed_node_with_a_token_keeps_its_token(change: Settings, applied: Settings | None) -> None:
    loaded = load_text(json.dumps(BUNDLE), "bundle", {}, change)

    chosen = with_join_method(loaded, load_settings(applied).config if applied else None)

    assert kubelet_auth(chosen.config) == "bootstrapToken"


def test_node_that_joined_with_its_identity_keeps_it() -> None:
    first = with_join_method(load_text(json.dumps(BUNDLE), "bundle", {}, {"node.kubelet.auth": "certificate"}), None)
    applied = load_plain(applied_config_text(first.config)).config

    again = with_join_method(load_plain(json.dumps(BUNDLE), "bundle"), applied)

    assert kubelet_auth(again.config) == "certificate"


IDENTITIES: list[Settings] = [
    {"servicePrincipal": {"clientId": "11111111-0000-4000-8000-000000000000", "clientSecret": "canary"}},
    {"managedIdentity": {"clientId": "11111111-0000-4000-8000-000000000000"}},
]


@pytest.mark.parametrize("identity", IDENTITIES, ids=["principal", "managed identity"])
def test_file_without_provider_joins_by_certificate_and_keeps_it(identity: Settings) -> None:
    """By exec, root on the machine can read the Secrets of all pods of the cluster."""
    text = json.dumps({"azure": {"tenantId": "f1e0f1e0-0000-4000-8000-000000000001", **identity}})

    first = with_join_method(load_plain(text, "config.yaml"), None)
    applied = load_plain(applied_config_text(first.config), APPLIED_CONFIG).config
    again = with_join_method(load_plain(text, "config.yaml"), applied)

    assert kubelet_auth(first.config) == kubelet_auth(again.config) == "certificate"
    assert kubelet_auth(load_plain(first.text(), CURRENT_CONFIG).config) == "certificate"


def test_config_file_of_the_first_release_is_accepted() -> None:
    loaded = load_plain(FILE, "config.yaml")

    assert loaded.warnings == []
    assert loaded.config.azure.arc.enabled
    assert loaded.config.azure.vpn.enabled
    assert loaded.config.containerd.version == "1.7.20"
    assert target_cluster(loaded.config) == ("sub-1", "group-1", "cluster-1")
    assert log_file(loaded.config) == "/var/log/aks-flex-node/agent.log"


def test_every_setting_of_the_reference_design_is_accepted() -> None:
    config = load_plain(json.dumps(REFERENCE), "config.json").config

    assert config.azure.arc.tags == {"site": "one"}
    assert config.azure.arc.enabled
    assert kubelet_auth(config) == "certificate"
    assert target_cluster(config) == ("sub-1", "group-1", "cluster-1")
