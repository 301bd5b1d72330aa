"""Records host-wide settings when the first lab starts, and restores them when the last one is removed.

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
# Sysctls that a booting system and a kubelet write. The others are per namespace, or change automatically.
DIRECTORIES = ("kernel", "vm", "fs")
# They change automatically, or return another value at every read.
VOLATILE = (
    "kernel/random/",
    "kernel/ns_last_pid",
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-",
    "fs/aio-nr",
    "fs/quota/",
)
# They belong to a namespace, or trigger an action instead of storing a setting.
NAMESPACED = (
    "kernel/hostname",
    "kernel/domainname",
    "vm/drop_caches",
    "vm/compact_memory",
    "vm/stat_refresh",
    "fs/binfmt_misc",
)

# All machines share the limits of the root user: a joined node uses about 14, and the default limit is 128.
MINIMUM_LIMITS = {"fs/inotify/max_user_instances": 8192, "fs/inotify/max_user_watches": 524288}

# All machines share one kernel. A kubelet with protectKernelDefaults does not start without these, and a machine
# that is unbootstrapped must not reset them for the others when it restores the values that it found.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def read_sysctls(root: Path = SYSCTL_ROOT) -> dict[str, str]:
    """Returns all sysctls that can be read and written."""
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
    """Records the sysctls of the host, unless an earlier lab has recorded them."""
    if not record.exists() or json.loads(record.read_text())["boot"] != boot_id(root):
        write_atomically(record, json.dumps({"boot": boot_id(root), "values": read_sysctls(root)}, indent=1))


def boot_id(root: Path = SYSCTL_ROOT) -> str:
    """Returns the boot ID of the host, which changes at every boot."""
    return (root / BOOT_ID).read_text().strip()


def raise_limits(root: Path = SYSCTL_ROOT) -> None:
    """Raises limits that several machines together reach, and sets what all need; `restore_sysctls` reverts it."""
    for key, least in MINIMUM_LIMITS.items():
        path = root / key
        if path.exists() and int(path.read_text()) < least:
            path.write_text(str(least))
    for key, value in KUBELET_SYSCTLS.items():
        if (root / key).exists():
            (root / key).write_text(value)


def restore_sysctls(record: Path, root: Path = SYSCTL_ROOT) -> list[str]:
    """Restores the recorded sysctls and removes the record. Returns the restored ones."""
    if not record.exists():
        return []
    values = json.loads(record.read_text())
    if values["boot"] != boot_id(root):
        record.unlink()  # the host was rebooted since, which reset its sysctls
        return []
    before: dict[str, str] = values["values"]
    now = read_sysctls(root)
    changed = [key for key, value in before.items() if now.get(key, value) != value]
    for key in changed:
        try:
            (root / key).write_text(before[key])
        except OSError:
            continue  # The kernel does not allow some values to be set back.
    record.unlink()
    return changed


BRIDGE_SYSCTLS = Path("/proc/sys/net/bridge")  # exists while br_netfilter is loaded


def record_host(record: Path) -> None:
    """Records the state of the host, unless an earlier lab has recorded it since the last boot."""
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
    """Loads missing kernel modules. Turns the bridge firewall off by default; only the lab's bridges turn it on."""
    before = BRIDGE_SYSCTLS.exists()
    run("modprobe", "-qa", *modules, check=False)  # features that are built in are not modules
    if not before:
        for switch in _bridge_firewall_switches():
            switch.write_text("0")


def restore_host(record: Path) -> None:
    """Restores the recorded state of the host and removes the record."""
    if not record.exists():
        return
    before = json.loads(record.read_text())
    record.unlink()
    if before["boot"] != boot_id():
        return  # the host was rebooted since
    cgroups.disable_other_controllers(before["controllers"])
    if not before["bridges"] and not any(
        int(switch.read_text()) for switch in _bridge_firewall_switches()
    ):  # no other program uses it
        run("modprobe", "-qr", "br_netfilter", check=False)
    if (
        not before["namespaces"]
        and namespaces.NETNS_DIRECTORY.exists()
        and not any(namespaces.NETNS_DIRECTORY.iterdir())
    ):
        run("umount", "--", namespaces.NETNS_DIRECTORY, check=False)
        with contextlib.suppress(OSError):  # another program created a namespace meanwhile
            namespaces.NETNS_DIRECTORY.rmdir()


def _bridge_firewall_switches() -> list[Path]:
    return list(BRIDGE_SYSCTLS.glob("bridge-nf-call-*"))
