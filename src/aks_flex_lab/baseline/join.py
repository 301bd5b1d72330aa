"""Runs the baseline join on a machine, and watches the cluster for node and pod readiness."""

from __future__ import annotations

import ipaddress
import itertools
import shlex
import threading
import time
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from aks_flex_lab import network
from aks_flex_lab.errors import ComponentError, LabError
from aks_flex_lab.versions import NodeVersions

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

TEST_IMAGE = "mcr.microsoft.com/flex/test:1"
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class BaselineSettings:
    """Settings that affect the speed of the join; the defaults are the fastest."""

    versions: NodeVersions = field(default_factory=NodeVersions)
    node_ip: bool = True
    systemd_cgroup: bool = True


@dataclass(frozen=True)
class JoinTimings:
    """The seconds of each phase, in order."""

    phases: dict[str, float]

    @property
    def ready(self) -> float:
        """Seconds from a clean host to Node Ready."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "pod")


def join(lab: Lab, machine: EdgeMachine, settings: BaselineSettings | None = None) -> JoinTimings:
    """Joins a new machine to the cluster and waits for a running pod, as fast as possible."""
    settings = settings or BaselineSettings()
    cluster = lab.cluster
    cluster.apply(web_pod(machine.name))
    watch = ReadinessWatch(lab, machine.name)
    watch.start()
    script = _variables(lab, machine, settings) + resources.files(__package__).joinpath("join.sh").read_text()
    output = machine.run("bash", "-s", input=script, timeout=TIMEOUT_SECONDS).out
    moments = [(line.split()[1], float(line.split()[2])) for line in output.splitlines() if line.startswith("phase ")]
    moments += [("node", watch.wait("node", machine)), ("pod", watch.wait("pod", machine))]
    return JoinTimings({name: max(0.0, end - begin) for (_, begin), (name, end) in itertools.pairwise(moments)})


def web_pod(node: str) -> dict[str, Any]:
    """Returns a web server pod that is bound to a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"web-{node}", "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "web", "image": TEST_IMAGE, "command": ["httpd", "-f", "-p", "80", "-h", "/www"]},
            ],
        },
    }


def _variables(lab: Lab, machine: EdgeMachine, settings: BaselineSettings) -> str:
    """Returns the variables of the script, passed on standard input because a command line would expose the token."""
    versions = settings.versions
    flags = f"--node-ip={machine.record.address}" if settings.node_ip else ""
    values = {
        "ARCH": lab.toolbox.arch,
        "KUBERNETES": versions.kubernetes,
        "CONTAINERD": versions.containerd,
        "RUNC": versions.runc,
        "CNI": versions.cni,
        "NPD": versions.npd,
        "SERVER": network.API_URL,
        "CA": lab.authority.certificate.read_text(),
        "TOKEN": lab.cluster.bootstrap_token(),
        "DNS": network.DNS_SERVICE,
        "POD_SUBNET": pod_subnet(machine.site().number, machine.record.number),
        "CGROUP_DRIVER": "systemd" if settings.systemd_cgroup else "cgroupfs",
        "SYSTEMD_CGROUP": "true" if settings.systemd_cgroup else "false",
        "KUBELET_FLAGS": flags,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def pod_subnet(site: int, machine: int) -> str:
    """Returns a pod subnet of 30 addresses for a machine, outside the controller manager's range; 16 per site."""
    first = int(ipaddress.IPv4Address("198.19.144.0"))
    index = ((site - network.FIRST_SITE) * 16 + machine - network.FIRST_MACHINE) % 896
    return f"{ipaddress.IPv4Address(first + 32 * index)}/27"


class ReadinessWatch:
    """Records the time when a node becomes ready, and when its pod runs."""

    def __init__(self, lab: Lab, node: str) -> None:
        self._lab = lab
        self._seen: dict[str, float] = {}
        self._broken: LabError | OSError | None = None
        self._paths: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
            "node": (f"/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{node}", is_ready),
            "pod": (f"/api/v1/namespaces/default/pods?watch=1&fieldSelector=metadata.name%3Dweb-{node}", is_running),
        }

    def start(self) -> None:
        for what in self._paths:
            threading.Thread(target=self._watch, args=(what,), daemon=True).start()

    def _watch(self, what: str) -> None:
        path, good = self._paths[what]
        try:
            for event in self._lab.watch(path, TIMEOUT_SECONDS):
                if good(event["object"]):
                    self._seen[what] = time.time()
                    return
        except (LabError, OSError) as error:
            self._broken = error

    def wait(self, what: str, machine: EdgeMachine) -> float:
        end = time.monotonic() + TIMEOUT_SECONDS
        while what not in self._seen:
            if self._broken:
                raise self._broken
            if time.monotonic() > end:
                raise ComponentError(
                    "node-not-ready",
                    f"The {what} of {machine.name} was not ready within {TIMEOUT_SECONDS} s.",
                    f"Run `{self._lab.command} machine exec {machine.name} -- journalctl -u kubelet`.",
                )
            time.sleep(0.005)
        return self._seen[what]


def is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def is_running(pod: dict[str, Any]) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return bool(statuses) and all("running" in status["state"] for status in statuses)
