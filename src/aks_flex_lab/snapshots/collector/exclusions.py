"""What a snapshot excludes, and why.

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


# Mounts whose files are not looked at. The mount itself is still told, with its options.
FILE_SYSTEMS = (
    Exclusion("proc", "the kernel's view of itself; what matters of it has sections of its own"),
    Exclusion("sysfs", "likewise, with all that is mounted below"),
    Exclusion("cgroup*", "likewise: see the sections unit and cgroup"),
    Exclusion("devpts", "terminals that are open right now"),
    Exclusion("autofs", "a look would mount what is behind it"),
    Exclusion("fuse*", "another program's files, which may hang"),
    Exclusion("nfs*", "another machine's files, which may hang"),
    Exclusion("cifs", "likewise"),
)

# Files that are not looked at.
FILES = (
    Exclusion("/var/log/journal/*", "the journal grows all the time"),
    Exclusion("/run/log/journal/*", "likewise"),
    Exclusion("/run/systemd/journal/*seqnum", "likewise: how far it has come"),
    Exclusion("/run/systemd/journal/streams/*", "one for each process that writes to the journal, by number"),
    Exclusion("/run/systemd/units/*", "a number for each start of a unit; the units are told"),
    Exclusion(
        "/run/systemd/propagate/*", "made at the first start of a service that is fenced in, kept until the next boot"
    ),
    Exclusion("/run/systemd/transient", "units that were made by a call and not by a file; the units are told"),
    Exclusion("/run/systemd/sessions/*", "one for each login"),
    Exclusion("/run/systemd/users/*", "likewise"),
    Exclusion("/run/user/*", "likewise, and kept for some seconds after the last one"),
    Exclusion("*/tmp/systemd-private-*", "a service's own /tmp, with the boot's number in its name"),
    Exclusion("/var/log/wtmp", "a record of every boot"),
    Exclusion("/run/utmp", "likewise"),
    Exclusion("/var/backups/*.[0-9]*", "Debian's daily copies of its package lists"),
    Exclusion("/var/lib/apt/daily_lock", "made by the first daily run"),
    Exclusion("/opt/lent/*/*", "the lab's own files, which others use at the same time; the mount is told"),
)

# Files of which only the content is not looked at: that they are there, and whose they are, counts.
FILE_CONTENTS = (Exclusion("/run/*.pid", "the number of a process"),)

# Mounts that are not looked at.
MOUNTS = (Exclusion("/run/user/*", "one for each user who is logged in"),)

# Units that are not looked at.
UNITS = (
    Exclusion("session-*.scope", "one for each login; its processes are told"),
    Exclusion("user-*.slice", "one for each user who is logged in, kept for some seconds after"),
    Exclusion("user-runtime-dir@*.service", "likewise"),
    Exclusion("user@*.service", "likewise"),
)

# Units of which only their activity and processes are not looked at: they start by themselves and end again.
VOLATILE_UNITS = (
    Exclusion("ldconfig.service", "runs in the first boot after an installation and not in the second"),
    Exclusion("systemd-journal-catalog-update.service", "likewise"),
    Exclusion("systemd-sysusers.service", "likewise"),
    Exclusion("systemd-update-done.service", "likewise"),
    Exclusion("systemd-hostnamed.service", "starts when it is asked something, and ends when it is not"),
    Exclusion("systemd-timedated.service", "likewise"),
    Exclusion("systemd-tmpfiles-clean.service", "runs by the clock, for a moment"),
    Exclusion("apt-daily*.service", "likewise"),
    Exclusion("dpkg-db-backup.service", "likewise"),
    Exclusion("e2scrub_all.service", "likewise"),
)

SYSCTLS = (
    Exclusion("fs.binfmt_misc*", "a mount of its own, and a look would mount it"),
    Exclusion("fs.dentry-state", "a count of what the kernel holds right now"),
    Exclusion("fs.file-nr", "likewise"),
    Exclusion("fs.inode-*", "likewise"),
    Exclusion("fs.quota.*", "likewise"),
    Exclusion("fs.aio-nr", "likewise"),
    Exclusion("kernel.pty.nr", "likewise"),
    Exclusion("net.netfilter.nf_conntrack_count", "likewise"),
    Exclusion("kernel.ns_last_pid", "the last process started"),
    Exclusion("kernel.perf_event_max_sample_rate", "the kernel lowers it itself when interrupts take long"),
    Exclusion("kernel.random.*id", "random by purpose, each time or each boot"),
)

# Addresses of links, and routes to them.
ADDRESSES = (Exclusion("fe80::*", "link-local: derived from a hardware address that is random for most links"),)


def matcher(entries: Sequence[Exclusion]) -> Callable[[str], bool]:
    """One question for a whole list, quick enough to be asked of every file."""
    if not entries:
        return lambda _: False
    match = re.compile("|".join(fnmatch.translate(entry.pattern) for entry in entries)).match
    return lambda text: match(text) is not None
