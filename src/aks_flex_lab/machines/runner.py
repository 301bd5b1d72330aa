"""Runs one machine with systemd-nspawn, and boots it again after a reboot or power cut: `python -m … LAB MACHINE`.

It runs in its own mount namespace, where the machine's overlay of /usr is mounted. Every boot gets a new network.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import processes
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.base_system import INIT_PATH
from aks_flex_lab.machines.machine import SHARED_FOLDERS, EdgeMachine, load_machine
from aks_flex_lab.network import LabNetwork

if TYPE_CHECKING:
    from aks_flex_lab.kernel.namespaces import NetworkNamespace

RESTART_EXIT_CODE = 133  # exit code of systemd-nspawn when the system requests a reboot
DEVICES = ("/dev/kmsg", "/dev/net/tun", "/dev/fuse")
# System calls that containers in the machine need, and that systemd-nspawn denies by default.
SYSTEM_CALLS = "add_key keyctl bpf request_key"


def boot(machine: EdgeMachine, inside: NetworkNamespace) -> int:
    """Runs the machine from power-on to power-off."""
    argv = [
        "systemd-nspawn",
        "--quiet",
        f"--directory={machine.disk.root}",
        f"--machine={machine.nspawn_name}",
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
        *(f"--bind-ro={folder}:{SHARED_FOLDERS}/{Path(folder).name}" for folder in machine.record.lent),
        f"/{INIT_PATH}",
    ]
    return processes.run_attached(*machine.cgroups.join_command(machine.cgroup, argv))


def main() -> int:
    lab, name = sys.argv[1:3]
    where = lab_layout(lab)
    machine = load_machine(where, name)
    if machine is None:
        print(f"Lab {lab} has no machine {name}.")
        return 1
    os.environ["SYSTEMD_NSPAWN_API_VFS_WRITABLE"] = "1"
    os.environ["SYSTEMD_NSPAWN_LOCK"] = (
        "0"  # nspawn does not remove its lock files, and only this runner uses the disk
    )
    machine.disk.mount(machine.base)
    site = machine.site()
    while True:
        machine.reboot_marker.unlink(missing_ok=True)
        code = boot(machine, LabNetwork(where).connect_machine(name, site, machine.record.number))
        machine.cgroups.kill(machine.cgroup)
        machine.cgroups.remove(machine.cgroup)
        if code != RESTART_EXIT_CODE and not machine.reboot_marker.exists():
            return code


if __name__ == "__main__":
    sys.exit(main())
