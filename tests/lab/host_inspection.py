"""Lists the resources of a lab on the host."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from aks_flex_lab.processes import run, start_ticks
from tests.harness import LAB

OTHER = f"{LAB}-b"  # a second lab that tests start and stop
# Resources of other labs, which a user may change meanwhile.
FOREIGN = re.compile(rf"(?:aks-flex-lab[./]|\bfl\.)(?!{OTHER}\b|lock\b)[a-z0-9-]+(?:[./]|$)")


@dataclass(frozen=True)
class Listing:
    """All resources that a lab creates, as found on the host at one moment.

    Kernel settings are excluded: the last lab restores them, which the fixture of the shared lab checks.
    """

    orphans: frozenset[str]
    mounts: frozenset[str]
    namespaces: frozenset[str]
    links: frozenset[str]
    groups: frozenset[str]
    rules: frozenset[str]
    files: frozenset[str]

    def since(self, before: Listing) -> dict[str, list[str]]:
        """Returns the resources that did not exist before, by kind; empty when there are none."""
        news = {}
        for kind in self.__dataclass_fields__:
            if new := sorted(one for one in getattr(self, kind) - getattr(before, kind) if not FOREIGN.search(one)):
                news[kind] = new
        return news


def look() -> Listing:
    return Listing(
        orphans=frozenset(_orphans()),
        mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        namespaces=frozenset(run("ip", "netns", "list").out.split("\n")),
        links=frozenset(line.split(": ")[1] for line in run("ip", "-o", "link").out.splitlines()),
        groups=frozenset(at for at, _, _ in os.walk("/sys/fs/cgroup")),
        rules=frozenset(line for line in run("iptables-save").out.splitlines() if line.startswith("-A")),
        files=frozenset(_files()),
    )


def _orphans() -> list[str]:
    """Returns orphaned processes of a lab, found by arguments, control group or network namespace."""
    own_network = Path("/proc/self/ns/net").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = (entry / "cgroup").read_text()
            elsewhere = (entry / "ns" / "net").readlink() != own_network
        except OSError:
            continue
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        if parent == 1 and words and ("flex" in words + group or elsewhere):
            found.append(f"{entry.name}@{start_ticks(int(entry.name))} {words} in {group.splitlines()[0]}")
    return found


def _files() -> list[str]:
    rooms = ("/run", "/run/netns", "/run/systemd/nspawn", "/tmp")  # noqa: S108
    found = [path for room in map(Path, rooms) if room.exists() for path in room.iterdir() if "flex-lab" in path.name]
    return [str(path) for path in (*found, *Path("/var/lib/aks-flex-lab").glob("[a-z0-9]*"))]
