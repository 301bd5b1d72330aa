"""Simulates the files that the services of a node read at start and write at run time."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.client_certificates import client_pem
from tests.crash import tables

if TYPE_CHECKING:
    from aks_flex_node.host.disk import HostDisk

BIN = "/usr/local/bin"
CONTENTS = {
    "/var/lib/kubelet/kubeconfig": "server: https://cluster.example:443\n",
    "/var/lib/kubelet/pki/kubelet-client-current.pem": client_pem(),
}
INPUTS = {
    "containerd.service": ("/etc/containerd/config.toml", f"{BIN}/containerd", f"{BIN}/ctr"),
    "kubelet.service": ("/var/lib/kubelet/config.yaml", "/etc/default/kubelet", f"{BIN}/kubelet"),
    "node-problem-detector.service": (f"{BIN}/node-problem-detector",),
}
RULES = """\
*filter
:INPUT ACCEPT [0:0]
:FOREIGN - [0:0]
-A INPUT -j FOREIGN
-A FOREIGN -s 192.0.2.1/32 -j DROP
COMMIT
"""
RULES_OF_PODS = """\
*filter
:INPUT ACCEPT [0:0]
:FOREIGN - [0:0]
:KUBE-FIREWALL - [0:0]
:CNI-FORWARD - [0:0]
-A INPUT -j FOREIGN
-A INPUT -j KUBE-FIREWALL
-A FOREIGN -s 192.0.2.1/32 -j DROP
-A KUBE-FIREWALL -s 127.0.0.0/8 -j DROP
-A CNI-FORWARD -j KUBE-FIREWALL
COMMIT
"""


@dataclass(frozen=True)
class Traces:
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    iptables: str = ""

    def put(self, disk: HostDisk) -> None:
        for path in self.folders:
            disk.at(path).mkdir(parents=True, exist_ok=True)
        for path in self.files:
            disk.at(path).parent.mkdir(parents=True, exist_ok=True)
            disk.at(path).write_text(CONTENTS.get(path, "made while the node ran\n"))
            disk.at(path).chmod(0o600)  # the mode that a kubelet uses for secrets
        for path in self.mounts:
            tables.add(disk, "/proc/self/mountinfo", f"9 1 0:9 / {path} rw - tmpfs tmpfs rw")


LEFT_BY = {
    "containerd.service": Traces(
        files=(
            "/run/containerd/containerd.sock",
            "/run/containerd/sandbox/shm/here",
            "/run/nri/nri.sock",
            "/run/netns/cni-fc1caa4f-9a78-8e86-3de3-91b8302a9f2f",
            "/var/lib/containerd/meta.db",
            "/var/lib/cni/networks/aks-flex-node/last_reserved_ip.0",
        ),
        folders=("/sys/fs/cgroup/system.slice/containerd.service",),
        mounts=("/run/containerd/sandbox/shm", "/run/netns/cni-fc1caa4f-9a78-8e86-3de3-91b8302a9f2f"),
        links=("flex0",),
    ),
    "kubelet.service": Traces(
        files=(
            "/var/lib/kubelet/kubeconfig",
            "/var/lib/kubelet/pki/kubelet-client-current.pem",
            "/var/lib/kubelet/pods/1234/volumes/token",
            "/var/log/pods/web/0.log",
            "/var/log/containers/web.log",
        ),
        folders=("/sys/fs/cgroup/kubepods.slice/pod1234",),
        mounts=("/var/lib/kubelet/pods/1234/volumes",),
        slices=("kubepods.slice",),
        iptables=RULES_OF_PODS,
    ),
    "node-problem-detector.service": Traces(),
}


def share_contents(contents: dict[str, str]) -> None:
    """Makes a process of a pool write the same certificate as the process that started it."""
    CONTENTS.update(contents)


def clear(disk: HostDisk, path: str) -> None:
    shutil.rmtree(disk.at(path), ignore_errors=True)
