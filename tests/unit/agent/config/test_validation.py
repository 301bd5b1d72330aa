"""Tests of validation: each problem has its path, value, reason and allowed values; all are reported together."""

from __future__ import annotations

import json

import pytest

from aks_flex_node.errors import ConfigError
from tests.unit.agent.config.builders import CA, CLUSTER_ID, PEM, load_plain, load_settings, problems_of, settings

HASH = "0" * 64
FEDERATED = {"clientId": "a", "tokenFile": "/x"}
BOTH = "-----BEGIN CERTIFICATE-----\nx\n-----BEGIN PRIVATE KEY-----\ny\n"
CASES: list[tuple[str, object, str]] = [
    # types
    ("node.maxPods", "many", "must be an integer"),
    ("node.maxPods", 0, "integer from 1 to 1024"),
    ("node.maxPods", 1.5, "must be an integer"),
    ("npd.enabled", "perhaps", "must be true or false"),
    ("kubernetes.version", 1.3, "must be a string: put it in quotes"),
    ("node.labels", ["a"], "must be a map"),
    ("node.taints", "a:NoSchedule", "must be a list"),
    ("proxy.noProxy", {"a": "b"}, "must be a list"),
    ("artifacts.stallSeconds", 0, "number above 0"),
    ("agent.logLevel", "warn", "Did you mean warning?"),
    ("azure", 5, "must be a section with these keys"),
    ("azure.servicePrincipal", {"clientSecret": "hunter2"}, "is missing"),
    # names
    ("node.maxPod", 5, "Did you mean node.maxPods?"),
    ("node.kubelet.serverUrl", "x", "Did you mean node.kubelet.serverURL?"),
    ("node.dnsServiceIP", "10.0.0.1", "Did you mean node.kubelet.dnsServiceIP?"),
    ("zzz", 1, "Known settings: azure, node"),
    # Kubernetes
    ("node.name", "Edge-1", "Use edge-1"),
    ("node.name", "edge_1", "is not a node name"),
    ("node.name", "a" * 64, "at most 63"),
    ("node.labels", {"-a": "b"}, "is not a valid key. Use 1 to 63"),
    ("node.labels", {"UPPER/a": "b"}, "invalid prefix"),
    ("node.labels", {"a": "b c"}, "is not a label value"),
    ("node.labels", {"a": "b" * 64}, "is not a label value"),
    ("node.labels", {"kubernetes.io/role": "agent"}, "is reserved for the cluster"),
    ("node.labels", {"node-role.kubernetes.io/agent": ""}, "is reserved for the cluster"),
    ("node.labels", {"node-restriction.kubernetes.io/a": ""}, "is reserved for the cluster"),
    ("node.labels", {"x.k8s.io/a": ""}, "is reserved for the cluster"),
    ("node.labels", {"kubernetes.io/hostname": "evil"}, "is set by the kubelet itself"),
    ("node.labels", {"beta.kubernetes.io/os": "windows"}, "is set by the kubelet itself"),
    ("node.taints", ["a"], "is not a taint"),
    ("node.taints", ["a=b:NoSchedul"], "Did you mean NoSchedule?"),
    ("node.taints", [{"key": "a"}], "is missing"),
    ("node.taints", [{"key": "a", "efect": "x", "effect": "NoExecute"}], "Did you mean effect?"),
    ("node.taints", ["-a:NoSchedule"], "is not a valid key"),
    ("node.taints", ["a=b:NoSchedule", "a=c:NoSchedule"], "as an earlier taint"),
    ("node.kubelet.kubeReserved", {"cpu": "1x"}, "is not a Kubernetes quantity"),
    ("node.kubelet.kubeReserved", {"cpu": "-1"}, "is not a Kubernetes quantity"),
    ("node.kubelet.systemReserved", {"disk": "1Gi"}, "cannot be reserved"),
    ("node.kubelet.evictionHard", {"memory.free": "1Gi"}, "is not an eviction signal"),
    ("node.kubelet.evictionHard", {"memory.available": "101%"}, "more than 100%"),
    ("node.kubelet.evictionHard", {"memory.available": "lots"}, "is not a threshold"),
    ("node.kubelet.nodeStatusUpdateFrequency", "10", "is not a duration"),
    ("node.kubelet.nodeStatusUpdateFrequency", "0s", "is not a duration"),
    ("node.kubelet.clusterDomain", "Cluster.local", "is not a DNS domain"),
    ("node.kubelet.imageGCLowThreshold", 85, "lower than node.kubelet.imageGCHighThreshold, which is 85"),
    ("kubernetes.version", "1.36", "Use for example 1.36.0"),
    ("kubernetes.version", "latest", "is not a version"),
    ("containerd.version", "1.7", "patch version"),
    ("containerd.pauseImage", "Pause Image", "is not an image"),
    ("azure.bootstrapToken.token", "ABCDEF.0123456789abcdef", "is not a bootstrap token"),
    ("node.kubelet.extraConfig", {"a": float("inf")}, "that JSON does not support"),
    ("azure.location", "a\nb", "has a line break"),
    ("azure.arc.tags", {"a": "\x9b"}, "non-printable"),
    # addresses
    ("node.kubelet.dnsServiceIP", "10.0.0.300", "is not an IP address"),
    ("node.ip", "edge-1", "is not an IP address"),
    ("azure.vpn.p2sGatewayCIDR", "192.168.100.1/24", "Use 192.168.100.0/24"),
    ("azure.vpn.p2sGatewayCIDR", "192.168.100.0", "no prefix length"),
    ("containerd.metricsAddress", "127.0.0.1", "port from 1 to 65535"),
    ("containerd.metricsAddress", "127.0.0.1:70000", "port from 1 to 65535"),
    ("containerd.metricsAddress", "::1:80", "port from 1 to 65535"),
    # URLs
    ("node.kubelet.serverURL", "http://api:443", "must be reached with https://"),
    ("node.kubelet.serverURL", "api.example:443", "starts with https://"),
    ("node.kubelet.serverURL", "https://", "starts with https://"),
    ("node.kubelet.serverURL", "https://api:99999", "starts with https://"),
    ("node.kubelet.serverURL", "https://me:pw@api", "user name, a password"),
    ("kubernetes.urlTemplate", "https://example.com/v%s/%s", "has 2 %s placeholders"),
    ("kubernetes.urlTemplate", "https://dl.k8s.io/release/bin", "has 0 %s placeholders"),
    ("runc.url", "ftp://example.com/%s", "starts with http:// or https://"),
    ("runc.url", "https://example.com/%d", "neither %s nor"),
    *(
        (f"{part}.url", "https://m.example/{verison}/a", "unknown placeholder {verison}. Use {version} and {arch}.")
        for part in ("containerd", "runc", "cni", "npd", "agent")
    ),
    ("runc.url", "https://m.example/{name}", "unknown placeholder {name}"),
    ("runc.url", "https://m.example/{version/runc", "unknown placeholder {version/runc"),
    ("runc.url", "https://m.example/{version}/runc.%s", "has both %s and {} placeholders"),
    ("agent.url", "ftp://m.example/{version}", "starts with http:// or https://"),
    ("kubernetes.urlTemplate", "https://m.example/{program}", "unknown placeholder {program}"),
    ("artifacts.baseURL", "mirror", "starts with http:// or https://"),
    ("artifacts.baseURL", "http://mirror.example", "is not encrypted. Use an https URL"),
    ("kubernetes.urlTemplate", "HTTP://mirror.example/%s/%s/%s", "is not encrypted. Use an https URL"),
    ("agent.url", "http://mirror.example/{version}", "is not encrypted. Use an https URL"),
    ("proxy.https", "proxy:3128", "A proxy has the form"),
    ("proxy.noProxy", ["http://a"], "without scheme"),
    ("registryMirrors", {"https://mcr.microsoft.com": []}, "is not the host of a registry"),
    ("registryMirrors", {"docker.io": ["mirror"]}, "starts with http:// or https://"),
    # certificates and hashes
    ("node.kubelet.caCertData", "nonsense", "is not a certificate"),
    ("node.kubelet.caCertData", CA[:200], "cannot be loaded"),
    ("node.kubelet.caCertData", PEM[:200], "cannot be loaded"),
    ("kubernetes.sha256", {"kubelet": "abc"}, "64 hexadecimal digits"),
    # paths
    ("paths.dataDir", "data", "must be an absolute path"),
    ("paths.dataDir", "/", "is a system directory"),
    ("paths.dataDir", "/etc/", "is a system directory"),
    ("paths.dataDir", "/var/lib", "is a system directory"),
    ("paths.dataDir", "//", "is a system directory"),
    ("paths.dataDir", "/var/lib/x/..", "is a system directory"),
    ("paths.dataDir", "/var/lib/../lib/x", "without `.` and `..`"),
    ("paths.dataDir", "/var/lib/a b", "systemd units"),
    ("paths.dataDir", "/proc/x", "directory of the kernel"),
    ("paths.dataDir", "/var/lib/kubelet", "overlaps with paths.dataDir"),
    ("paths.kubernetes.kubeletDir", "/var/lib/aks-flex-node/kubelet", "overlaps with paths.dataDir"),
    ("paths.containerdDir", "/var/lib/kubelet/containerd", "overlaps with paths.kubernetes.kubeletDir"),
    ("paths.logDir", "/var/lib/aks-flex-node", "overlaps with paths.dataDir"),
    ("paths.binDir", "/", "not / itself"),
    # Azure
    ("azure.targetCluster.resourceId", "/subscriptions/x", "is not the ID of an AKS cluster"),
    ("azure.subscriptionId", "<your_subscription_ID>", "still the placeholder"),
    ("azure.resourceGroup", "a/b", "not allowed in Azure names"),
    ("azure", {"arc": {"enabled": True, "autoRegister": False}}, "deprecated name of azure.arc.enabled"),
    ("azure", {"managedIdentity": {}, "arc": {"enabled": True}}, "Set only one of them"),
    ("azure", {"managedIdentity": {}, "servicePrincipal": {"clientId": "a"}}, "Set only one Azure identity"),
    ("azure", {"workloadIdentity": FEDERATED, "servicePrincipal": {"clientId": "a"}}, "Set only one Azure identity"),
    ("azure", {"workloadIdentity": FEDERATED, "managedIdentity": {}}, "Set only one Azure identity"),
    ("azure", {"workloadIdentity": FEDERATED, "arc": {"enabled": True}}, "Set only one of them"),
    ("azure.workloadIdentity", {"clientId": "a/b", "tokenFile": "/x"}, "not allowed in Azure names"),
    ("azure.servicePrincipal", {"clientId": "a", "clientCertificate": "hunter2"}, "its private key in PEM"),
    (
        "azure.servicePrincipal",
        {"clientId": "a", "clientCertificate": BOTH, "clientSecret": "b"},
        "Set only one of them",
    ),
    ("azure.vpn", {"gatewaySubnetCIDR": "10.0.0.0"}, "has no prefix length"),
    ("azure.arc.roles", ["Cluster User"], "is not one of Reader, Azure Kubernetes Service RBAC Cluster Admin"),
    ("azure.vpn", {"dnsServers": ["ns.example"]}, "is not an IP address"),
    ("azure.vpn", {"dnsDomains": ["Example.com"]}, "is not a DNS domain"),
    ("azure.arc", {"package": {"repository": "packages.example"}}, "is not a URL"),
    ("azure", {"subscriptionId": "b", "targetCluster": {"resourceId": CLUSTER_ID}}, "has the subscription b"),
    (
        "azure",
        {"targetCluster": {"resourceId": CLUSTER_ID}, "arc": {"targetCluster": {"name": "other"}}},
        "has the name other, but another setting has cluster-1",
    ),
]


@pytest.mark.parametrize(("path", "value", "said"), CASES, ids=[f"{path}-{said}" for path, _, said in CASES])
def test_invalid_value_is_reported_with_its_reason(path: str, value: object, said: str) -> None:
    found = problems_of(settings({path: value}))

    assert len(found) == 1, [str(problem) for problem in found]
    assert said in str(found[0])
    assert found[0].path.partition(".")[0] == path.partition(".")[0]
    assert found[0].origin.startswith("test")


RIGHT: list[tuple[str, object]] = [
    ("node.name", "edge-1.example.com"),
    ("node.labels", {"a": "", "example.com/b_C": "d.E-1", "node.kubernetes.io/instance-type": "z"}),
    ("node.labels", {"topology.kubernetes.io/zone": "1", "sub.kubelet.kubernetes.io/x": "", "mykubernetes.io/x": ""}),
    ("node.taints", ["a:NoSchedule", "a=b:NoExecute", {"key": "c", "effect": "PreferNoSchedule"}]),
    ("node.kubelet.kubeReserved", {"cpu": "100m", "memory": "1.5Gi", "ephemeral-storage": "1e9", "pid": "100"}),
    ("node.kubelet.evictionHard", {"memory.available": "5%", "pid.available": "1k"}),
    ("node.kubelet.nodeStatusUpdateFrequency", "1m30.5s"),
    ("node.kubelet.serverURL", "https://[fd00::1]:6443"),
    ("node.kubelet.dnsServiceIP", "fd00::a"),
    ("kubernetes.urlTemplate", "https://example.com/v%s/kubernetes-node-linux-%s.tar.gz"),
    ("kubernetes.urlTemplate", "https://dl.k8s.io/release/v{version}/bin/linux/amd64"),
    ("containerd.url", "https://example.com/v{version}/containerd-{version}-linux-{arch}.tar.gz"),
    ("kubernetes.version", "v1.35.0-rc.1"),
    ("kubernetes.sha256", {"kubelet": HASH}),
    ("runc.url", "https://10.0.0.1:8080/a%20b/runc"),
    ("containerd.metricsAddress", ""),
    ("containerd.metricsAddress", "[::1]:10257"),
    ("containerd.metricsAddress", "0.0.0.0:10257"),
    ("containerd.pauseImage", f"registry:5000/a/pause:3.9@sha256:{HASH}"),
    ("proxy", {"http": "http://me:pw@proxy:3128", "noProxy": ["*", ".a.b", "10.0.0.0/8", "[::1]"]}),
    ("registryMirrors", {"docker.io": ["https://mirror.example/v2"], "registry:5000": []}),
    ("paths", {"dataDir": "/data", "logDir": "/data/log", "binDir": "/usr/bin"}),
    ("azure.bootstrapToken", None),
    ("azure.arc.resourceGroup", ""),
]


@pytest.mark.parametrize(("path", "value"), RIGHT)
def test_valid_value_is_accepted(path: str, value: object) -> None:
    assert load_settings({path: value}).warnings is not None


def test_all_config_problems_are_reported_at_once_with_their_origin() -> None:
    text = """\
node:
  maxPods: many
  name: Edge
  kubelet:
    dnsServiceIP: 10.0.0.300
    imageGCLowThreshold: 95
    verbosity: 11
    unknown: 1
paths: {dataDir: /etc}
"""

    found = problems_of(
        text, {"AKS_FLEX_NODE_NODE__MAXPODS": "1"}, {"node.lables": "{}", "nod.x.y": 1, "node.name.x": 1}
    )

    assert {(problem.path, problem.origin) for problem in found} == {
        ("node.maxPods", "test:2"),
        ("node.name", "test:3"),
        ("node.kubelet.dnsServiceIP", "test:5"),
        ("node.kubelet.imageGCLowThreshold", "test:6"),
        ("node.kubelet.verbosity", "test:7"),
        ("node.kubelet.unknown", "test:8"),
        ("paths.dataDir", "test:9"),
        ("AKS_FLEX_NODE_NODE__MAXPODS", "environment"),
        ("node.lables", "flag --set"),
        ("nod.x.y", "flag --set"),
        ("node.name.x", "flag --set"),
    }


def test_invalid_setting_causes_no_further_problem_in_related_settings() -> None:
    (problem,) = problems_of(settings({"node.kubelet": {"imageGCHighThreshold": "x", "imageGCLowThreshold": 90}}))

    assert problem.path == "node.kubelet.imageGCHighThreshold"


def test_config_error_message_lists_one_problem_per_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_plain(settings({"node.maxPods": 0, "node.ip": "x"}))

    first, *lines = caught.value.message.splitlines()
    assert first == "The configuration is invalid: 2 problems in test. Nothing was changed."
    assert lines[1] == '  node.ip: "x" is not an IP address, for example 10.0.0.10.  [test:1]'
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ('{"a": 1,\n "b" 2}', "a.json", "a.json:2:6 is not JSON"),
        ("a: 1\n b: 2\n", "a.yaml", "a.yaml:2:3 is not YAML"),
        ("a: *x\n", "a.yaml", "a.yaml:1:4 is not YAML"),
        ("a: \x00\n", "a.yaml", "a.yaml is not YAML"),
        ("- a\n", "a.yaml", "does not contain settings"),
        ("[]", "a.json", "does not contain settings"),
        ("[" * 100_000, "a.json", "nested too deeply"),
        ("a: " + "[" * 5_000, "a.yaml", "nested too deeply"),
        ("a: !!python/object:os.system x\n", "a.yaml", "not YAML"),
    ],
)
def test_syntax_error_names_its_position(text: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_plain(text, name)

    assert caught.value.name == "config-syntax"


@pytest.mark.parametrize(
    "text", ['{"node": {"ip": "10.0.0.1", "ip": "10.0.0.2"}}', "node:\n  ip: 10.0.0.1\n  ip: 10.0.0.2\n"]
)
def test_duplicate_key_is_refused(text: str) -> None:
    (problem,) = problems_of(text)

    assert str(problem).startswith("node.ip: occurs twice in the file.")


def test_two_names_of_one_setting_in_one_source_are_refused() -> None:
    (problem,) = problems_of(json.dumps({"node": {"maxPods": 1, "max_pods": 2}}))

    assert "two of its names" in str(problem)


def test_environment_map_that_is_not_json_is_refused() -> None:
    (problem,) = problems_of("{}", {"AKS_FLEX_NODE_NODE__LABELS": "a=b"})

    assert str(problem).startswith('node.labels: must be JSON here, for example {"name": "value"}.')


def test_empty_file_is_an_empty_config() -> None:
    assert load_plain("", "a.yaml").config.node.max_pods == 110


def test_empty_section_is_ignored_with_a_warning() -> None:
    loaded = load_plain("azure:\n  managedIdentity:\n", "a.yaml")

    assert loaded.config.azure.managed_identity is None
    assert "azure.managedIdentity is empty" in loaded.warnings[0]
