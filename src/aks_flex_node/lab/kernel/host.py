"""What a lab changes on the machine itself, besides sysctls; the last lab to go puts it back.

The directory that `ip netns` mounts for names, the controllers that are on at the top of a unified hierarchy, and
br_netfilter, which makes every bridge of the machine obey the firewall. Other modules do nothing until used.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.lab.files import write_atomically
from aks_flex_node.lab.kernel import cgroups, namespaces, sysctls
from aks_flex_node.lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterable

BRIDGES = Path("/proc/sys/net/bridge")  # there as long as br_netfilter is


def remember(record: Path) -> None:
    """Write down how the machine was, unless a lab before us has since it started."""
    if record.exists() and json.loads(record.read_text())["boot"] == sysctls.boot():
        return
    facts = {
        "boot": sysctls.boot(),
        "controllers": cgroups.passed_on(),
        "namespaces": namespaces.ROOM.exists(),
        "bridges": BRIDGES.exists(),
    }
    write_atomically(record, json.dumps(facts))


def load_modules(modules: Iterable[str]) -> None:
    """Load what the kernel lacks. Only the lab's own bridges obey the firewall then, not the machine's."""
    before = BRIDGES.exists()
    run("modprobe", "-qa", *modules, check=False)  # built-in ones are no modules
    if not before:
        for switch in _switches():
            switch.write_text("0")


def restore(record: Path) -> None:
    """Put back what differs from the record, and forget the record."""
    if not record.exists():
        return
    before = json.loads(record.read_text())
    record.unlink()
    if before["boot"] != sysctls.boot():
        return  # the machine has started anew since
    cgroups.pass_on_only(before["controllers"])
    if not before["bridges"] and not any(int(switch.read_text()) for switch in _switches()):  # nobody wants it
        run("modprobe", "-qr", "br_netfilter", check=False)
    if not before["namespaces"] and namespaces.ROOM.exists() and not any(namespaces.ROOM.iterdir()):
        run("umount", "--", namespaces.ROOM, check=False)
        with contextlib.suppress(OSError):  # someone else's namespace came meanwhile
            namespaces.ROOM.rmdir()


def _switches() -> list[Path]:
    return list(BRIDGES.glob("bridge-nf-call-*"))
