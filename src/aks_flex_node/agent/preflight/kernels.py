"""Checks of the kernel: its version, control groups, modules, capabilities and swap."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.system import MODULES
from aks_flex_node.agent.preflight.findings import Finding, error, fine, warning
from aks_flex_node.agent.reconcile.observer import loaded_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.situations import Situation

LEAST_KERNEL, GOOD_KERNEL = (4, 19), (5, 4)
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
UNIFIED = "/sys/fs/cgroup/cgroup.controllers"


def kernel(situation: Situation) -> Iterator[Finding]:
    text = situation.machine.kernel
    version = kernel_version(text)
    if version is None:
        yield warning(f"The kernel's version ({text or 'nothing'}) makes no sense.", "Look at `uname -r`.")
    elif version < LEAST_KERNEL:
        yield error(f"The kernel is {text}; Kubernetes needs 4.19 or later.", "Upgrade the system, and reboot.")
    elif version < GOOD_KERNEL:
        yield warning(f"The kernel is {text}, which Kubernetes will give up soon.", "Upgrade it to 5.4 or later.")
    else:
        yield fine(text)


def kernel_version(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def cgroups(situation: Situation) -> Iterator[Finding]:
    unified = situation.exists(UNIFIED)
    there = set(situation.text(UNIFIED).split()) if unified else mounted_controllers(situation)
    if not there:
        yield error(
            "There are no control groups at /sys/fs/cgroup.",
            "Boot with systemd, which mounts them; in a container, let its runtime mount them writable.",
        )
        return
    if missing := [name for name in CONTROLLERS if name not in there]:
        yield error(
            f"Control groups lack the controller {', '.join(missing)}, without which no kubelet starts.",
            "Add `cgroup_enable=memory cgroup_memory=1` to the kernel's command line (on a Raspberry Pi in"
            " /boot/firmware/cmdline.txt; elsewhere see /etc/default/grub), and reboot.",
        )
    elif unified:
        yield fine("version 2")
    else:
        yield warning(
            "Control groups are version 1, which Kubernetes is giving up; from 1.35 on the kubelet runs on it only"
            " because the agent tells it to (failCgroupV1: false).",
            "Boot with `systemd.unified_cgroup_hierarchy=1` on the kernel's command line when you can.",
        )


def mounted_controllers(situation: Situation) -> set[str]:
    """The controllers of version 1: each, or several together, has a directory."""
    enabled = enabled_controllers(situation.text("/proc/cgroups"))
    places = {word for name in situation.names("/sys/fs/cgroup") for word in name.split(",")}
    return enabled & places


def enabled_controllers(text: str) -> set[str]:
    """What /proc/cgroups says is on."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {row[0] for row in rows if row[-1] == "1"}


def modules(situation: Situation) -> Iterator[Finding]:
    loaded = loaded_modules(situation.host)
    missing = [name for name in MODULES if name not in loaded and not _loadable(situation, name)]
    if not missing:
        yield fine(", ".join(MODULES))
        return
    release = situation.machine.kernel
    message = f"The running kernel {release} has no module {' and no module '.join(missing)}."
    if not situation.exists(f"/lib/modules/{release}"):
        yield error(message, f"/lib/modules/{release} is gone: reboot into the kernel that is installed now.")
    else:
        yield error(message, f"Try `sudo apt-get install linux-modules-extra-{release}`, or another kernel.")


def _loadable(situation: Situation, name: str) -> bool:
    return situation.host.ask("modprobe", "-n", "-q", "--", name).ok


def capabilities(situation: Situation) -> Iterator[Finding]:
    if situation.machine.can_raise_limits:
        yield fine("all that matter")
    else:
        yield fine("CAP_SYS_RESOURCE is missing, as in a container; containerd is set up to do without it.")


def swap(situation: Situation) -> Iterator[Finding]:
    used = swap_places(situation.text("/proc/swaps"))
    if used:
        yield warning(
            f"The machine swaps to {', '.join(used)}; the node will turn that off, and reset turns it on again.",
            "Nothing has to be done. To do it yourself: `sudo swapoff -a`, and take it out of /etc/fstab.",
        )
    else:
        yield fine("none")


def swap_places(text: str) -> list[str]:
    """The devices and files of /proc/swaps, below its heading."""
    return [line.split()[0] for line in text.splitlines()[1:] if line.strip()]
