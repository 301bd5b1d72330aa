"""Collects units, processes, listening sockets, users and groups."""

from __future__ import annotations

import grp
import os
import pwd
import re
from typing import TYPE_CHECKING, NamedTuple

from aks_flex_lab.snapshots.collector.exclusions import UNITS, VOLATILE_UNITS, matcher
from aks_flex_lab.snapshots.collector.probe import count_rows, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_lab.snapshots.collector.probe import Rows

# The unit of a process, which is not a slice.
UNIT = re.compile(r"[^/]+\.(service|scope|socket|mount|swap)")
# Units of these kinds without a file reflect mounts, swaps and devices, which other sections cover.
DERIVED_UNIT = re.compile(r".+\.(mount|swap|device)")
STARTERS = (".socket", ".timer", ".path", ".automount")
# The names of login sessions contain numbers.
SESSION = re.compile(r"session-.+\.scope")
# systemd re-executed itself; the number is a file descriptor.
DESERIALIZE = re.compile(r" --deserialize[= ]\d+")
LISTENER = re.compile(r'\("([^"]*)",')
HOLDER_FIELD = 6


def parse_units(loaded: str, files: str) -> Rows:
    """Merges the outputs of `systemctl list-units --all` and `list-unit-files`.

    A loaded but inactive unit counts as not loaded, because systemd loads and unloads those at any time.
    """
    ignored, restless = matcher(UNITS), matcher(VOLATILE_UNITS)
    rows: Rows = {}
    for line in files.splitlines():
        name, enabled = line.split()[:2]
        rows[name] = {"enabled": enabled, "active": activity(name, "inactive", "dead")}
    for line in loaded.splitlines():
        name, load, active, sub = line.split()[:4]
        if name not in rows and (active == "inactive" or DERIVED_UNIT.fullmatch(name)):
            continue
        row = rows.setdefault(name, {})
        row["active"] = activity(name, active, sub)
        if load not in {"loaded", "masked"}:  # list-unit-files also reports masked units
            row["load"] = load
    for name in filter(restless, rows):
        rows[name].pop("active", None)
    return {name: row for name, row in rows.items() if not ignored(name)}


def activity(name: str, active: str, sub: str) -> str:
    """Returns the activity of a unit. Of a unit that triggers another, only whether it is active."""
    return active if name.endswith(STARTERS) else f"{active} ({sub})"


class RunningProcess(NamedTuple):
    pid: int
    started: str  # identifies a process together with its ID
    parent: int
    unit: str
    command: str


def running_processes() -> set[RunningProcess]:
    """Returns all processes except kernel threads and zombies."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {one for one in found if one is not None}


def read_process(pid: int) -> RunningProcess | None:
    command = parse_command(read_text(f"/proc/{pid}/cmdline"))
    stat = read_text(f"/proc/{pid}/stat")
    if not command or not stat:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return RunningProcess(pid, fields[19], int(fields[1]), parse_unit(read_text(f"/proc/{pid}/cgroup")), command)


def parse_command(text: str) -> str:
    argv = text.rstrip("\0").split("\0")
    return DESERIALIZE.sub("", " ".join(argv)).strip()


def parse_unit(text: str) -> str:
    """Returns the unit of a process from its cgroups; `-` for a process that entered from outside."""
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        paths[names] = path
    path = paths.get("name=systemd") or paths.get("") or "/"
    units = [part for part in path.split("/") if UNIT.fullmatch(part)]
    return SESSION.sub("session", units[0]) if units else "-"


def lasting_processes(before: set[RunningProcess], after: set[RunningProcess], myself: int) -> Rows:
    """Returns the processes that exist in both lists, except this process and its ancestors.

    Processes that do not exist for the whole snapshot are not part of the machine's state.
    """
    there = before & after
    own = lineage(there, myself)
    ignored = matcher((*UNITS, *VOLATILE_UNITS))
    return count_rows(f"{one.unit} {one.command}" for one in there if one.pid not in own and not ignored(one.unit))


def lineage(processes: Iterable[RunningProcess], pid: int) -> set[int]:
    parents = {one.pid: one.parent for one in processes}
    line = set()
    while pid > 1 and pid not in line:
        line.add(pid)
        pid = parents.get(pid, 0)
    return line


def parse_sockets(text: str, port_range: str) -> Rows:
    """Parses `ss -tulpnH`. Ports that the kernel selected are marked instead of listed, because they change."""
    low, high = (int(word) for word in (port_range.split() or ("32768", "60999")))
    names = []
    for line in text.splitlines():
        fields = line.split()
        address, _, port = fields[4].rpartition(":")
        if port.isdigit() and low <= int(port) <= high:
            port = "chosen-by-kernel"
        holders = sorted(set(LISTENER.findall(" ".join(fields[HOLDER_FIELD:]))))
        names.append(f"{fields[0]} {address}:{port} {','.join(holders) or '-'}")
    return count_rows(names)


def user_rows() -> Rows:
    return {
        user.pw_name: {
            "id": f"{user.pw_uid}:{user.pw_gid}",
            "comment": user.pw_gecos,
            "home": user.pw_dir,
            "shell": user.pw_shell,
        }
        for user in pwd.getpwall()
    }


def group_rows() -> Rows:
    return {group.gr_name: {"id": str(group.gr_gid), "members": " ".join(group.gr_mem)} for group in grp.getgrall()}
