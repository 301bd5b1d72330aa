"""The worker controls (section 4) of the CIS Kubernetes Benchmark 1.12, read from a running node, as kube-bench does.

Each control reads files of the machine, the arguments of its processes, or the effective configuration of its kubelet
through the API server. It works on every machine of the lab.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

BENCHMARK = (
    *(f"4.1.{number}" for number in range(1, 11)),
    *(f"4.2.{number}" for number in range(1, 15)),
    "4.3.1",
)
PROXY_METRICS_PORT = 10249
STRONG_CIPHERS = {
    f"TLS_ECDHE_{key}_WITH_{cipher}"
    for key in ("ECDSA", "RSA")
    for cipher in (
        "AES_128_GCM_SHA256",
        "AES_256_GCM_SHA384",
        "CHACHA20_POLY1305",
        "CHACHA20_POLY1305_SHA256",  # the name that Go has for the same suite
    )
}


class Outcome(Enum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    outcome: Outcome
    seen: str


@dataclass(frozen=True)
class WorkerNode:
    lab: Lab
    machine: EdgeMachine

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The effective configuration of the kubelet, with its defaults."""
        path = f"/api/v1/nodes/{self.machine.name}/proxy/configz"
        return dict(json.loads(self.lab.cluster.run("get", "--raw", path).out)["kubeletconfig"])

    @cached_property
    def arguments(self) -> dict[str, str]:
        """The arguments of the running kubelet."""
        return self._arguments(self._show("MainPID"))

    @cached_property
    def proxy_arguments(self) -> dict[str, str] | None:
        """The arguments of kube-proxy, which runs in a pod if the cluster has one; None if it does not run."""
        found = self.machine.run("pgrep", "-x", "kube-proxy", check=False).out.split()
        return self._arguments(found[0]) if found else None

    @cached_property
    def unit_files(self) -> list[str]:
        return [self._show("FragmentPath"), *self._show("DropInPaths").split()]

    def setting(self, path: str) -> Any:
        found: Any = self.settings
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def files(self, paths: Iterable[str]) -> list[tuple[str, int, str]]:
        """Returns the path, mode and owner of each file."""
        lines = self.machine.run("stat", "-L", "-c", "%n %a %U:%G", *paths).out.splitlines()
        rows = [line.split() for line in lines]
        return [(path, int(mode, 8), owner) for path, mode, owner in rows]

    def users(self) -> list[dict[str, Any]]:
        """Returns the credentials in the kubelet's kubeconfig."""
        found = yaml.safe_load(self.machine.run("cat", self.arguments["--kubeconfig"]).out)
        return [each["user"] for each in found["users"]]

    def listeners(self, port: int) -> list[str]:
        """Returns the addresses at which something listens on a port."""
        lines = self.machine.run("ss", "-Hltn", f"sport = :{port}").out.splitlines()
        return [line.split()[3].rpartition(":")[0] for line in lines]

    def _show(self, name: str) -> str:
        return self.machine.run("systemctl", "show", "kubelet", "-p", name, "--value").out.strip()

    def _arguments(self, pid: str) -> dict[str, str]:
        words = self.machine.run("cat", f"/proc/{pid}/cmdline").out.split("\0")
        return {name: value for name, _, value in (word.partition("=") for word in words if word.startswith("--"))}


def passed(seen: str, *, when: bool) -> Finding:
    return Finding(Outcome.PASS if when else Outcome.FAIL, seen)


def not_applicable(reason: str) -> Finding:
    return Finding(Outcome.NOT_APPLICABLE, reason)


@dataclass(frozen=True)
class Control:
    number: str
    title: str
    check: Callable[[WorkerNode], Finding]


def mode(paths: Callable[[WorkerNode], list[str]], most: int) -> Callable[[WorkerNode], Finding]:
    def check(node: WorkerNode) -> Finding:
        found = node.files(paths(node))
        seen = ", ".join(f"{path} {bits:04o}" for path, bits, _ in found)
        return passed(seen, when=bool(found) and not any(bits & ~most for _, bits, _ in found))

    return check


def owner(paths: Callable[[WorkerNode], list[str]]) -> Callable[[WorkerNode], Finding]:
    def check(node: WorkerNode) -> Finding:
        found = node.files(paths(node))
        seen = ", ".join(sorted({owned for _, _, owned in found}))
        return passed(seen, when=bool(found) and seen == "root:root")

    return check


def setting(path: str, good: Callable[[Any], bool]) -> Callable[[WorkerNode], Finding]:
    def check(node: WorkerNode) -> Finding:
        found = node.setting(path)
        return passed(f"{path}: {json.dumps(found)}", when=good(found))

    return check


def proxy_kubeconfig(judge: Callable[[Callable[[WorkerNode], list[str]]], Callable[[WorkerNode], Finding]]) -> Any:
    def check(node: WorkerNode) -> Finding:
        if node.proxy_arguments is None:
            return not_applicable("kube-proxy does not run on this node; the agent installs none")
        file = node.proxy_arguments.get("--kubeconfig")
        if file is None:
            return not_applicable("kube-proxy has no kubeconfig: it uses the service account of its pod")
        return judge(lambda _: [file])(node)

    return check


def hostname_override(node: WorkerNode) -> Finding:
    return passed(
        node.arguments.get("--hostname-override", "not set"), when="--hostname-override" not in node.arguments
    )


def serving_certificate(node: WorkerNode) -> Finding:
    """A certificate of the cluster is requested and rotated by the kubelet, so that no file is configured."""
    if node.setting("serverTLSBootstrap"):
        return passed("serverTLSBootstrap: true", when=True)
    if node.setting("tlsCertFile") and node.setting("tlsPrivateKeyFile"):
        [(_, bits, owned)] = node.files([node.setting("tlsPrivateKeyFile")])
        return passed(f"key {bits:04o} {owned}", when=not bits & ~0o600 and owned == "root:root")
    return passed("no certificate", when=False)


def client_certificate(node: WorkerNode) -> Finding:
    """The control is for kubelets that get their client certificates from the API server."""
    [user] = node.users()
    if "exec" in user and not {"client-certificate", "client-certificate-data"} & user.keys():
        return not_applicable("the kubelet authenticates with tokens of an exec plugin: it has no client certificate")
    return setting("rotateCertificates", lambda value: value is True)(node)


def proxy_metrics(node: WorkerNode) -> Finding:
    if node.proxy_arguments is None:
        return not_applicable("kube-proxy does not run on this node; the agent installs none")
    addresses = node.listeners(PROXY_METRICS_PORT)
    return passed(
        ", ".join(addresses) or "no listener",
        when=bool(addresses) and all(each in {"127.0.0.1", "[::1]"} for each in addresses),
    )


def unit(node: WorkerNode) -> list[str]:
    return node.unit_files


def kubeconfig(node: WorkerNode) -> list[str]:
    return [node.arguments["--kubeconfig"]]


def client_ca(node: WorkerNode) -> list[str]:
    return [node.setting("authentication.x509.clientCAFile")]


def config_file(node: WorkerNode) -> list[str]:
    return [node.arguments["--config"]]


CONTROLS = (
    Control("4.1.1", "mode of the kubelet's unit: 600", mode(unit, 0o600)),
    Control("4.1.2", "owner of the kubelet's unit", owner(unit)),
    Control("4.1.3", "mode of kube-proxy's kubeconfig: 600", proxy_kubeconfig(lambda paths: mode(paths, 0o600))),
    Control("4.1.4", "owner of kube-proxy's kubeconfig", proxy_kubeconfig(owner)),
    Control("4.1.5", "mode of the kubelet's kubeconfig: 600", mode(kubeconfig, 0o600)),
    Control("4.1.6", "owner of the kubelet's kubeconfig", owner(kubeconfig)),
    Control("4.1.7", "mode of the client CA: 644", mode(client_ca, 0o644)),
    Control("4.1.8", "owner of the client CA", owner(client_ca)),
    Control("4.1.9", "mode of the kubelet's configuration: 600", mode(config_file, 0o600)),
    Control("4.1.10", "owner of the kubelet's configuration", owner(config_file)),
    Control(
        "4.2.1", "no anonymous access", setting("authentication.anonymous.enabled", lambda value: value is False)
    ),
    Control("4.2.2", "authorization of requests", setting("authorization.mode", lambda value: value == "Webhook")),
    Control("4.2.3", "client CA is set", setting("authentication.x509.clientCAFile", bool)),
    Control("4.2.4", "no read-only port", setting("readOnlyPort", lambda value: value in {None, 0})),
    Control("4.2.5", "idle connections end", setting("streamingConnectionIdleTimeout", lambda value: value != "0s")),
    Control("4.2.6", "iptables chains", setting("makeIPTablesUtilChains", lambda value: value is True)),
    Control("4.2.7", "no --hostname-override", hostname_override),
    Control(
        "4.2.8", "events are captured", setting("eventRecordQPS", lambda value: value is not None and value >= 0)
    ),
    Control("4.2.9", "serving certificate", serving_certificate),
    Control("4.2.10", "client certificate is rotated", client_certificate),
    Control(
        "4.2.11",
        "serving certificate is rotated",
        setting("featureGates.RotateKubeletServerCertificate", lambda value: value is not False),
    ),
    Control(
        "4.2.12", "strong ciphers", setting("tlsCipherSuites", lambda value: value and {*value} <= STRONG_CIPHERS)
    ),
    Control("4.2.13", "limit of processes in a pod", setting("podPidsLimit", lambda value: value > 0)),
    Control("4.2.14", "seccomp by default", setting("seccompDefault", lambda value: value is True)),
    Control("4.3.1", "metrics of kube-proxy on loopback", proxy_metrics),
)


def run_controls(lab: Lab, machine: EdgeMachine) -> dict[str, Finding]:
    """Checks all controls, and prints them as a table."""
    node = WorkerNode(lab, machine)
    found = {control.number: control.check(node) for control in CONTROLS}
    for control in CONTROLS:
        finding = found[control.number]
        print(f"{control.number:7} {finding.outcome.value:15} {control.title}: {finding.seen}")
    return found


def numbers(found: dict[str, Finding], outcome: Outcome) -> list[str]:
    return [number for number, finding in found.items() if finding.outcome is outcome]
