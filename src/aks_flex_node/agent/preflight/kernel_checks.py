"""Checks of the kernel: version, cgroups, modules, capabilities, swap, and sysctl files that would override the
node's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components.artifact_urls import minor_version
from aks_flex_node.agent.components.system import MODULES, SETTINGS, SYSCTLS
from aks_flex_node.agent.preflight.check import CheckFinding, PreflightContext, error, ok, warning
from aks_flex_node.agent.reconcile.observer import loaded_modules
from aks_flex_node.host.system import parse_swaps

if TYPE_CHECKING:
    from collections.abc import Iterator


LEAST_KERNEL, GOOD_KERNEL = (4, 19), (5, 4)
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
CGROUP_V2_CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"


def check_kernel(context: PreflightContext) -> Iterator[CheckFinding]:
    text = context.machine.kernel
    version = minor_version(text)
    if version is None:
        yield warning(f"The kernel version ({text or 'empty'}) is not valid.", "Check `uname -r`.")
    elif version < LEAST_KERNEL:
        yield error(
            f"The kernel version is {text}, but Kubernetes needs 4.19 or later.",
            "Upgrade the operating system and reboot.",
        )
    elif version < GOOD_KERNEL:
        yield warning(
            f"The kernel version is {text}, which Kubernetes will not support much longer.",
            "Upgrade to 5.4 or later.",
        )
    else:
        yield ok(text)


def check_cgroups(context: PreflightContext) -> Iterator[CheckFinding]:
    unified = context.exists(CGROUP_V2_CONTROLLERS)
    controllers = set(context.text(CGROUP_V2_CONTROLLERS).split()) if unified else mounted_controllers(context)
    if not controllers:
        yield error(
            "No control groups are mounted at /sys/fs/cgroup.",
            "Boot with systemd, which mounts them. In a container, configure the runtime to mount them writable.",
        )
        return
    if missing := [name for name in CONTROLLERS if name not in controllers]:
        yield error(
            f"The cgroup controllers {', '.join(missing)} are missing. The kubelet does not start without them.",
            "Add `cgroup_enable=memory cgroup_memory=1` to the kernel command line (on a Raspberry Pi in "
            "/boot/firmware/cmdline.txt, else in /etc/default/grub), and reboot.",
        )
    elif unified:
        yield ok("version 2")
    else:
        yield warning(
            "The machine uses cgroup v1, which is deprecated in Kubernetes. From 1.35 on, the kubelet runs on it "
            "only because the agent sets failCgroupV1: false.",
            "Add `systemd.unified_cgroup_hierarchy=1` to the kernel command line and reboot.",
        )


def mounted_controllers(context: PreflightContext) -> set[str]:
    """Returns the mounted cgroup v1 controllers. One directory can have several of them."""
    enabled = enabled_controllers(context.text("/proc/cgroups"))
    found = {controller for name in context.names("/sys/fs/cgroup") for controller in name.split(",")}
    return enabled & found


def enabled_controllers(text: str) -> set[str]:
    """Parses the enabled controllers from /proc/cgroups."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {row[0] for row in rows if row[-1] == "1"}


def check_modules(context: PreflightContext) -> Iterator[CheckFinding]:
    loaded = loaded_modules(context.host)
    missing = [
        name
        for name in MODULES
        if name not in loaded and not context.host.query("modprobe", "-n", "-q", "--", name).ok
    ]
    if not missing:
        yield ok(", ".join(MODULES))
        return
    release = context.machine.kernel
    message = f"The running kernel {release} does not have these modules: {', '.join(missing)}."
    if not context.exists(f"/lib/modules/{release}"):
        yield error(message, f"/lib/modules/{release} does not exist. Reboot into the installed kernel.")
    else:
        yield error(message, f"Run `sudo apt-get install linux-modules-extra-{release}`, or use another kernel.")


def check_capabilities(context: PreflightContext) -> Iterator[CheckFinding]:
    if context.machine.can_raise_limits:
        yield ok("all required capabilities")
    else:
        yield ok("CAP_SYS_RESOURCE is missing, as in a container; containerd is configured to run without it.")


def check_swap(context: PreflightContext) -> Iterator[CheckFinding]:
    used = parse_swaps(context.text("/proc/swaps"))
    if used:
        yield warning(
            f"Swap is enabled ({', '.join(used)}). The node will disable it, and `unbootstrap` enables it again.",
            "No action is needed. To disable it manually, run `sudo swapoff -a` and remove it from /etc/fstab.",
        )
    else:
        yield ok("none")


OWN_SYSCTL_FILE = SETTINGS.rpartition("/")[2]
SYSCTL_DIRECTORIES = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/lib/sysctl.d",
)  # the first of two files with the same name applies
SYSCTL_CONF = "/etc/sysctl.conf"  # `sysctl --system` reads it last


def check_sysctl(context: PreflightContext) -> Iterator[CheckFinding]:
    conflicts = [found for path in _overriding_files(context) for found in _conflicting_settings(context, path)]
    yield from conflicts
    if not conflicts:
        yield ok("no conflicting settings")


def _overriding_files(context: PreflightContext) -> list[str]:
    """Returns the files that override the node's sysctl file."""
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
                f"{path} sets {key} = {value}, but the node needs {SYSCTLS[key]}.",
                f"Remove this line from {path}, or set it to {SYSCTLS[key]}.",
            )


def parse_sysctl_file(text: str) -> dict[str, str]:
    """Parses a sysctl.d file. The last line of a key applies, and a pattern never overrides a key."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().lstrip("-").partition("=")
        if equals and not key.startswith(("#", ";")):
            found[dotted_key(key.strip())] = " ".join(value.split())
    return found


def dotted_key(key: str) -> str:
    """Returns a key with dots as separators. In keys written with slashes, dots and slashes are swapped."""
    slash, dot = key.find("/"), key.find(".")
    if slash < 0 or 0 <= dot < slash:
        return key
    return key.translate(str.maketrans("/.", "./"))
