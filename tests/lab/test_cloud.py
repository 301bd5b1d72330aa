"""Tests of the lab's cloud from an edge machine: host names, fault rules of the mirror, images."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.components.fault_proxy import PROXIED_SERVICES
from aks_flex_lab.errors import LabError
from tests.harness import LAB, command
from tests.lab_machines import temporary_machine
from tests.remedies.lab_harness import error_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult

RUNC = "https://github.com/opencontainers/runc/releases/download/v1.5.2"
RUNC_GLOB = "github.com/opencontainers/runc/*/runc.*64"
API = "https://api.flex.internal/version"


@pytest.fixture(scope="module")
def edge(lab: Lab) -> Iterator[EdgeMachine]:
    with temporary_machine(lab, "cloud-user") as machine:
        yield machine


@pytest.fixture(autouse=True)
def _calm(lab: Lab) -> Iterator[None]:
    yield
    lab.mirror.reset()


def curl(edge: EdgeMachine, *words: str) -> CommandResult:
    return edge.run("curl", "-sS", "--fail", *words, check=False)


def size_of(edge: EdgeMachine, path: str = "/root/runc") -> int:
    return int(edge.run("stat", "-c", "%s", path).out)


def fetch(edge: EdgeMachine, *words: str) -> CommandResult:
    edge.run("rm", "-f", "/root/runc")
    return curl(edge, "-o", "/root/runc", *words, f"{RUNC}/runc.{arch(edge)}")


def arch(edge: EdgeMachine) -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[edge.run("uname", "-m").out.strip()]


def test_publisher_urls_serve_artifacts_and_checksums_in_lab(lab: Lab, edge: EdgeMachine) -> None:
    of = arch(edge)
    kubelet = f"https://dl.k8s.io/v1.36.3/bin/linux/{of}/kubelet"
    promised = curl(edge, f"{kubelet}.sha256").out.strip()
    got = edge.run("sh", "-c", f"curl -sSf {kubelet} | sha256sum").out.split()[0]
    real = hashlib.sha256(lab.toolbox.path("kubernetes", "kubelet").read_bytes()).hexdigest()

    assert promised == got == real
    for url in (
        f"https://dl.k8s.io/release/v1.35.4/bin/linux/{of}/kubeadm",
        "https://dl.k8s.io/release/stable.txt",
        f"https://github.com/containerd/containerd/releases/download/v1.7.29/containerd-1.7.29-linux-{of}.tar.gz",
        f"https://github.com/containernetworking/plugins/releases/download/v1.9.1/cni-plugins-linux-{of}-v1.9.1.tgz",
        f"https://github.com/kubernetes/node-problem-detector/releases/download/v1.34.0/node-problem-detector-v1.34.0-linux_{of}.tar.gz",
        f"https://acs-mirror.azureedge.net/kubernetes/v1.36.3/binaries/kubernetes-node-linux-{of}.tar.gz",
    ):
        assert curl(edge, "--head", url).ok, url


def test_mirror_answers_range_request_with_requested_bytes(edge: EdgeMachine) -> None:
    assert fetch(edge, "--range", "100-199").ok
    assert size_of(edge) == 100


def test_mirror_serves_images_under_publisher_names(edge: EdgeMachine) -> None:
    assert '"oss/kubernetes/pause"' in curl(edge, "https://mcr.microsoft.com/v2/_catalog").out
    assert curl(edge, "https://registry.k8s.io/v2/pause/tags/list").ok


def test_slow_fault_limits_download_rate(lab: Lab, edge: EdgeMachine) -> None:
    command(LAB, "mirror", "add", RUNC_GLOB, "slow", "rate=100k")

    assert fetch(edge, "--max-time", "5").code == 28  # nine megabytes would take 90 seconds
    assert size_of(edge) < lab.toolbox.path("runc", "runc").stat().st_size


def test_stall_fault_stops_download_after_given_bytes(edge: EdgeMachine) -> None:
    command(LAB, "mirror", "add", RUNC_GLOB, "stall", "after=100k")

    assert fetch(edge, "--max-time", "5").code == 28
    assert size_of(edge) == 100 << 10


def test_cut_fault_ends_download_half_way_and_resume_succeeds(lab: Lab, edge: EdgeMachine) -> None:
    command(LAB, "mirror", "add", RUNC_GLOB, "cut", "--times", "1")

    assert fetch(edge).code in {18, 56}
    assert size_of(edge) == lab.toolbox.path("runc", "runc").stat().st_size // 2
    again = curl(edge, "-C", "-", "-o", "/root/runc", f"{RUNC}/runc.{arch(edge)}")
    assert again.ok
    assert size_of(edge) == lab.toolbox.path("runc", "runc").stat().st_size


def test_corrupt_fault_sends_wrong_bytes_of_right_length(lab: Lab, edge: EdgeMachine) -> None:
    command(LAB, "mirror", "add", RUNC_GLOB, "corrupt")

    assert fetch(edge).ok
    assert size_of(edge) == lab.toolbox.path("runc", "runc").stat().st_size
    assert edge.run("sha256sum", "/root/runc").out.split()[0] not in curl(edge, f"{RUNC}/runc.sha256sum").out


def test_missing_and_unavailable_faults_return_404_and_503(edge: EdgeMachine) -> None:
    command(LAB, "mirror", "add", RUNC_GLOB, "status", "code=404", "--times", "1")
    assert "404" in fetch(edge).err
    command(LAB, "mirror", "add", RUNC_GLOB, "status", "code=503", "--times", "1")
    assert "503" in fetch(edge).err
    assert fetch(edge).ok


def test_checksum_fault_changes_only_the_checksum_file(lab: Lab, edge: EdgeMachine) -> None:
    before = curl(edge, f"{RUNC}/runc.sha256sum").out
    command(LAB, "mirror", "add", RUNC_GLOB, "checksum")

    assert fetch(edge).ok
    assert edge.run("sha256sum", "/root/runc").out.split()[0] in before
    assert curl(edge, f"{RUNC}/runc.sha256sum").out != before


def test_mirror_counts_requests_and_reset_clears_rules_and_counts(lab: Lab, edge: EdgeMachine) -> None:
    command(LAB, "mirror", "add", RUNC_GLOB, "status", "code=404")
    fetch(edge)
    fetch(edge)
    path = f"github.com/opencontainers/runc/releases/download/v1.5.2/runc.{arch(edge)}"

    assert lab.mirror.requests()[path].requests == 2
    assert [rule.hits for rule in lab.mirror.rules()] == [2]
    command(LAB, "mirror", "reset")
    assert lab.mirror.rules() == ()
    assert lab.mirror.requests() == {}
    assert fetch(edge).ok


def test_api_server_fault_applies_to_machines_until_cleared(lab: Lab, edge: EdgeMachine) -> None:
    try:
        command(LAB, "fault", "add", "api", "timeout", "timeout=0")
        with pytest.raises(LabError) as stopped:
            edge.run("curl", "-sS", API, timeout=2)
        assert stopped.value.name == "program-timeout"
        assert lab.cluster.run("get", "--raw", "/readyz").out == "ok"  # users on this host are not affected
        command(LAB, "fault", "clear")
        assert curl(edge, "--max-time", "10", API).ok

        command(LAB, "fault", "refuse", "api")
        assert curl(edge, "--max-time", "2", API).code == 7
    finally:
        command(LAB, "fault", "clear")
    assert curl(edge, "--max-time", "10", API).ok


def test_corrected_fault_command_adds_the_fault(lab: Lab) -> None:
    def error(*words: str) -> str:
        return error_name(command(LAB, "fault", *words, check=False).err)

    example = ("fault", "add", "api", "latency", "latency=500", "jitter=100")
    services = [known.name for known in PROXIED_SERVICES]
    try:
        assert error("add", "apis", "latency", "latency=500") == "fault-target-unknown"
        assert error("add", services[0], "slowness") == "fault-unknown"
        assert error("add", services[0], "latency", "latency=1s") == "fault-invalid"
        command(LAB, *example)
        assert error(*example[1:]) == "fault-failed"  # the same fault is already active
        command(LAB, "fault", "clear", "api")
        command(LAB, *example)
    finally:
        command(LAB, "fault", "clear")


# Sends a request, waits for a signal, and sends another on the same connection.
ASK_TWICE = """
import http.client, os, time
api = http.client.HTTPSConnection("api.flex.internal", timeout=5)
def ask():
    api.request("GET", "/version")
    return api.getresponse().read()
ask()
open("/root/asked", "w").close()
while not os.path.exists("/root/go"):
    time.sleep(0.05)
try:
    ask()
    print("answered")
except OSError as error:
    print("broken")
"""


def test_new_fault_breaks_already_open_connection(lab: Lab, edge: EdgeMachine) -> None:
    said: list[str] = []
    asking = threading.Thread(target=lambda: said.append(edge.run("python3", "-", input=ASK_TWICE).out.strip()))
    asking.start()
    edge.run("sh", "-c", "for _ in $(seq 200); do [ -e /root/asked ] && exit 0; sleep 0.05; done; exit 1")
    try:
        command(LAB, "fault", "add", "api", "latency", "latency=1")
        edge.run("touch", "/root/go")
        asking.join(30)
    finally:
        command(LAB, "fault", "clear")

    assert said == ["broken"]


def test_api_server_and_dns_answer_at_service_addresses(edge: EdgeMachine) -> None:
    assert curl(edge, "--resolve", "kubernetes:443:198.19.128.1", "https://kubernetes/version").ok
    resolver = "mount --bind /root/resolv.conf /etc/resolv.conf; getent hosts kubernetes.default.svc.cluster.local"
    edge.run("sh", "-c", "echo nameserver 198.19.128.10 >/root/resolv.conf")
    assert edge.run("unshare", "--mount", "sh", "-c", resolver).out.split()[0] == "198.19.128.1"
