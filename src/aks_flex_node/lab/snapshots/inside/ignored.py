"""What a snapshot leaves out, and why: the only list of its kind.

Each entry differs on a machine that nobody has touched, between two looks or between two boots (Debian 12 and 13 were
watched). Whatever is not listed here counts. Patterns are those of a shell, `*` matches `/` too, and a directory that
matches is left out with all that is below it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Ignored(NamedTuple):
    pattern: str
    why: str


# Mounts whose files are not looked at. The mount itself is still told, with its options.
FILE_SYSTEMS = (
    Ignored("proc", "the kernel's view of itself; what matters of it has sections of its own"),
    Ignored("sysfs", "likewise, with all that is mounted below"),
    Ignored("cgroup*", "likewise: see the sections unit and cgroup"),
    Ignored("devpts", "terminals that are open right now"),
    Ignored("autofs", "a look would mount what is behind it"),
    Ignored("fuse*", "another program's files, which may hang"),
    Ignored("nfs*", "another machine's files, which may hang"),
    Ignored("cifs", "likewise"),
)

# Files that are not looked at.
FILES = (
    Ignored("/var/log/journal/*", "the journal grows all the time"),
    Ignored("/run/log/journal/*", "likewise"),
    Ignored("/run/systemd/journal/*seqnum", "likewise: how far it has come"),
    Ignored("/run/systemd/journal/streams/*", "one for each process that writes to the journal, by number"),
    Ignored("/run/systemd/units/*", "a number for each start of a unit; the units are told"),
    Ignored(
        "/run/systemd/propagate/*", "made at the first start of a service that is fenced in, kept until the next boot"
    ),
    Ignored("/run/systemd/transient", "units that were made by a call and not by a file; the units are told"),
    Ignored("/run/systemd/sessions/*", "one for each login"),
    Ignored("/run/systemd/users/*", "likewise"),
    Ignored("/run/user/*", "likewise, and kept for some seconds after the last one"),
    Ignored("*/tmp/systemd-private-*", "a service's own /tmp, with the boot's number in its name"),
    Ignored("/var/log/wtmp", "a record of every boot"),
    Ignored("/run/utmp", "likewise"),
    Ignored("/var/backups/*.[0-9]*", "Debian's daily copies of its package lists"),
    Ignored("/var/lib/apt/daily_lock", "made by the first daily run"),
    Ignored("/opt/lent/*/*", "the lab's own files, which others use at the same time; the mount is told"),
)

# Files of which only the content is not looked at: that they are there, and whose they are, counts.
CONTENTS = (Ignored("/run/*.pid", "the number of a process"),)

# Mounts that are not looked at.
MOUNTS = (Ignored("/run/user/*", "one for each user who is logged in"),)

# Units that are not looked at.
UNITS = (
    Ignored("session-*.scope", "one for each login; its processes are told"),
    Ignored("user-*.slice", "one for each user who is logged in, kept for some seconds after"),
    Ignored("user-runtime-dir@*.service", "likewise"),
    Ignored("user@*.service", "likewise"),
)

# Units of which only their activity and processes are not looked at: they start by themselves and end again.
RESTLESS_UNITS = (
    Ignored("ldconfig.service", "runs in the first boot after an installation and not in the second"),
    Ignored("systemd-journal-catalog-update.service", "likewise"),
    Ignored("systemd-sysusers.service", "likewise"),
    Ignored("systemd-update-done.service", "likewise"),
    Ignored("systemd-hostnamed.service", "starts when it is asked something, and ends when it is not"),
    Ignored("systemd-timedated.service", "likewise"),
    Ignored("systemd-tmpfiles-clean.service", "runs by the clock, for a moment"),
    Ignored("apt-daily*.service", "likewise"),
    Ignored("dpkg-db-backup.service", "likewise"),
    Ignored("e2scrub_all.service", "likewise"),
)

SYSCTLS = (
    Ignored("fs.binfmt_misc*", "a mount of its own, and a look would mount it"),
    Ignored("fs.dentry-state", "a count of what the kernel holds right now"),
    Ignored("fs.file-nr", "likewise"),
    Ignored("fs.inode-*", "likewise"),
    Ignored("fs.quota.*", "likewise"),
    Ignored("fs.aio-nr", "likewise"),
    Ignored("kernel.pty.nr", "likewise"),
    Ignored("net.netfilter.nf_conntrack_count", "likewise"),
    Ignored("kernel.ns_last_pid", "the last process started"),
    Ignored("kernel.perf_event_max_sample_rate", "the kernel lowers it itself when interrupts take long"),
    Ignored("kernel.random.*id", "random by purpose, each time or each boot"),
)

# Addresses of links, and routes to them.
ADDRESSES = (Ignored("fe80::*", "link-local: derived from a hardware address that is random for most links"),)


def matcher(entries: Sequence[Ignored]) -> Callable[[str], bool]:
    """One question for a whole list, quick enough to be asked of every file."""
    if not entries:
        return lambda _: False
    match = re.compile("|".join(fnmatch.translate(entry.pattern) for entry in entries)).match
    return lambda text: match(text) is not None
