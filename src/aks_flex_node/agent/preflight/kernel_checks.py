"""Checks of the kernel: version, cgroups, modules, capabilities, swap, and sysctl files that would override the
node's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.system import MODULES, SETTINGS, SYSCTLS
from aks_flex_node.agent.preflight.check import CheckFinding, error, ok, warning
from aks_flex_node.agent.reconcile.observer import loaded_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.check import PreflightContext


LEAST_KERNEL, GOOD_KERNEL = (4, 19), (5, 4)
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
CGROUP_V2_CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"


def check_kernel(context: PreflightContext) -> Iterator[CheckFinding]:
    text = context.machine.kernel
    version = kernel_version(text)
    if version is None:
        yield warning(f"The kernel's version ({text or 'nothing'}) makes no sense.", "Look at `uname -r`.")
    elif version < LEAST_KERNEL:
        yield error(f"The kernel is {text}; Kubernetes needs 4.19 or later.", "Upgrade the system, and reboot.")
    elif version < GOOD_KERNEL:
        yield warning(f"The kernel is {text}, which Kubernetes will give up soon.", "Upgrade it to 5.4 or later.")
    else:
        yield ok(text)


def kernel_version(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def check_cgroups(context: PreflightContext) -> Iterator[CheckFinding]:
    unified = context.exists(CGROUP_V2_CONTROLLERS)
    there = set(context.text(CGROUP_V2_CONTROLLERS).split()) if unified else mounted_controllers(context)
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
        yield ok("version 2")
    else:
        yield warning(
            "Control groups are version 1, which Kubernetes is giving up; from 1.35 on the kubelet runs on it only"
            " because the agent tells it to (failCgroupV1: false).",
            "Boot with `systemd.unified_cgroup_hierarchy=1` on the kernel's command line when you can.",
        )


def mounted_controllers(context: PreflightContext) -> set[str]:
    """The controllers of version 1: each, or several together, has a directory."""
    enabled = enabled_controllers(context.text("/proc/cgroups"))
    found = {word for name in context.names("/sys/fs/cgroup") for word in name.split(",")}
    return enabled & found


def enabled_controllers(text: str) -> set[str]:
    """What /proc/cgroups says is on."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {row[0] for row in rows if row[-1] == "1"}


def check_modules(context: PreflightContext) -> Iterator[CheckFinding]:
    loaded = loaded_modules(context.host)
    missing = [name for name in MODULES if name not in loaded and not _loadable(context, name)]
    if not missing:
        yield ok(", ".join(MODULES))
        return
    release = context.machine.kernel
    message = f"The running kernel {release} has no module {' and no module '.join(missing)}."
    if not context.exists(f"/lib/modules/{release}"):
        yield error(message, f"/lib/modules/{release} is gone: reboot into the kernel that is installed now.")
    else:
        yield error(message, f"Try `sudo apt-get install linux-modules-extra-{release}`, or another kernel.")


def _loadable(context: PreflightContext, name: str) -> bool:
    return context.host.query("modprobe", "-n", "-q", "--", name).ok


def check_capabilities(context: PreflightContext) -> Iterator[CheckFinding]:
    if context.machine.can_raise_limits:
        yield ok("all that matter")
    else:
        yield ok("CAP_SYS_RESOURCE is missing, as in a container; containerd is set up to do without it.")


def check_swap(context: PreflightContext) -> Iterator[CheckFinding]:
    used = swap_devices(context.text("/proc/swaps"))
    if used:
        yield warning(
            f"The machine swaps to {', '.join(used)}; the node will turn that off, and reset turns it on again.",
            "Nothing has to be done. To do it yourself: `sudo swapoff -a`, and take it out of /etc/fstab.",
        )
    else:
        yield ok("none")


def swap_devices(text: str) -> list[str]:
    """The devices and files of /proc/swaps, below its heading."""
    return [line.split()[0] for line in text.splitlines()[1:] if line.strip()]


OWN_SYSCTL_FILE = SETTINGS.rpartition("/")[2]
SYSCTL_DIRECTORIES = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/lib/sysctl.d",
)  # of two files of one name the first counts
SYSCTL_CONF = "/etc/sysctl.conf"  # `sysctl --system` reads it after all others


def check_sysctl(context: PreflightContext) -> Iterator[CheckFinding]:
    wrong = [found for path in _overriding_files(context) for found in _conflicting_settings(context, path)]
    yield from wrong
    if not wrong:
        yield ok("none that differ from the node's")


def _overriding_files(context: PreflightContext) -> list[str]:
    """The files that have their way over ours."""
    found: dict[str, str] = {}
    for folder in SYSCTL_DIRECTORIES:
        for name in context.names(folder):
            found.setdefault(name, f"{folder}/{name}")
    return [
        *(found[name] for name in sorted(found) if name > OWN_SYSCTL_FILE and name.endswith(".conf")),
        SYSCTL_CONF,
    ]


def _conflicting_settings(context: PreflightContext, path: str) -> Iterator[CheckFinding]:
    for key, value in parse_sysctl_file(context.text(path)).items():
        if SYSCTLS.get(key, value) != value:
            yield warning(
                f"{path} sets {key} = {value}, and the node needs {SYSCTLS[key]}.",
                f"Take that line out of {path}, or set it to {SYSCTLS[key]}.",
            )


def parse_sysctl_file(text: str) -> dict[str, str]:
    """What a file of sysctl.d sets. The last line of a key counts, and a pattern never has its way over a key."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().lstrip("-").partition("=")
        if equals and not key.startswith(("#", ";")):
            found[dotted_key(key.strip())] = " ".join(value.split())
    return found


def dotted_key(key: str) -> str:
    """A key may be written with slashes; then dots and slashes have changed places."""
    slash, dot = key.find("/"), key.find(".")
    if slash < 0 or 0 <= dot < slash:
        return key
    return key.translate(str.maketrans("/.", "./"))
