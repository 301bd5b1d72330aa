"""All checks, in the order in which they are shown: what is nearest to the machine first, the cluster last."""

from __future__ import annotations

from aks_flex_node.agent.preflight import (
    disks,
    downloads,
    kernels,
    leftovers,
    machines,
    neighbours,
    ports,
    programs,
    servers,
    sysctls,
)
from aks_flex_node.agent.preflight.findings import Check

CHECKS: tuple[Check, ...] = (
    Check("root", "runs as root", machines.root),
    Check("os", "operating system", machines.system),
    Check("architecture", "processor architecture", machines.architecture),
    Check("systemd", "systemd is in charge", machines.systemd),
    Check("hostname", "name of the node", machines.hostname),
    Check("memory", "memory", machines.memory),
    Check("cpu", "processors", machines.cpu),
    Check("disk", "room on disks", disks.disk),
    Check("kernel", "version of the kernel", kernels.kernel),
    Check("cgroups", "control groups", kernels.cgroups),
    Check("modules", "kernel modules", kernels.modules),
    Check("sysctl", "kernel settings of others", sysctls.sysctl),
    Check("capabilities", "capabilities", kernels.capabilities),
    Check("swap", "swap", kernels.swap),
    Check("programs", "needed programs", programs.programs),
    Check("ports", "ports are free", ports.ports),
    Check("other-runtime", "no other kubelet or container runtime", neighbours.neighbours),
    Check("leftovers", "nothing left of an earlier node", leftovers.leftovers),
    Check("dns", "names can be looked up", servers.dns, abroad=True),
    Check("api-server", "the API server and its CA", servers.api_server, abroad=True),
    Check("clock", "the clock is right", servers.clock, abroad=True),
    Check("token", "the bootstrap token", servers.token, abroad=True),
    Check("artifacts", "programs can be fetched", downloads.artifacts, abroad=True),
)
NAMES = tuple(check.name for check in CHECKS)
