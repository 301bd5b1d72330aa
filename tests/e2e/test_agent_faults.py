"""Faults during a join and their error messages. After each, a repeated command succeeds."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import node_agent
from aks_flex_lab.mirror.fault_rules import ByteAmount, CorruptFault, CutFault, SlowFault, StallFault, StatusFault
from aks_flex_lab.pki import CertificateAuthority
from tests.agents import differences, flex
from tests.remedies.catalogue import advice, command

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.mirror.fault_rules import MirrorFault

IMPATIENT = {"artifacts": {"attempts": 2, "stallSeconds": 1.5}}
KUBELET = "dl.k8s.io/*/kubelet"


def given(lab: Lab, machine: EdgeMachine, **changes: Any) -> None:
    document = node_agent.configuration(lab, changes=node_agent.merge(IMPATIENT, changes))
    node_agent.write_configuration(machine, document)


def join_error(machine: EdgeMachine, code: int, *words: str) -> str:
    """Returns the error message of a failed join."""
    done = flex(machine, "bootstrap", *words, check=False)
    assert done.code == code, f"exit {done.code}\n{done.err}"
    return done.err


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(SlowFault(40_000_000), id="slow"),
        pytest.param(StallFault(ByteAmount.parse("50%"), 20), id="stalled once"),
        pytest.param(CutFault(ByteAmount.parse("50%")), id="cut once"),
        pytest.param(StatusFault(503), id="503 once"),
    ],
)
def test_bootstrap_succeeds_despite_temporary_mirror_fault(
    lab: Lab, machine: EdgeMachine, fault: MirrorFault
) -> None:
    given(lab, machine)
    lab.mirror.add(KUBELET, fault, None if isinstance(fault, SlowFault) else 1)

    flex(machine, "bootstrap", "--skip", "artifacts")

    assert lab.cluster.node_ready(machine.name)


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        pytest.param(CorruptFault(), "artifact-checksum-mismatch", "sha256", id="wrong bytes"),
        pytest.param(StatusFault(404), "artifact-not-found", "kubelet", id="404"),
        pytest.param(StatusFault(503), "artifact-unreachable", "503", id="503"),
        pytest.param(StallFault(ByteAmount.parse("0"), 60), "artifact-unreachable", "kubelet", id="stalled"),
    ],
)
def test_bootstrap_reports_persistent_mirror_fault(
    lab: Lab, machine: EdgeMachine, fault: MirrorFault, name: str, words: str
) -> None:
    given(lab, machine)
    lab.mirror.add(KUBELET, fault)

    said = join_error(machine, 5, "--skip", "artifacts")

    assert name in said
    assert words in said
    lab.mirror.reset()
    flex(machine, "bootstrap")


def test_preflight_reports_missing_artifact_before_any_change(lab: Lab, machine: EdgeMachine) -> None:
    given(lab, machine)
    lab.mirror.add(KUBELET, StatusFault(404))
    before = machine.snapshot()

    said = join_error(machine, 4)

    assert "preflight-failed" in said
    assert "artifacts: " in said
    assert "kubelet" in said
    assert differences(before, machine) == []


def test_full_disk_is_reported_with_its_path(lab: Lab, machine: EdgeMachine) -> None:
    given(lab, machine)
    machine.run("mkdir", "-p", "/opt/aks-flex-node")
    machine.run("mount", "-t", "tmpfs", "-o", "size=40m", "none", "/opt/aks-flex-node")
    try:
        found = join_error(machine, 4)
        forced = join_error(machine, 4, "--skip", "disk")
    finally:
        machine.run("umount", "/opt/aks-flex-node")
        machine.run("rmdir", "/opt/aks-flex-node")

    assert "disk:" in found
    assert "/opt/aks-flex-node" in found
    assert "disk-full" in forced
    assert "/opt/aks-flex-node" in forced


@pytest.mark.remedy("api-server-unreachable")
def test_unreachable_api_server_is_reported(lab: Lab, machine: EdgeMachine) -> None:
    given(lab, machine, node={"kubelet": {"serverURL": "https://198.18.0.99:443"}}, agent={"joinSeconds": 15})

    assert "198.18.0.99" in join_error(machine, 4)
    forced = join_error(machine, 6, "--skip-phase", "preflight")

    assert "api-server-unreachable" in forced
    assert "https://198.18.0.99:443" in forced

    advice("api-server-unreachable", "Check `node.kubelet.serverURL`")
    given(lab, machine)
    flex(machine, "bootstrap")


@pytest.mark.remedy("api-server-untrusted")
def test_wrong_cluster_ca_is_reported(lab: Lab, machine: EdgeMachine, tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path)
    other.ensure()
    document = node_agent.configuration(lab, changes=IMPATIENT)
    node_agent.write_configuration(
        machine, node_agent.merge(document, {"node": {"kubelet": {"caCertData": other.certificate.read_text()}}})
    )

    assert "api-server" in join_error(machine, 4)
    assert "api-server-untrusted" in join_error(machine, 6, "--skip-phase", "preflight")

    advice("api-server-untrusted", "Copy `certificate-authority-data` from a working kubeconfig")
    [working] = json.loads(lab.cluster.run("config", "view", "--raw", "-o", "json").out)["clusters"]
    trusted = trusted_ca(working["cluster"])
    node_agent.write_configuration(
        machine, node_agent.merge(document, {"node": {"kubelet": {"caCertData": trusted}}})
    )
    flex(machine, "bootstrap")


def trusted_ca(cluster: dict[str, str]) -> str:
    """Returns the CA of a kubeconfig, which contains it or names its file."""
    file = cluster.get("certificate-authority")
    return b64encode(Path(file).read_bytes()).decode() if file else cluster["certificate-authority-data"]


@pytest.mark.remedy("bootstrap-token-rejected")
def test_refused_bootstrap_token_is_reported_and_never_shown(lab: Lab, machine: EdgeMachine) -> None:
    secret = "abcdef.0123456789abcdef"
    given(lab, machine, azure={"bootstrapToken": {"token": secret}})

    early, forced = join_error(machine, 4), join_error(machine, 6, "--skip-phase", "preflight")

    assert "token" in early
    assert "bootstrap-token-rejected" in forced
    assert secret not in early + forced

    advice("bootstrap-token-rejected", "a Secret of type `bootstrap.kubernetes.io/token` in `kube-system`")
    given(lab, machine, azure={"bootstrapToken": {"token": lab.cluster.bootstrap_token()}})
    flex(machine, "bootstrap")


GROUP = "system:bootstrappers:remedies"


@pytest.mark.remedy("bootstrap-token-forbidden", "certificate-not-issued")
def test_token_without_roles_joins_after_they_are_bound(lab: Lab, machine: EdgeMachine) -> None:
    token = lab.cluster.bootstrap_token()
    secret = ("-n", "kube-system", f"secret/bootstrap-token-{token[:6]}")
    other = json.dumps({"stringData": {"auth-extra-groups": GROUP}})
    lab.cluster.run("patch", *secret, "--patch", other)
    given(lab, machine, azure={"bootstrapToken": {"token": token}}, agent={"joinSeconds": 15})
    assert "bootstrap-token-forbidden" in join_error(machine, 6, "--skip-phase", "preflight")

    advice("bootstrap-token-forbidden", "Bind the token's group to the ClusterRole `system:node-bootstrapper`")
    bound = ("--clusterrole=system:node-bootstrapper", f"--group={GROUP}")
    lab.cluster.run("create", "clusterrolebinding", "remedies", *bound)
    try:
        assert "certificate-not-issued" in join_error(machine, 6, "--skip-phase", "preflight")
        for request in pending_requests(lab):
            kubectl, *words = command("certificate-not-issued", "kubectl certificate approve", NAME=request)
            assert kubectl == "kubectl"
            lab.cluster.run(*words)
        flex(machine, "bootstrap", "--skip-phase", "preflight")
    finally:
        lab.cluster.run("delete", "clusterrolebinding", "remedies")


def pending_requests(lab: Lab) -> list[str]:
    found = json.loads(lab.cluster.run("get", "csr", "-o", "json").out)["items"]
    return [one["metadata"]["name"] for one in found if not one["status"].get("conditions")]


@pytest.mark.remedy("preflight-failed")
def test_preflight_reports_port_in_use_and_its_process(lab: Lab, machine: EdgeMachine) -> None:
    given(lab, machine)
    machine.run("systemd-run", "--unit=squatter", "python3", "-m", "http.server", "10250")
    try:
        said = join_error(machine, 4)
        check = next(line.strip().partition(":")[0] for line in said.splitlines() if "10250" in line)
        skipped = flex(machine, "preflight", *command("preflight-failed", "--skip", NAME=check), check=False)
    finally:
        machine.run("systemctl", "stop", "squatter")

    assert "preflight-failed" in said
    assert "python3" in said
    assert skipped.ok, skipped.out
    advice("preflight-failed", "Follow the remedies in the message.")
    flex(machine, "preflight")


def test_preflight_reports_other_container_runtime(lab: Lab, machine: EdgeMachine) -> None:
    given(lab, machine)
    unit = "[Service]\nExecStart=/bin/sleep infinity\n"
    machine.run("sh", "-c", "cat >/usr/lib/systemd/system/containerd.service", input=unit)
    machine.run("systemctl", "start", "containerd")
    try:
        said = join_error(machine, 4)
    finally:
        machine.run("systemctl", "stop", "containerd")
        machine.run("rm", "/usr/lib/systemd/system/containerd.service")
        machine.run("systemctl", "daemon-reload")

    assert "other-runtime" in said
    assert "containerd" in said


@pytest.mark.remedy("service-failed")
def test_kubelet_start_failure_is_reported_with_its_journal(lab: Lab, machine: EdgeMachine) -> None:
    given(lab, machine, node={"kubelet": {"extraConfig": {"topologyManagerPolicy": "nonsense"}}})

    said = join_error(machine, 4)

    assert "service-failed" in said
    assert "nonsense" in said
    advice("service-failed", "correct the configuration")
    given(lab, machine)
    flex(machine, *command("service-failed", "aks-flex-node bootstrap")[1:])


def test_invalid_config_is_reported_and_nothing_is_installed(lab: Lab, machine: EdgeMachine) -> None:
    machine.run("sh", "-c", "echo '{\"node\": ' >/etc/aks-flex-node/config.json")
    assert "config-syntax" in join_error(machine, 3)

    given(lab, machine, node={"maxPods": 0, "labels": {"a b": "c"}}, knot={"x": 1})
    said = join_error(machine, 3)
    for words in ("node.maxPods", "node.labels", "knot"):
        assert words in said
    assert machine.run("ls", "/usr/local/bin/kubelet", check=False).code != 0
    given(lab, machine)
