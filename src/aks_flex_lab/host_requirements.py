"""Checks that the host can run a lab: root, programs, disk space, kernel modules."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.errors import HostError
from aks_flex_lab.kernel.cgroups import hierarchies
from aks_flex_lab.kernel.host_state import load_modules
from aks_flex_lab.machines.base_system import free_bytes

if TYPE_CHECKING:
    from aks_flex_lab.layout import LabLayout

# Each program with the Debian and Ubuntu package that contains it.
REQUIRED_PROGRAMS = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "sysctl": "procps",
    "openssl": "openssl",
    "gpg": "gpg",
    "gpgconf": "gpgconf",
    "gpg-agent": "gpg-agent",
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "dnsmasq": "dnsmasq-base",
    "etcd": "etcd-server",
    "docker-registry": "docker-registry",
    "openvpn": "openvpn",
    "busybox": "busybox-static",
}
KERNEL_MODULES = ("overlay", "bridge", "veth", "br_netfilter", "nf_nat", "tun", "fuse")
LAB_DISK_BYTES = 2 << 30


def require_root() -> None:
    if os.geteuid() != 0:
        raise HostError(
            "root-required",
            "This command must run as root, because the lab creates namespaces and boots machines.",
            "Run the command with sudo.",
        )


def require_host(layout: LabLayout) -> None:
    """Checks the requirements of `up`, before it changes the host."""
    require_root()
    missing = sorted({package for program, package in REQUIRED_PROGRAMS.items() if not shutil.which(program)})
    if missing:
        raise HostError(
            "program-not-found",
            f"These packages are not installed on this machine: {', '.join(missing)}.",
            f"Run `apt-get install --no-install-recommends {' '.join(missing)}`, or `make setup`.",
        )
    hierarchies()
    free = free_bytes(layout.labs_directory)
    if free < LAB_DISK_BYTES:
        raise HostError(
            "disk-full",
            f"Only {free >> 20} MB are free in {layout.labs_directory}; a lab needs {LAB_DISK_BYTES >> 20} MB.",
            "Free disk space, or set AKS_FLEX_LAB_HOME to a directory on a larger disk.",
        )


def require_kernel() -> None:
    """Loads the missing kernel modules. Call it after the state of the host is recorded."""
    load_modules(KERNEL_MODULES)
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        raise HostError(
            "kernel-feature-missing",
            "This kernel does not support the overlay file system, which every machine's /usr needs.",
            "Run `modprobe overlay`, or use a kernel of a distribution.",
        )
