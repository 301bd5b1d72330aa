"""Tests of the policy of a machine: a compromised provider, pool or cluster orders what the administrator forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import fields, replace

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.policy import (
    POLICY_FILE,
    WORDS,
    Policy,
    parse_policy,
    read_policy,
    refuse_by_policy,
    strictest,
)
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import MakeDirectory, MakeLink, WriteFile
from aks_flex_node.settings.setting import MACHINE
from aks_flex_node.settings.table import ConfigSection, find_entry, keys
from tests.remedies.catalogue import advice
from tests.unit.agent.builders import config_of, empty_host
from tests.unit.agent.config.builders import CLUSTER_ID, PEM, Settings
from tests.unit.agent.jobs.test_machine_operation import Scene as Operations
from tests.unit.agent.jobs.test_machine_operation import request
from tests.unit.agent.jobs.update.harness import Scene

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.recorded import RecordedHost

PRINCIPAL = {
    "azure.servicePrincipal.clientId": "11111111-1111-1111-1111-111111111111",
    "azure.servicePrincipal.clientSecret": "canary",
    "azure.tenantId": "22222222-2222-2222-2222-222222222222",
}
ORDERS: dict[str, Settings] = {
    "agent.version": {"continuousMonitoring": True, **PRINCIPAL, "agent.version": "9.9.9"},
    "node.kubelet.auth": {**PRINCIPAL, "node.kubelet.auth": "exec"},
    "azure.vpn": {"azure.vpn.p2sGatewayCIDR": "172.16.0.0/24"},
    "cluster": {"node.kubelet.serverURL": "https://evil.example:443"},
    "artifactHosts": {"artifacts.baseURL": "https://evil.example/mirror"},
}
IMAGES: list[Settings] = [
    {"containerd.pauseImage": "evil.example/pause:3.9"},
    {"containerd.pauseImage": "evil/pause:3.9"},
    {"registryMirrors": {"mcr.microsoft.com": ["https://evil.example"]}},
]


REMOTE = {key.path: key for key in keys() if key.setting.who != MACHINE and key.kind != "secret"}
VALUES: dict[str, tuple[object, object]] = {
    "node.kubelet.auth": ("certificate", "bootstrapToken"),
    "node.kubelet.serverURL": ("https://cluster.example", "https://evil.example:443"),
    "node.kubelet.caCertData": (PEM, PEM.replace("MIIBITCB", "MIIBITCC")),
}


def with_value(model: Any, path: str, value: object, above: str = "") -> Any:
    """Returns a configuration with another value, which need not be valid. Sections that are not set are added."""
    name, _, below = path.partition(".")
    entry, _ = find_entry(f"{above}.{name}".lstrip("."))
    assert entry
    attribute = entry.attributes[-1]
    if isinstance(entry, ConfigSection):
        inner = getattr(model, attribute)
        if inner is None:
            inner = entry.model(**{one.name: "" for one in fields(entry.model) if one.required})
        value = with_value(inner, below, value, entry.path)
    return replace(model, **{attribute: value})


@pytest.mark.parametrize("path", REMOTE)
def test_change_of_a_setting_is_refused_by_its_path_section_and_reach(path: str) -> None:
    before, after = (with_value(config_of(), path, value) for value in VALUES.get(path, ("one", "two")))
    parts, reaches = path.split("."), REMOTE[path].setting.reaches
    entries = [".".join(parts[:end]) for end in range(1, len(parts) + 1)] + ([reaches] if reaches in WORDS else [])
    for entry in entries:
        policy = parse_policy(f"forbid: [{entry}]".encode())
        assert policy.violations(after, before) == [path if entry == path else f"{path} ({entry})"]
        assert policy.violations(before, before) == []
    others = parse_policy(f"forbid: [{', '.join({*WORDS} - {reaches})}]".encode())
    assert others.violations(after, before) == []


GIVEN_BY_A_JOIN: Settings = {
    **PRINCIPAL,
    "continuousMonitoring": True,
    "kubernetes.version": "1.33.13",
    "containerd.version": "2.3.0",
    "node.name": "edge-1",
    "node.labels": {"site": "oslo"},
    "node.kubelet.dnsServiceIP": "10.0.0.10",
    "node.kubelet.serverTLSBootstrap": True,
    "node.kubelet.auth": "certificate",
    "provider.url": "https://provider.example",
}


def test_join_may_give_name_identity_cluster_and_versions() -> None:
    """There is nothing yet that a provider could change. What it decides beyond that is refused at once."""
    policy = strictest("is damaged")
    assert policy.violations(config_of(GIVEN_BY_A_JOIN)) == []
    for order, entry in (
        ({"node.kubelet.extraConfig": {"maxOpenFiles": 5}}, "isolation"),
        ({"azure.vpn.enabled": True}, "network"),
        ({"agent.version": "9.9.9"}, "versions"),
        ({"node.kubelet.auth": "exec"}, "credentials"),
    ):
        [path] = order
        assert policy.violations(config_of({**GIVEN_BY_A_JOIN, **order})) == [f"{path} ({entry})"]


def test_node_that_joins_by_exec_may_leave_it() -> None:
    policy = parse_policy(b"forbid: [node.kubelet.auth]")
    by_exec, by_certificate = (
        config_of({**PRINCIPAL, "node.kubelet.auth": each}) for each in ("exec", "certificate")
    )
    assert policy.violations(by_certificate, by_exec) == []
    assert policy.violations(by_exec, by_exec) == policy.violations(by_exec) == ["node.kubelet.auth"]


def write(host: RecordedHost, text: str | bytes, mode: int = 0o644) -> None:
    if host.stat("/etc/aks-flex-node") is None:
        host.apply(MakeDirectory("/etc/aks-flex-node"))
    host.apply(WriteFile(POLICY_FILE, text if isinstance(text, bytes) else text.encode(), mode))


def test_return_to_the_installed_program_is_another_version() -> None:
    policy = parse_policy(b"forbid: [agent.version]")
    current = config_of({"continuousMonitoring": True, **PRINCIPAL, "agent.version": "9.9.9"})
    desired = config_of({"continuousMonitoring": True, **PRINCIPAL})
    assert policy.violations(desired, current) == ["agent.version"]
    assert policy.violations(desired, desired) == policy.violations(desired) == []


@pytest.mark.parametrize("forbidden", ["azure.vpn", "artifactHosts"])
def test_order_without_a_policy_is_carried_out(forbidden: str) -> None:
    scene = Scene().wants(ORDERS[forbidden])
    assert scene.run().result is JobStatus.DONE
    assert scene.current == "2"


def test_permitted_hosts_are_accepted() -> None:
    scene = Scene().wants({"artifacts.baseURL": "https://Mirror.example/x"})
    write(scene.host, "artifactHosts: [mirror.EXAMPLE]\n")
    assert scene.run().result is JobStatus.DONE


@pytest.mark.parametrize("order", IMAGES)
def test_image_from_another_registry_is_refused(order: Settings) -> None:
    """A compromised provider replaces the images of privileged pods."""
    scene = Scene().wants(order)
    write(scene.host, "artifactHosts: []\n")
    outcome = scene.run()
    assert (outcome.result, outcome.reason) == (JobStatus.REFUSED, "RefusedByPolicy")
    assert scene.current == "1"


def test_image_sources_in_effect_are_not_refused() -> None:
    """The policy may be written after the join."""
    mirrors: Settings = {"registryMirrors": {"mcr.microsoft.com": ["https://mirror.example"]}}
    scene = Scene(mirrors).wants({**mirrors, "node.maxPods": 60})
    write(scene.host, "artifactHosts: []\n")
    assert scene.run().result is JobStatus.DONE


def test_another_ca_of_the_api_server_is_refused(tmp_path: Path) -> None:
    """A compromised provider redirects the name of the API server to a server with a certificate of its own CA."""
    evil = CertificateAuthority(tmp_path)
    evil.ensure()
    policy = parse_policy(b"forbid: [cluster]\n")
    orders = config_of({"node.kubelet.caCertData": evil.certificate.read_text()})
    assert policy.violations(orders, config_of()) == ["node.kubelet.caCertData (cluster)"]


@pytest.mark.parametrize("word", ["cluster", "azure.targetCluster", "azure.targetAgentPoolName"])
def test_first_name_of_a_cluster_or_pool_is_a_change(word: str) -> None:
    """A compromised provider hands a node over, whose configuration names no cluster yet, or none any more."""
    policy = parse_policy(f"forbid: [{word}]".encode())
    orders = config_of({"azure.targetCluster.resourceId": CLUSTER_ID, "azure.targetAgentPoolName": "evil"})
    assert policy.violations(orders, config_of())
    assert policy.violations(config_of(), orders)


def test_cluster_of_a_joined_node_may_be_named_in_another_form() -> None:
    policy = strictest("is damaged")
    same = config_of({"node.kubelet.serverURL": "https://Cluster.example", "node.kubelet.caCertData": PEM})
    assert policy.violations(same, config_of()) == []
    assert policy.violations(config_of(ORDERS["cluster"])) == [], "the first join chooses the cluster"


def test_damaged_policy_leaves_the_configuration_in_effect() -> None:
    scene = Scene().wants({"node.maxPods": 60})
    write(scene.host, b"forbid: [")
    assert scene.run().result is JobStatus.DONE
    refused = scene.wants(ORDERS["cluster"], "3").run()
    assert (refused.reason, scene.current) == ("RefusedByPolicy", "2")


@pytest.mark.parametrize(
    ("kind", "parameters", "needed"),
    [("AgentReset", {}, "unbootstrap"), ("AgentUpgrade", {"version": "9.0.0"}, "agent")],
)
def test_operation_of_the_cluster_is_refused(kind: str, parameters: dict[str, str], needed: str) -> None:
    scene = Operations(request(kind, parameters=parameters) if parameters else request(kind))
    write(scene.host, f"forbid: [{needed}]\n")
    assert scene.run()
    assert scene.cluster.phases == ["Failed"]
    assert f"({needed})" in scene.cluster.written[0]["status"]["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"forbid: [node.maxpods, agentUpdates]\n", "'node.maxpods' (did you mean node.maxPods?), 'agentUpdates'"),
        (b"forbid: [node.maxPods]\nforbid: []\n", "has the key forbid twice"),
        (b"forbids: []\n", "has the unknown key 'forbids' (did you mean forbid?)"),
        (b"forbid: cluster\n", "not a list of texts"),
        (b"artifactHosts: [1]\n", "not a list of texts"),
        (b"- cluster\n", "is not a mapping in valid YAML"),
        (b"forbid: [\n", "is not a mapping in valid YAML"),
        (b"\xff\xfe", "is not a mapping in valid YAML"),
        (b"a: &a [*a]\n", "has the unknown key"),
        (b"x" * (1 << 17), "is too large"),
    ],
)
def test_damaged_policy_forbids_everything_it_could(text: bytes, problem: str) -> None:
    host = empty_host()
    write(host, text)
    found = read_policy(host)
    assert problem in found.problem
    assert problem in found.describe()
    assert all(found.forbids(each) for each in WORDS)
    assert found.violations(config_of(ORDERS["artifactHosts"])) == [
        "artifacts.baseURL (programs)",
        "artifacts.baseURL (artifactHosts)",
    ]
    assert found.violations(config_of()) == [], "the publishers' hosts are always allowed"


def test_policy_that_others_can_change_forbids_everything() -> None:
    host = empty_host()
    write(host, "forbid: []\n", 0o666)
    assert "can be changed by other users" in read_policy(host).problem
    host = empty_host()
    host.apply(MakeDirectory("/etc/aks-flex-node"))
    host.apply(MakeLink(POLICY_FILE, "/var/lib/kubelet/pods/x/policy.yaml"))
    assert "is not a regular file" in read_policy(host).problem


def test_missing_and_empty_policies_forbid_nothing() -> None:
    assert read_policy(empty_host()) == Policy()
    assert parse_policy(b"# later\n") == Policy(exists=True)
    assert parse_policy(b"").describe() == "forbids nothing"


def test_policy_is_described_in_one_line() -> None:
    described = parse_policy(b"forbid: [unbootstrap]\nartifactHosts: [m.example]\n").describe()
    assert (
        described == "forbids unbootstrap, artifact hosts except dl.k8s.io, github.com, m.example, mcr.microsoft.com"
    )


@pytest.mark.remedy("refused-by-policy")
@pytest.mark.parametrize(
    "way", ["Remove the setting", "remove the entry from `forbid`", "add the host to `artifactHosts`"]
)
def test_refused_configuration_is_accepted_after_a_correction(way: str) -> None:
    text, values = b"forbid: [azure.vpn]\n", ORDERS["azure.vpn"]
    if "artifactHosts" in way:
        text, values = b"artifactHosts: []\n", ORDERS["artifactHosts"]
    policy = parse_policy(text)
    with pytest.raises(MachineError) as refused:
        refuse_by_policy(policy, policy.violations(config_of(values)))
    assert refused.value.name == "refused-by-policy"
    advice("refused-by-policy", way)
    if way == "Remove the setting":
        values = {}
    elif "forbid" in way:
        policy = parse_policy(b"forbid: []\n")
    else:
        policy = parse_policy(b"artifactHosts: [evil.example]\n")
    refuse_by_policy(policy, policy.violations(config_of(values)))
