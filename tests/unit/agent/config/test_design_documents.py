"""The examples in the first descriptions of the product are accepted as they stand, with their blanks filled."""

from __future__ import annotations

import json

from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.config.resolved import kubelet_auth, log_file, target_cluster
from tests.unit.agent.config.builders import CA, CLUSTER_ID

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

# Settings that the reference of the first release names, beside those of the file above.
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
    config = load_text(json.dumps(BUNDLE), "bundle", {}, {}).config

    assert config.continuous_monitoring
    assert config.kubernetes.version == "1.30.0"
    assert config.azure.service_principal is not None
    assert config.azure.service_principal.tenant_id == "your-tenant-here"
    assert target_cluster(config) == ("sub-1", "group-1", "cluster-1")


def test_config_file_of_the_first_release_is_accepted() -> None:
    loaded = load_text(FILE, "config.yaml", {}, {})

    assert loaded.warnings == []
    assert loaded.config.azure.arc.enabled
    assert loaded.config.azure.vpn.enabled
    assert loaded.config.containerd.version == "1.7.20"
    assert target_cluster(loaded.config) == ("sub-1", "group-1", "cluster-1")
    assert log_file(loaded.config) == "/var/log/aks-flex-node/agent.log"


def test_every_setting_of_the_reference_design_is_accepted() -> None:
    config = load_text(json.dumps(REFERENCE), "config.json", {}, {}).config

    assert config.azure.arc.tags == {"site": "one"}
    assert config.azure.arc.enabled
    assert kubelet_auth(config) == "exec"
    assert target_cluster(config) == ("sub-1", "group-1", "cluster-1")
