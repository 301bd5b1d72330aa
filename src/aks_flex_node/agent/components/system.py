"""The system component: kernel modules, kernel settings, and no swap."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.reconcile import observer, planner
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK, File, KernelModule, NoSwap, Spec, Sysctl
from aks_flex_node.host.actions import Action, EditFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.settings.models import NodeConfig

FSTAB = "/etc/fstab"
SETTINGS = "/etc/sysctl.d/99-zz-aks-flex-node.conf"  # after 99-sysctl.conf, which is /etc/sysctl.conf
DISABLED_LINE_PREFIX = "#aks-flex-node# "  # prefix of disabled lines in /etc/fstab
MODULES = ("overlay", "br_netfilter")
SYSCTLS = {
    "net.bridge.bridge-nf-call-iptables": "1",
    "net.bridge.bridge-nf-call-ip6tables": "1",
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.rp_filter": "2",
    "net.ipv4.conf.default.rp_filter": "2",
    # With protectKernelDefaults, the kubelet does not start with other values of these.
    "vm.overcommit_memory": "1",
    "vm.panic_on_oom": "0",
    "kernel.panic": "10",
    "kernel.panic_on_oops": "1",
    "kernel.keys.root_maxkeys": "1000000",
    "kernel.keys.root_maxbytes": "25000000",
    # Each pod that watches files uses an instance; the default of 128 is too low.
    "fs.inotify.max_user_instances": "8192",
}


def desired(config: NodeConfig, machine: Machine) -> Spec:  # noqa: ARG001
    settings = "".join(f"{key} = {value}\n" for key, value in SYSCTLS.items())
    return Spec(
        (
            File("/etc/modules-load.d/aks-flex-node.conf", f"# {MANAGED_MARK}\n{chr(10).join(MODULES)}\n".encode()),
            File(SETTINGS, f"# {MANAGED_MARK}\n{settings}".encode()),
            *(KernelModule(name) for name in MODULES),
            *(Sysctl(key, value) for key, value in SYSCTLS.items()),
            NoSwap(),
        )
    )


def without_swap(fstab: bytes) -> bytes:
    """Returns the table with all swap entries commented out."""
    return re.sub(rb"(?m)^(?=[ \t]*[^#\s]\S*[ \t]+\S+[ \t]+swap(?:\s|\Z))", DISABLED_LINE_PREFIX.encode(), fstab)


def with_swap(fstab: bytes) -> bytes:
    return re.sub(rb"(?m)^" + DISABLED_LINE_PREFIX.encode(), b"", fstab)


observe = observer.observing(FSTAB)


def plan(spec: Spec, facts: Facts) -> Iterator[Action]:
    yield from planner.plan(spec, facts)
    table = facts.contents.get(FSTAB)
    if table is not None and without_swap(table) != table:
        yield _edit(facts, without_swap(table))


def removal(facts: Facts) -> Iterator[Action]:
    table = facts.contents.get(FSTAB)
    if table is not None and with_swap(table) != table:
        yield _edit(facts, with_swap(table))
    yield from planner.removal(facts)


def _edit(facts: Facts, content: bytes) -> EditFile:
    entry = facts.entries.get(FSTAB)
    return EditFile(FSTAB, content, entry.mode if entry else 0o644)


COMPONENT = Component("system", "kernel modules, settings, swap", desired, observe, plan, removal)
