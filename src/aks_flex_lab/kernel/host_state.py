"""Records host-wide settings when the first lab comes up, and restores them when the last one goes down.

These are sysctls outside of namespaces, the controllers enabled at the cgroup root, br_netfilter, and the directory
of `ip netns`.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.files import write_atomically
from aks_flex_lab.kernel import cgroups, namespaces
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterable


SYSCTL_ROOT = Path("/proc/sys")
BOOT_ID = "kernel/random/boot_id"
# Where a booting system and a kubelet write. The rest of /proc/sys is per namespace, or counts by itself.
DIRECTORIES = ("kernel", "vm", "fs")
# They move by themselves, or answer something new at every look.
VOLATILE = (
    "kernel/random/",
    "kernel/ns_last_pid",
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-",
    "fs/aio-nr",
    "fs/quota/",
)
# They belong to a namespace of their own, or are no settings at all but an order to act.
NAMESPACED = (
    "kernel/hostname",
    "kernel/domainname",
    "vm/drop_caches",
    "vm/compact_memory",
    "vm/stat_refresh",
    "fs/binfmt_misc",
)

# Every machine counts against the limits of one and the same root: a joined node holds about 14, and 128 are allowed.
MINIMUM_LIMITS = {"fs/inotify/max_user_instances": 8192, "fs/inotify/max_user_watches": 524288}

# One kernel serves all machines. A kubelet that protects the kernel's defaults does not start without these, and a
# machine that leaves its cluster must not take them from the others by putting back what it found.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def read_sysctls(root: Path = SYSCTL_ROOT) -> dict[str, str]:
    """Every setting that can be read and written again."""
    found = {}
    for directory in DIRECTORIES:
        for at, _, names in os.walk(root / directory):
            for name in names:
                path = Path(at) / name
                key = str(path.relative_to(root))
                if key.startswith(VOLATILE + NAMESPACED) or not path.stat().st_mode & 0o200:
                    continue
                try:
                    found[key] = path.read_text().strip()
                except (OSError, UnicodeDecodeError):
                    continue
    return found


def record_sysctls(record: Path, root: Path = SYSCTL_ROOT) -> None:
    """Write down how the machine was, unless a lab before us has."""
    if not record.exists() or json.loads(record.read_text())["boot"] != boot_id(root):
        write_atomically(record, json.dumps({"boot": boot_id(root), "values": read_sysctls(root)}, indent=1))


def boot_id(root: Path = SYSCTL_ROOT) -> str:
    """Another one after every start of the machine."""
    return (root / BOOT_ID).read_text().strip()


def raise_limits(root: Path = SYSCTL_ROOT) -> None:
    """Raise the limits that several machines together would reach, and set what all need; `restore` puts it back."""
    for key, least in MINIMUM_LIMITS.items():
        path = root / key
        if path.exists() and int(path.read_text()) < least:
            path.write_text(str(least))
    for key, value in KUBELET_SYSCTLS.items():
        if (root / key).exists():
            (root / key).write_text(value)


def restore_sysctls(record: Path, root: Path = SYSCTL_ROOT) -> list[str]:
    """Put back what differs from the record, and forget the record. Returns what was put back."""
    if not record.exists():
        return []
    values = json.loads(record.read_text())
    if values["boot"] != boot_id(root):
        record.unlink()  # the machine has started anew since, with settings of its own
        return []
    before: dict[str, str] = values["values"]
    now = read_sysctls(root)
    changed = [key for key, value in before.items() if now.get(key, value) != value]
    for key in changed:
        try:
            (root / key).write_text(before[key])
        except OSError:
            continue  # the kernel takes some values only one way; there is nothing more to do
    record.unlink()
    return changed


BRIDGE_SYSCTLS = Path("/proc/sys/net/bridge")  # there as long as br_netfilter is


def record_host(record: Path) -> None:
    """Write down how the machine was, unless a lab before us has since it started."""
    if record.exists() and json.loads(record.read_text())["boot"] == boot_id():
        return
    facts = {
        "boot": boot_id(),
        "controllers": cgroups.enabled_controllers(),
        "namespaces": namespaces.NETNS_DIRECTORY.exists(),
        "bridges": BRIDGE_SYSCTLS.exists(),
    }
    write_atomically(record, json.dumps(facts))


def load_modules(modules: Iterable[str]) -> None:
    """Load what the kernel lacks. Only the lab's own bridges obey the firewall then, not the machine's."""
    before = BRIDGE_SYSCTLS.exists()
    run("modprobe", "-qa", *modules, check=False)  # built-in ones are no modules
    if not before:
        for switch in _bridge_firewall_switches():
            switch.write_text("0")


def restore_host(record: Path) -> None:
    """Put back what differs from the record, and forget the record."""
    if not record.exists():
        return
    before = json.loads(record.read_text())
    record.unlink()
    if before["boot"] != boot_id():
        return  # the machine has started anew since
    cgroups.disable_other_controllers(before["controllers"])
    if not before["bridges"] and not any(
        int(switch.read_text()) for switch in _bridge_firewall_switches()
    ):  # nobody wants it
        run("modprobe", "-qr", "br_netfilter", check=False)
    if (
        not before["namespaces"]
        and namespaces.NETNS_DIRECTORY.exists()
        and not any(namespaces.NETNS_DIRECTORY.iterdir())
    ):
        run("umount", "--", namespaces.NETNS_DIRECTORY, check=False)
        with contextlib.suppress(OSError):  # someone else's namespace came meanwhile
            namespaces.NETNS_DIRECTORY.rmdir()


def _bridge_firewall_switches() -> list[Path]:
    return list(BRIDGE_SYSCTLS.glob("bridge-nf-call-*"))
