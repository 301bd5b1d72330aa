"""Collects kernel state: mounts, sysctls, modules, swap and cgroups."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from aks_flex_lab.snapshots.collector.exclusions import MOUNTS, SYSCTLS, matcher
from aks_flex_lab.snapshots.collector.probe import read_text, unused_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.snapshots.collector.probe import Row, Rows

SETTINGS = "/proc/sys"
# Sysctls that belong to a namespace: network, UTS, IPC.
OWN_SETTING = re.compile(r"net\.|fs\.mqueue\.|kernel\.(hostname|domainname|sem|shm|msg|auto_msgmni)")
ESCAPED = re.compile(r"\\([0-7]{3})")
NAMESPACE = re.compile(r":\[\d+\]$")
# The numbers of the pipe of an automount.
AUTOMOUNT_NUMBER = re.compile(r"(fd|pipe_ino)=\d+")
# The section unit covers the cgroups of systemd units.
UNIT = re.compile(r".+\.(service|scope|slice|mount|socket|swap)")


def parse_mounts(text: str) -> Rows:
    """Parses /proc/self/mountinfo by mount point, without numbers that change at every boot."""
    ignored = matcher(MOUNTS)
    rows: Rows = {}
    for target, row in map(parse_mount, text.splitlines()):
        if not ignored(target):
            rows[unused_name(target, rows)] = row
    return rows


def parse_mount(line: str) -> tuple[str, Row]:
    left, _, right = line.partition(" - ")
    _, _, _, root, target, options, *optional = left.split(" ")
    kind, source, own_options = right.split(" ")
    row = {"type": kind, "source": unescape(source), "options": merged_options(options, own_options)}
    spread = sorted(tag.partition(":")[0] for tag in optional if tag)
    if spread:
        row["propagation"] = " ".join(spread)
    if root != "/":
        row["of"] = part_of(unescape(root))
    return unescape(target), row


def part_of(root: str) -> str:
    """Returns the mounted directory of the file system, without namespace numbers and names of deleted files."""
    return "a deleted file" if root.endswith("//deleted") else NAMESPACE.sub("", root)


def merged_options(options: str, own_options: str) -> str:
    """Merges the options of the mount and of its file system."""
    merged = sorted(set(options.split(",")) | set(own_options.split(",")))
    if "ro" in options.split(",") and "rw" in merged:
        merged.remove("rw")  # a read-only mount of a writable file system
    return ",".join(unescape(word) for word in merged if not AUTOMOUNT_NUMBER.fullmatch(word))


def unescape(text: str) -> str:
    return ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), text)


def file_systems(mountinfo: str) -> dict[str, str]:
    """Returns the type of the file system that was mounted last at each mount point."""
    return {target: row["type"] for target, row in map(parse_mount, mountinfo.splitlines())}


def sysctl_rows(root: str = SETTINGS) -> Rows:
    """Returns all readable sysctls by their sysctl(8) names."""
    ignored = matcher(SYSCTLS)
    rows: Rows = {}
    pending = [root]
    while pending:
        for entry in scan(pending.pop()):
            name = dotted(entry.path[len(root) + 1 :])
            if ignored(name):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif entry.stat().st_mode & 0o444:
                rows[name] = {"value": " ".join(read_text(entry.path).split())}
    return rows


def split_sysctls(settings: Rows) -> tuple[Rows, Rows]:
    """Splits sysctls into those of the machine and those shared with all machines on the same kernel.

    Any of these machines can change the shared ones for all, as a kubelet does.
    """
    own = {name: row for name, row in settings.items() if OWN_SETTING.match(name)}
    return own, {name: row for name, row in settings.items() if name not in own}


def dotted(path: str) -> str:
    """Returns the sysctl(8) name of a path, in which a dot in the name of a link is a slash."""
    return path.replace(".", "\0").replace("/", ".").replace("\0", "/")


def scan(path: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(path))
    except OSError:
        return []


def parse_modules(text: str) -> Rows:
    """Parses the names in /proc/modules. The users of a module change with every process."""
    return {line.split()[0]: {"state": "loaded"} for line in text.splitlines()}


def parse_swaps(text: str) -> Rows:
    """Parses /proc/swaps without the used size, which changes continuously."""
    lines = (line.split() for line in text.splitlines()[1:])
    return {unescape(name): {"type": kind, "kilobytes": size} for name, kind, size, *_ in lines}


def cgroup_rows(mounts: Rows) -> Rows:
    """Returns cgroups that systemd does not manage, for example those that a runtime did not remove."""
    tops = [target for target, row in mounts.items() if row["type"] in {"cgroup", "cgroup2"}]
    return {name: {"state": "made"} for top in tops for name in groups_below(top)}


def groups_below(top: str) -> Iterator[str]:
    pending = [top]
    while pending:
        for entry in scan(pending.pop()):
            if not entry.is_dir(follow_symlinks=False):
                continue
            if not UNIT.fullmatch(entry.name):
                yield entry.path[len(top) :]
            # Cgroups below a service or scope belong to its program, and are removed with it.
            if not entry.name.endswith((".service", ".scope")):
                pending.append(entry.path)
