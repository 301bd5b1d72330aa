"""Runs one machine, and boots it again after a reboot or power cut: `python -m … LAB MACHINE`.

It runs in its own mount namespace, where a container machine's overlay of /usr is mounted.
"""

from __future__ import annotations

import sys

from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.inventory import load_machine


def main() -> int:
    lab, name = sys.argv[1:3]
    machine = load_machine(lab_layout(lab), name)
    if machine is None:
        print(f"Lab {lab} has no machine {name}.")
        return 1
    machine.prepare()
    while True:
        machine.reboot_marker.unlink(missing_ok=True)
        rebooting = machine.boot()
        machine.cgroups.kill(machine.cgroup)
        machine.cgroups.remove(machine.cgroup)
        if not rebooting and not machine.reboot_marker.exists():
            return 0


if __name__ == "__main__":
    sys.exit(main())
