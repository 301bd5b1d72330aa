"""The exclusions from a snapshot, with their reasons.

Each entry differs on an untouched machine between two snapshots or two boots of Debian 12 and 13. Patterns are shell
patterns in which `*` matches `/`; a matching directory is excluded with everything below it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Exclusion(NamedTuple):
    pattern: str
    why: str


# Mounts whose files are excluded. The mount itself is included, with its options.
FILE_SYSTEMS = (
    Exclusion("proc", "kernel state, which other sections cover"),
    Exclusion("sysfs", "likewise, with all mounts below"),
    Exclusion("cgroup*", "likewise: see the sections unit and cgroup"),
    Exclusion("devpts", "terminals that are open right now"),
    Exclusion("autofs", "reading it would mount a file system"),
    Exclusion("fuse*", "files of another program, which may hang"),
    Exclusion("nfs*", "files of another machine, which may hang"),
    Exclusion("cifs", "likewise"),
)

# Excluded files.
FILES = (
    Exclusion("/var/log/journal/*", "the journal grows continuously"),
    Exclusion("/run/log/journal/*", "likewise"),
    Exclusion("/run/systemd/journal/*seqnum", "likewise: its position"),
    Exclusion("/run/systemd/journal/streams/*", "one for each process that writes to the journal, by number"),
    Exclusion("/run/systemd/units/*", "a number for each start of a unit; the section unit covers them"),
    Exclusion(
        "/run/systemd/propagate/*", "created at the first start of a sandboxed service, kept until the next boot"
    ),
    Exclusion("/run/systemd/incoming", "likewise: where systemd mounts into a running service"),
    Exclusion("/run/systemd/transient", "transient units; the section unit covers them"),
    Exclusion("/run/systemd/sessions/*", "one for each login"),
    Exclusion("/run/systemd/users/*", "likewise"),
    Exclusion("/run/user/*", "likewise, and kept for some seconds after the last logout"),
    Exclusion("/run/udev/*", "the devices in the order in which the kernel found them"),
    Exclusion("*/tmp/systemd-private-*", "a private /tmp of a service, with the boot ID in its name"),
    Exclusion("/var/log/wtmp", "a record of every boot"),
    Exclusion("/run/utmp", "likewise"),
    Exclusion("/var/backups/*.[0-9]*", "Debian's daily copies of its package lists"),
    Exclusion("/var/lib/apt/daily_lock", "created by the first daily run"),
    Exclusion("/opt/lent/*/*", "files of the lab, which other machines use at the same time; the mount is included"),
)

# Files whose content is excluded. Their existence, owner and mode are included.
FILE_CONTENTS = (
    Exclusion("/run/*.pid", "a process ID"),
    Exclusion("/swapfile", "memory that the kernel has swapped out"),
    Exclusion("/var/lib/systemd/random-seed", "random at every boot"),
)

# Excluded mounts.
MOUNTS = (Exclusion("/run/user/*", "one for each user who is logged in"),)

# Excluded units.
UNITS = (
    Exclusion("session-*.scope", "one for each login; its processes are included"),
    Exclusion("user-*.slice", "one for each user who is logged in, kept for some seconds after the logout"),
    Exclusion("user-runtime-dir@*.service", "likewise"),
    Exclusion("user@*.service", "likewise"),
)

# Units whose activity and processes are excluded, because they start and stop automatically.
VOLATILE_UNITS = (
    Exclusion("ldconfig.service", "runs only in the first boot after an installation"),
    Exclusion("systemd-journal-catalog-update.service", "likewise"),
    Exclusion("systemd-sysusers.service", "likewise"),
    Exclusion("systemd-update-done.service", "likewise"),
    Exclusion("systemd-hostnamed.service", "starts on demand, and stops when idle"),
    Exclusion("systemd-timedated.service", "likewise"),
    Exclusion("systemd-tmpfiles-clean.service", "runs on a schedule, for a short time"),
    Exclusion("apt-daily*.service", "likewise"),
    Exclusion("dpkg-db-backup.service", "likewise"),
    Exclusion("e2scrub_all.service", "likewise"),
)

SYSCTLS = (
    Exclusion("fs.binfmt_misc*", "reading it would mount a file system"),
    Exclusion("fs.dentry-state", "a counter of kernel objects in use"),
    Exclusion("fs.file-nr", "likewise"),
    Exclusion("fs.inode-*", "likewise"),
    Exclusion("fs.quota.*", "likewise"),
    Exclusion("fs.aio-nr", "likewise"),
    Exclusion("kernel.pty.nr", "likewise"),
    Exclusion("net.netfilter.nf_conntrack_count", "likewise"),
    Exclusion("kernel.ns_last_pid", "the ID of the last process"),
    Exclusion("kernel.perf_event_max_sample_rate", "the kernel lowers it when interrupts take long"),
    Exclusion("vm.*_reserve_kbytes", "the kernel computes them from the memory that is free at boot"),
    Exclusion("kernel.random.*id", "random at every read or every boot"),
)

# Excluded addresses of links, and routes to them.
ADDRESSES = (Exclusion("fe80::*", "link-local: derived from a hardware address that is random for most links"),)


def matcher(entries: Sequence[Exclusion]) -> Callable[[str], bool]:
    """Compiles a list of patterns into one function that is fast enough for every file."""
    if not entries:
        return lambda _: False
    match = re.compile("|".join(fnmatch.translate(entry.pattern) for entry in entries)).match
    return lambda text: match(text) is not None
