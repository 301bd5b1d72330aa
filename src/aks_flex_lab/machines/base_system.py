"""Base systems: Debian as its installer leaves it, built once by debootstrap and cached.

A machine never changes its base. It copies /etc and /var, and mounts an overlay of its own over /usr.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from aks_flex_lab.errors import ToolError
from aks_flex_lab.files import file_lock, last_line, write_atomically
from aks_flex_lab.kernel.mounts import remove_tree, unmount_below
from aks_flex_lab.processes import parent_death_wrapper, run, run_logged
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter


class DebianRelease(str, Enum):
    """The systems an edge machine can run."""

    BOOKWORM = "bookworm"
    TRIXIE = "trixie"


PACKAGES = (
    # what makes it a host
    "systemd systemd-sysv dbus kmod procps iproute2 iputils-ping ca-certificates sudo less "
    # what an administrator's machine has, and joining a cluster needs
    "curl openssl iptables nftables conntrack ethtool socat ebtables xz-utils "
    # what the agent runs on
    "python3 python3-venv openvpn "
).split()

# Inside a container there is no hardware to watch, no clock to set and no screen to log in on.
MASKED_UNITS = (
    "systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-udev-trigger.service "
    "systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service systemd-resolved.service "
    "systemd-timesyncd.service console-getty.service getty@.service getty.target systemd-logind.service "
    "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer man-db.timer "
    "openvpn.service"
).split()

# The first process of a machine: the control groups must be writable and mounts shared before systemd looks at them.
# Debian 13's systemd takes the older hierarchies only when it is told so, as a kernel command line would.
INIT_SCRIPT = """#!/bin/sh
for group in /sys/fs/cgroup/*/ /sys/fs/cgroup; do
    mountpoint -q "$group" && mount -o remount,bind,rw "$group"
done
mount --make-rshared /
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
    SYSTEMD_PROC_CMDLINE="SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 systemd.unified_cgroup_hierarchy=0"
    SYSTEMD_PROC_CMDLINE="$SYSTEMD_PROC_CMDLINE systemd.legacy_systemd_cgroup_controller=0"
    export SYSTEMD_PROC_CMDLINE
fi
exec /lib/systemd/systemd
"""
SYSTEMD_CONFIG = "[Manager]\nDefaultTimeoutStopSec=5s\n"
INIT_PATH = "usr/lib/aks-flex-lab/init"


@dataclass(frozen=True)
class BaseSystem:
    system: DebianRelease
    cache: Path

    @property
    def key(self) -> str:
        """Changes when anything that a base is made from changes."""
        recipe = json.dumps(
            [self.system.value, PACKAGES, MASKED_UNITS, INIT_SCRIPT, SYSTEMD_CONFIG, platform.machine()]
        )
        return hashlib.sha256(recipe.encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        return self.cache / "bases" / f"{self.system.value}-{platform.machine()}-{self.key}"

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def ready(self) -> bool:
        return (self.directory / "ready").exists()

    @property
    def log(self) -> Path:
        return self.cache / "logs" / f"debootstrap-{self.system.value}.log"

    def build(self, progress: ProgressReporter = NO_PROGRESS) -> None:
        """Build it unless it is there. An interrupted build starts over; a finished one is never touched."""
        if self.ready:
            return
        start = time.monotonic()
        title = f"{self.system.value} base system"
        lock = self.cache / "bases" / f"{self.system.value}.lock"
        with progress.task(title, self._progress_text), file_lock(lock, f"the {title}", wait=True):
            if self.ready:
                return
            unmount_below(self.directory)
            remove_tree(self.directory)
            self.root.mkdir(parents=True)
            self._bootstrap()
            self._configure()
            write_atomically(self.directory / "ready", "")
        progress.finished(title, "built", time.monotonic() - start)

    def _progress_text(self) -> str:
        """What debootstrap says it is at."""
        return last_line(self.log).removeprefix("I: ")[:43]

    def _bootstrap(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        source = package_source()
        code = run_logged(
            *parent_death_wrapper(),
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            self.system.value,
            self.root,
            *([source] if source else []),
            log=self.log,
        )
        if code != 0:
            unmount_below(self.directory)
            raise ToolError(
                "base-system-failed",
                f"The {self.system.value} base system could not be built: {last_line(self.log)}.",
                f"Its log is {self.log}. Check that this machine can install Debian packages, then try again.",
            )

    def _configure(self) -> None:
        """What the installer of a real machine would leave, less what has no meaning inside a lab."""
        units = self.root / "etc/systemd/system"
        for unit in MASKED_UNITS:
            mask = units / unit
            if not mask.is_symlink():
                mask.symlink_to("/dev/null")
        write_atomically(self.root / "etc/systemd/system.conf.d/lab.conf", SYSTEMD_CONFIG)
        write_atomically(self.root / INIT_PATH, INIT_SCRIPT, 0o755)
        for leftover in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
            for path in (self.root / leftover).iterdir():
                remove_tree(path) if path.is_dir() else path.unlink()
        for name in ("etc/machine-id", "etc/hostname", "etc/resolv.conf", "var/lib/dbus/machine-id"):
            (self.root / name).unlink(missing_ok=True)


def package_source() -> str:
    """Where this machine itself gets Debian packages; empty on another distribution: debootstrap knows one then."""
    if "ID=debian" not in Path("/etc/os-release").read_text().splitlines():
        return ""
    targets = run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", check=False)
    for line in targets.out.splitlines():
        site, _, release = line.partition(" ")
        if release in {"bookworm", "trixie", "forky", "sid", "stable", "testing"}:
            return site
    return ""


def copy_tree(source: Path, target: Path) -> None:
    """A faithful copy: owners, modes, times, links, attributes."""
    target.mkdir(parents=True, exist_ok=True)
    run("cp", "-a", "--reflink=auto", f"{source}/.", target, timeout=600)


def free_bytes(path: Path) -> int:
    """Free space where a path is, or would be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free if os.access(path, os.R_OK) else 0
