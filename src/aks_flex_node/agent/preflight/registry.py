"""The registry of all preflight checks, in the order in which they are shown. A new check is one entry here."""

from __future__ import annotations

from aks_flex_node.agent.preflight import (
    artifact_checks,
    cluster_checks,
    conflict_checks,
    disk_checks,
    host_checks,
    kernel_checks,
    port_checks,
)
from aks_flex_node.agent.preflight.check import Check

CHECKS: tuple[Check, ...] = (
    Check("root", "runs as root", host_checks.check_root),
    Check("os", "operating system", host_checks.check_operating_system),
    Check("architecture", "processor architecture", host_checks.check_architecture),
    Check("systemd", "systemd is in charge", host_checks.check_systemd),
    Check("hostname", "name of the node", host_checks.check_hostname),
    Check("memory", "memory", host_checks.check_memory),
    Check("cpu", "processors", host_checks.check_cpu),
    Check("disk", "room on disks", disk_checks.check_disk),
    Check("kernel", "version of the kernel", kernel_checks.check_kernel),
    Check("cgroups", "control groups", kernel_checks.check_cgroups),
    Check("modules", "kernel modules", kernel_checks.check_modules),
    Check("sysctl", "kernel settings of others", kernel_checks.check_sysctl),
    Check("capabilities", "capabilities", kernel_checks.check_capabilities),
    Check("swap", "swap", kernel_checks.check_swap),
    Check("programs", "needed programs", host_checks.check_programs),
    Check("ports", "ports are free", port_checks.check_ports),
    Check("other-runtime", "no other kubelet or container runtime", conflict_checks.check_other_runtime),
    Check("leftovers", "nothing left of an earlier node", conflict_checks.check_leftovers),
    Check("dns", "names can be looked up", cluster_checks.check_dns, remote=True),
    Check("api-server", "the API server and its CA", cluster_checks.check_api_server, remote=True),
    Check("clock", "the clock is right", cluster_checks.check_clock, remote=True),
    Check("token", "the bootstrap token", cluster_checks.check_token, remote=True),
    Check("artifacts", "programs can be fetched", artifact_checks.check_artifacts, remote=True),
)
NAMES = tuple(check.name for check in CHECKS)
