"""All preflight checks, and the runner that runs them concurrently with a time limit."""

from __future__ import annotations

import difflib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight import (
    artifact_checks,
    cluster_checks,
    conflict_checks,
    disk_checks,
    host_checks,
    identity_checks,
    kernel_checks,
    port_checks,
)
from aks_flex_node.agent.preflight.check import Check, CheckFinding, PreflightContext, as_warning, error, ok
from aks_flex_node.agent.preflight.interfaces import BackgroundCall, CallTimeout, run_concurrently
from aks_flex_node.errors import CommandUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet


CHECKS: tuple[Check, ...] = (
    Check("root", "runs as root", host_checks.check_root),
    Check("os", "operating system", host_checks.check_operating_system),
    Check("architecture", "processor architecture", host_checks.check_architecture),
    Check("systemd", "systemd is the init system", host_checks.check_systemd),
    Check("hostname", "name of the node", host_checks.check_hostname),
    Check("memory", "memory", host_checks.check_memory),
    Check("cpu", "CPUs", host_checks.check_cpu),
    Check("disk", "disk space", disk_checks.check_disk),
    Check("kernel", "kernel version", kernel_checks.check_kernel),
    Check("cgroups", "control groups", kernel_checks.check_cgroups),
    Check("modules", "kernel modules", kernel_checks.check_modules),
    Check("sysctl", "conflicting kernel settings", kernel_checks.check_sysctl),
    Check("capabilities", "capabilities", kernel_checks.check_capabilities),
    Check("swap", "swap", kernel_checks.check_swap),
    Check("programs", "required programs", host_checks.check_programs),
    Check("ports", "ports are free", port_checks.check_ports),
    Check("other-runtime", "no other kubelet or container runtime", conflict_checks.check_other_runtime),
    Check("leftovers", "no leftovers of an earlier node", conflict_checks.check_leftovers),
    Check("dns", "DNS names can be resolved", cluster_checks.check_dns, remote=True),
    Check("api-server", "the API server and its CA", cluster_checks.check_api_server, remote=True),
    Check("clock", "the clock is correct", cluster_checks.check_clock, remote=True),
    Check("token", "the bootstrap token", cluster_checks.check_token, remote=True),
    Check("identity", "the Azure identity can sign in", identity_checks.check_identity, remote=True),
    Check("artifacts", "artifacts can be downloaded", artifact_checks.check_artifacts, remote=True),
)
NAMES = tuple(check.name for check in CHECKS)


# Time limit of all checks. Those of the network have their own, shorter ones; a slow machine needs the rest.
CHECK_SECONDS = 90.0


def run_checks(
    context: PreflightContext,
    skip: AbstractSet[str] = frozenset(),
    checks: Sequence[Check] = (),
    seconds: float = CHECK_SECONDS,
    watch: Callable[[Check], None] = lambda _: None,
) -> list[CheckFinding]:
    """Runs the checks and returns their findings in order. Calls `watch` after each check."""
    checks = checks or CHECKS
    names = [check.name for check in checks]
    for name in sorted(skip):
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Checks: {', '.join(names)}."
            raise CommandUsageError("check-unknown", f"The check {name!r} does not exist.", hint)
    selected = [check for check in checks if check.name not in skip]
    end = time.monotonic() + seconds
    findings: list[CheckFinding] = []
    for check, call in run_concurrently(lambda check: list(check.run(context)), selected):
        found = [replace(finding, check=check.name) for finding in _collect(check, call, end, seconds)]
        # A joined node must be repairable while the cluster or the network is unavailable.
        findings += map(as_warning, found) if check.remote and context.has_credential else found
        watch(check)
    return findings


def _collect(
    check: Check, call: BackgroundCall[list[CheckFinding]], end: float, seconds: float
) -> list[CheckFinding]:
    hint = f"If you are sure, skip this check with `--skip {check.name}`."
    try:
        return call.wait(end) or [ok(check.title)]
    except CallTimeout:
        return [error(f"The check {check.name} did not finish within {seconds:g} s.", hint)]
    except Exception as raised:  # a failing check must not hide the findings of the others
        cause = f"{type(raised).__name__}: {raised}".rstrip(": ")
        return [error(f"The check {check.name} failed ({cause}).", hint)]
