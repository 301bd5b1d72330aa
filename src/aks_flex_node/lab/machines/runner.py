"""Boots one machine, and boots it again when it restarts or loses its power: `python -m … LAB MACHINE`.

It runs in a mount namespace of its own, where the machine's layer over /usr is mounted. Every boot gets a fresh
network, because a real one does: links, rules and routes do not outlive the power.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.lab import processes
from aks_flex_node.lab.layout import layout
from aks_flex_node.lab.machines.bases import INIT_PATH
from aks_flex_node.lab.machines.machine import LENT, Machine, load
from aks_flex_node.lab.network import Network

if TYPE_CHECKING:
    from aks_flex_node.lab.kernel.namespaces import Namespace

RESTART = 133  # how systemd-nspawn says that the system inside wants to boot again
DEVICES = ("/dev/kmsg", "/dev/net/tun", "/dev/fuse")
# What containers inside the machine need, and systemd-nspawn keeps back by default.
SYSTEM_CALLS = "add_key keyctl bpf request_key"


def boot(machine: Machine, inside: Namespace) -> int:
    """One life of the machine, from power on to power off."""
    argv = [
        "systemd-nspawn",
        "--quiet",
        f"--directory={machine.disk.root}",
        f"--machine={machine.alias}",
        "--register=no",
        "--keep-unit",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--console=pipe",
        "--capability=all",
        f"--network-namespace-path={inside.path}",
        f"--system-call-filter={SYSTEM_CALLS}",
        *(f"--bind={device}" for device in DEVICES if Path(device).exists()),
        *(f"--bind-ro={folder}:{LENT}/{Path(folder).name}" for folder in machine.record.lent),
        f"/{INIT_PATH}",
    ]
    return processes.attach(*machine.groups.joining(machine.leaf, argv))


def main() -> int:
    lab, name = sys.argv[1:3]
    where = layout(lab)
    machine = load(where, name)
    if machine is None:
        print(f"There is no machine {name} in lab {lab}.")
        return 1
    os.environ["SYSTEMD_NSPAWN_API_VFS_WRITABLE"] = "1"
    os.environ["SYSTEMD_NSPAWN_LOCK"] = "0"  # its lock files outlive it; the disk is the runner's alone anyway
    machine.disk.mount(machine.base)
    site = machine.site()
    while True:
        machine.again.unlink(missing_ok=True)
        code = boot(machine, Network(where).plug(name, site, machine.record.number))
        machine.groups.kill(machine.leaf)
        machine.groups.remove(machine.leaf)
        if code != RESTART and not machine.again.exists():
            return code


if __name__ == "__main__":
    sys.exit(main())
