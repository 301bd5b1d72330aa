"""Tests of the kubelet, its credentials and programs, the network, and node-problem-detector."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from aks_flex_node.agent.components import cni, credentials, kubelet, kubernetes, npd
from aks_flex_node.agent.components.kubelet import TLS_CIPHERS, kubelet_configuration, kubelet_settings
from aks_flex_node.agent.reconcile.resources import RuntimePath, Spec
from aks_flex_node.settings import base
from aks_flex_node.settings.table import reserved_kubelet_option
from tests.unit.agent.builders import MACHINE, config_of, desired, files_of, folders_of, links_of, service_of, text_of
from tests.unit.agent.config.builders import CLUSTER_ID, PEM, TOKEN, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.settings.models import NodeConfig

CONFIG, DEFAULTS = "/var/lib/kubelet/config.yaml", "/etc/default/kubelet"
REGISTRATION = "/etc/default/kubelet-node"
UNIT = "/etc/systemd/system/kubelet.service"
BOOTSTRAP = "/var/lib/kubelet/bootstrap-kubeconfig"
NETWORK = "/etc/cni/net.d/99-aks-flex-node.conflist"


def test_provider_cannot_set_what_the_agent_hardens() -> None:
    assert [each for each in kubelet.security_settings(config_of()) if not reserved_kubelet_option(each)] == []


def test_kubelet_config_meets_the_cis_benchmark() -> None:
    made = yaml.safe_load(kubelet_configuration(config_of(), MACHINE))
    assert made["authentication"] == {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": "/etc/kubernetes/certs/ca.crt"},
    }
    expected = {
        "authorization": {"mode": "Webhook"},
        "readOnlyPort": 0,
        "makeIPTablesUtilChains": True,
        "rotateCertificates": True,
        "podPidsLimit": 4096,
        "seccompDefault": True,
        "protectKernelDefaults": True,
        "tlsCipherSuites": TLS_CIPHERS,
    }
    assert {key: made[key] for key in expected} == expected
    assert made["streamingConnectionIdleTimeout"] not in ("0", "0s")
    assert made["eventRecordQPS"] >= 0
    assert all(
        name.startswith("TLS_ECDHE_") and ("GCM" in name or "CHACHA20_POLY1305" in name) for name in TLS_CIPHERS
    )


def test_kubelet_files_are_mode_0600_and_cluster_ca_is_world_readable() -> None:
    modes = {path: file.mode for path, file in files_of(desired(kubelet)).items()}
    assert set(modes.values()) == {0o600}
    assert {CONFIG, UNIT, DEFAULTS} <= set(modes)
    assert files_of(desired(credentials))["/etc/kubernetes/certs/ca.crt"].mode == 0o644


@pytest.mark.parametrize(
    ("values", "key", "expected"),
    [
        ({"node.maxPods": 30}, "maxPods", 30),
        ({"node.kubelet.dnsServiceIP": "10.0.0.10"}, "clusterDNS", ["10.0.0.10"]),
        ({}, "clusterDNS", None),
        ({}, "clusterDomain", "cluster.local"),
        ({"node.kubelet.kubeReserved": {"cpu": "100m"}}, "kubeReserved", {"cpu": "100m"}),
        ({"node.kubelet.systemReserved": {"memory": "1Gi"}}, "systemReserved", {"memory": "1Gi"}),
        ({}, "kubeReserved", {}),
        (
            {"node.kubelet.evictionHard": {"memory.available": "1Gi", "nodefs.inodesFree": "0%"}},
            "evictionHard",
            {
                "memory.available": "1Gi",
                "nodefs.available": "10%",
                "imagefs.available": "15%",
                "nodefs.inodesFree": "0%",
            },
        ),
        ({}, "imageGCHighThresholdPercent", 85),
        ({}, "imageGCLowThresholdPercent", 80),
        ({}, "nodeStatusUpdateFrequency", "10s"),
        ({"node.kubelet.serverTlsBootstrap": True}, "serverTLSBootstrap", True),
        ({"node.kubelet.extraConfig": {"maxOpenFiles": 5}}, "maxOpenFiles", 5),
        ({"node.kubelet.extraConfig": {"readOnlyPort": 10255}}, "readOnlyPort", 10255),
        ({}, "staticPodPath", "/etc/kubernetes/manifests"),
    ],
    ids=str,
)
def test_kubelet_settings_are_rendered_into_the_kubelet_config(values: Settings, key: str, expected: object) -> None:
    values = {name.replace("serverTlsBootstrap", "serverTLSBootstrap"): value for name, value in values.items()}
    assert yaml.safe_load(kubelet_configuration(config_of(values), MACHINE)).get(key) == expected


@pytest.mark.parametrize(("cgroups", "expected"), [(1, False), (2, None)])
def test_kubelet_allows_cgroup_v1_only_when_the_machine_has_no_v2(cgroups: int, expected: bool | None) -> None:
    assert kubelet_settings(config_of(), replace(MACHINE, cgroups=cgroups)).get("failCgroupV1") is expected


# Read from cmd/kubelet/app/options of 1.33.13 to 1.36.3; --pod-infra-container-image, for example, ends with 1.34.
KUBELET_OPTIONS = frozenset(
    "bootstrap-kubeconfig cert-dir config hostname-override kubeconfig node-ip node-labels register-with-taints "
    "root-dir v".split()
)


def test_kubelet_gets_only_options_that_all_tested_versions_have() -> None:
    taints = [{"key": "edge", "value": "yes", "effect": "NoSchedule"}]
    config = config_of({"node.name": "other", "node.taints": taints})
    files = files_of(kubelet.desired(config, replace(MACHINE, address="198.18.0.5")))
    texts = [file.content.decode() for file in files.values()]
    found = {word for text in texts for word in re.findall(r"(?<![\w-])--([a-z-]+)=", text)}
    assert found == KUBELET_OPTIONS


def environment(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def flags_of(values: Settings, hostname: str = "edge-1", address: str = "198.18.0.5") -> list[str]:
    machine = replace(MACHINE, hostname=hostname, address=address)
    return environment(text_of(kubelet.desired(config_of(values), machine), DEFAULTS))["KUBELET_FLAGS"].split()


def test_kubelet_labels_are_sorted_and_mark_the_node_as_unmanaged_by_aks() -> None:
    values: Settings = {"node.labels": {"z": "1", "a.example/b": "x_y.z", "kubernetes.azure.com/managed": "true"}}
    labels = environment(text_of(desired(kubelet, values), REGISTRATION))["KUBELET_NODE_LABELS"]
    assert labels == "a.example/b=x_y.z,kubernetes.azure.com/managed=false,z=1"
    assert shlex.split(labels) == [labels], "it means the same to systemd without quotes"


@pytest.mark.parametrize(
    ("values", "hostname", "address", "flag", "there"),
    [
        ({}, "edge-1", "198.18.0.5", "--node-ip=198.18.0.5", True),
        ({}, "edge-1", "", "--node-ip", False),
        ({}, "edge-1", "", "--hostname-override", False),
        ({"node.name": "edge-1"}, "edge-1", "", "--hostname-override", False),
        ({"node.name": "edge-1"}, "EDGE-1", "", "--hostname-override", False),
        ({"node.name": "other"}, "edge-1", "", "--hostname-override=other", True),
        ({}, "edge-1", "", "--v=2", True),
        ({"node.kubelet.verbosity": 6}, "edge-1", "", "--v=6", True),
        ({}, "edge-1", "", "--config=/var/lib/kubelet/config.yaml", True),
        ({"paths.kubernetes.kubeletDir": "/data/kubelet"}, "edge-1", "", "--root-dir=/data/kubelet", True),
    ],
)
def test_kubelet_flags_are_rendered_from_settings_and_machine(
    values: Settings, hostname: str, address: str, flag: str, there: bool
) -> None:
    flags = flags_of(values, hostname, address)
    assert any(given == flag or given.startswith(f"{flag}=") for given in flags) is there


def test_node_of_an_aks_pool_has_the_labels_that_aks_expects() -> None:
    found = kubelet.labels(config_of({"azure.targetAgentPoolName": "edge", "node.labels": {"site": "north"}}))
    assert found == {
        "kubernetes.azure.com/agentpool": "edge",
        "kubernetes.azure.com/managed": "false",
        "kubernetes.azure.com/mode": "user",
        "kubernetes.azure.com/nodepool-type": "FlexNodes",
        "site": "north",
    }


@pytest.mark.parametrize(
    ("taints", "flag"),
    [
        (["edge=true:NoSchedule", "slow:NoExecute"], "--register-with-taints=edge=true:NoSchedule,slow=:NoExecute"),
        ([], ""),
    ],
)
def test_kubelet_taints_flag_is_empty_without_taints(taints: list[str], flag: str) -> None:
    spec = desired(kubelet, {"node.taints": taints})
    assert environment(text_of(spec, REGISTRATION))["KUBELET_NODE_TAINTS"] == flag


@pytest.mark.parametrize("more", [{"continuousMonitoring": True}, {"azure.targetAgentPoolName": "edge"}], ids=str)
def test_node_keeps_its_kubeconfig_without_the_token(more: Settings) -> None:
    managed = {"azure.managedIdentity": {}, "azure.targetCluster.resourceId": CLUSTER_ID, **more}
    with_token, later = config_of(managed), config_of(managed, without=["azure.bootstrapToken.token"])
    assert service_of(kubelet.desired(with_token, MACHINE)) == service_of(kubelet.desired(later, MACHINE))
    assert BOOTSTRAP in files_of(credentials.desired(with_token, MACHINE))
    in_pool = "azure.targetAgentPoolName" in more
    assert (RuntimePath(BOOTSTRAP) in credentials.desired(later, MACHINE).resources) is in_pool


@pytest.mark.parametrize("with_token", [True, False])
def test_bootstrap_kubeconfig_exists_only_with_a_bootstrap_token(with_token: bool) -> None:
    config = config_of(without=() if with_token else ("azure.bootstrapToken.token",))
    assert (BOOTSTRAP in files_of(credentials.desired(config, MACHINE))) is with_token
    dropin = text_of(kubelet.desired(config, MACHINE), f"{UNIT}.d/10-kubeadm.conf")
    assert ("--bootstrap-kubeconfig=" in dropin) is with_token
    assert "--kubeconfig=/var/lib/kubelet/kubeconfig --cert-dir=/var/lib/kubelet/pki" in dropin


def test_bootstrap_kubeconfig_names_the_cluster_and_is_secret() -> None:
    spec = desired(credentials)
    file = files_of(spec)[BOOTSTRAP]
    made = json.loads(file.content)
    assert (file.mode, file.secret) == (0o600, True)
    assert made["users"][0]["user"] == {"token": TOKEN}
    assert made["clusters"][0]["cluster"] == {
        "server": "https://cluster.example:443",
        "certificate-authority": "/etc/kubernetes/certs/ca.crt",
    }
    assert TOKEN not in repr(spec)
    assert text_of(spec, "/etc/kubernetes/certs/ca.crt") == PEM
    assert folders_of(spec)["/var/lib/kubelet"].ours


def test_kubelet_proxy_settings_are_in_its_secret_environment_file() -> None:
    values: Settings = {"proxy.https": "http://me:p%40ss@proxy:3128"}
    file = files_of(desired(kubelet, values))[DEFAULTS]
    assert 'HTTPS_PROXY="http://me:p%40ss@proxy:3128"\n' in file.content.decode()
    assert file.secret


PROGRAMS = ("kubelet", "kubectl", "kubeadm")
RELEASES = [
    (
        "https://dl.k8s.io/v%s/bin/linux/%s/%s",
        [f"https://dl.k8s.io/v1.34.4/bin/linux/amd64/{name}" for name in PROGRAMS],
    ),
    (
        "https://mirror.example/v%s/%s/",
        [f"https://mirror.example/v1.34.4/amd64/{name}" for name in PROGRAMS],
    ),
    ("https://mirror.example/v%s", [f"https://mirror.example/v1.34.4/{name}" for name in PROGRAMS]),
    ("https://mirror.example/k8s", [f"https://mirror.example/k8s/{name}" for name in PROGRAMS]),
    (
        "https://dl.k8s.io/v%s/kubernetes-node-linux-%s.tar.gz",
        ["https://dl.k8s.io/v1.34.4/kubernetes-node-linux-amd64.tar.gz"] * 2,  # for the kubelet and for the others
    ),
]


@pytest.mark.parametrize(("template", "urls"), RELEASES, ids=[case[0] for case in RELEASES])
def test_kubernetes_programs_come_as_single_files_or_in_a_tarball(template: str, urls: list[str]) -> None:
    plain = config_of()
    config = base.replace(plain, kubernetes=base.replace(plain.kubernetes, url_template=template))
    specs = kubernetes.desired(config, MACHINE), kubernetes.desired_tools(config, MACHINE)
    artifacts = [one for spec in specs for program in spec.programs for one in program.artifacts]
    assert [one.url for one in artifacts] == urls
    assert [*links_of(specs[0]), *links_of(specs[1])] == [f"/usr/local/bin/{name}" for name in PROGRAMS]
    wanted = [
        [file for program in spec.programs for one in program.artifacts for file in one.files] for spec in specs
    ]
    assert [[file.path for file in files] for files in wanted] == [["bin/kubelet"], ["bin/kubectl", "bin/kubeadm"]]
    assert all((not file.member) is (len(urls) == 3) for files in wanted for file in files)


@pytest.mark.parametrize("desired", [kubernetes.desired, kubernetes.desired_tools])
def test_single_files_and_tarball_install_to_the_same_paths(
    desired: Callable[[NodeConfig, Machine], Spec],
) -> None:
    """Otherwise a node that switches between them would have dangling links."""
    singles, tarball = (
        desired(config_of({"kubernetes.urlTemplate": template}), MACHINE)
        for template in (RELEASES[0][0], RELEASES[-1][0])
    )
    assert (singles.paths, links_of(singles)) == (tarball.paths, links_of(tarball))


@pytest.mark.parametrize(
    ("values", "cidr", "route"),
    [
        ({}, "", None),
        ({}, "10.244.3.0/24", "0.0.0.0/0"),
        ({}, "fd00:10:244::/64", "::/0"),
        ({"cni.bridge": False}, "10.244.3.0/24", None),
    ],
)
def test_cni_config_is_built_from_the_assigned_pod_cidr(values: Settings, cidr: str, route: str | None) -> None:
    spec = desired(cni, values, pod_cidr=cidr)
    assert (NETWORK in files_of(spec)) is (route is not None)
    if route:
        bridge, *others = json.loads(text_of(spec, NETWORK))["plugins"]
        assert bridge["ipam"]["ranges"] == [[{"subnet": cidr}]]
        assert bridge["ipam"]["routes"] == [{"dst": route}]
        assert [other["type"] for other in others] == ["portmap", "firewall"]


def test_npd_service_requires_the_kubelet_kubeconfig() -> None:
    spec = desired(npd, {"node.name": "other"})
    unit = text_of(spec, "/etc/systemd/system/node-problem-detector.service")
    assert service_of(spec).needs == "/var/lib/kubelet/kubeconfig"
    assert "ConditionPathExists=/var/lib/kubelet/kubeconfig\n" in unit
    assert "--hostname-override=other " in unit
    auth = "--apiserver-override=https://cluster.example:443?inClusterConfig=false&auth=/var/lib/kubelet/kubeconfig "
    assert auth in unit
    (url,) = [one.url for one in spec.programs[0].artifacts]
    assert url.endswith("/v1.34.0/node-problem-detector-v1.34.0-linux_amd64.tar.gz")


def test_bootstrap_kubeconfig_remains_owned_when_the_token_file_is_missing() -> None:
    gone = config_of({"azure.bootstrapToken.tokenFile": "/nowhere/token"}, without=["azure.bootstrapToken.token"])
    spec = credentials.desired(gone, MACHINE)
    assert BOOTSTRAP not in files_of(spec)
    assert BOOTSTRAP in spec.paths
