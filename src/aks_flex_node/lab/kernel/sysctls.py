"""Sysctls of the whole kernel: a kubelet and a booting systemd change some, and the lab puts them back.

What belongs to a network namespace goes with it. The rest is shared with the machine we run on, so the first lab to
come up writes all of it down and the last one to go restores what differs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from aks_flex_node.lab.files import write_atomically

ROOT = Path("/proc/sys")
BOOT = "kernel/random/boot_id"
# Where a booting system and a kubelet write. The rest of /proc/sys is per namespace, or counts by itself.
ROOMS = ("kernel", "vm", "fs")
# They move by themselves, or answer something new at every look.
MOVING = (
    "kernel/random/",
    "kernel/ns_last_pid",
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-",
    "fs/aio-nr",
    "fs/quota/",
)
# They belong to a namespace of their own, or are no settings at all but an order to act.
LOCAL = (
    "kernel/hostname",
    "kernel/domainname",
    "vm/drop_caches",
    "vm/compact_memory",
    "vm/stat_refresh",
    "fs/binfmt_misc",
)

# Every machine counts against the limits of one and the same root: a joined node holds about 14, and 128 are allowed.
LEAST = {"fs/inotify/max_user_instances": 8192, "fs/inotify/max_user_watches": 524288}

# One kernel serves all machines. A kubelet that protects the kernel's defaults does not start without these, and a
# machine that leaves its cluster must not take them from the others by putting back what it found.
WANTED_BY_KUBELETS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def read(root: Path = ROOT) -> dict[str, str]:
    """Every setting that can be read and written again."""
    found = {}
    for room in ROOMS:
        for at, _, names in os.walk(root / room):
            for name in names:
                path = Path(at) / name
                key = str(path.relative_to(root))
                if key.startswith(MOVING + LOCAL) or not path.stat().st_mode & 0o200:
                    continue
                try:
                    found[key] = path.read_text().strip()
                except (OSError, UnicodeDecodeError):
                    continue
    return found


def remember(record: Path, root: Path = ROOT) -> None:
    """Write down how the machine was, unless a lab before us has."""
    if not record.exists() or json.loads(record.read_text())["boot"] != boot(root):
        write_atomically(record, json.dumps({"boot": boot(root), "values": read(root)}, indent=1))


def boot(root: Path = ROOT) -> str:
    """Another one after every start of the machine."""
    return (root / BOOT).read_text().strip()


def make_room(root: Path = ROOT) -> None:
    """Raise the limits that several machines together would reach, and set what all need; `restore` puts it back."""
    for key, least in LEAST.items():
        path = root / key
        if path.exists() and int(path.read_text()) < least:
            path.write_text(str(least))
    for key, value in WANTED_BY_KUBELETS.items():
        if (root / key).exists():
            (root / key).write_text(value)


def restore(record: Path, root: Path = ROOT) -> list[str]:
    """Put back what differs from the record, and forget the record. Returns what was put back."""
    if not record.exists():
        return []
    told = json.loads(record.read_text())
    if told["boot"] != boot(root):
        record.unlink()  # the machine has started anew since, with settings of its own
        return []
    before: dict[str, str] = told["values"]
    now = read(root)
    changed = [key for key, value in before.items() if now.get(key, value) != value]
    for key in changed:
        try:
            (root / key).write_text(before[key])
        except OSError:
            continue  # the kernel takes some values only one way; there is nothing more to do
    record.unlink()
    return changed
