"""Base systems of machines: Debian as after its installation, built once with debootstrap and cached.

A machine never changes its base. It has copies of /etc and /var, and an overlay over /usr.
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
from typing import TYPE_CHECKING

from aks_flex_lab.apt import host_mirror
from aks_flex_lab.errors import ToolError
from aks_flex_lab.files import file_lock, last_line, write_atomically
from aks_flex_lab.kernel.mounts import remove_tree, unmount_below
from aks_flex_lab.processes import parent_death_wrapper, run, run_logged
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter

if TYPE_CHECKING:
    from pathlib import Path


class DebianRelease(str, Enum):
    """The operating systems of edge machines."""

    BOOKWORM = "bookworm"
    TRIXIE = "trixie"


PACKAGES = (
    # the base of a host
    "systemd systemd-sysv dbus kmod procps iproute2 iputils-ping ca-certificates sudo less "
    # what hosts usually have, and joining a cluster needs
    "curl openssl iptables nftables conntrack ethtool socat ebtables xz-utils "
    # required by the agent
    "python3 python3-venv openvpn "
).split()

# Units for hardware, clock and console have no function in a container.
MASKED_UNITS = (
    "systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-udev-trigger.service "
    "systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service systemd-resolved.service "
    "systemd-timesyncd.service console-getty.service getty@.service getty.target systemd-logind.service "
    "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer man-db.timer "
    "openvpn.service"
).split()

# The first process of a machine. Before systemd starts, cgroups must be writable and mounts shared. The systemd of
# Debian 13 accepts cgroup v1 only with these options of the kernel command line.
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
    def title(self) -> str:
        return self.system.value

    @property
    def packages(self) -> list[str]:
        return PACKAGES

    @property
    def debootstrap_options(self) -> list[str]:
        return []

    @property
    def masked_units(self) -> list[str]:
        return MASKED_UNITS

    @property
    def systemd_config(self) -> str:
        return SYSTEMD_CONFIG

    @property
    def recipe(self) -> list[object]:
        """Everything that the contents of the base depend on."""
        return [
            self.system.value,
            self.packages,
            self.masked_units,
            INIT_SCRIPT,
            self.systemd_config,
            platform.machine(),
        ]

    @property
    def key(self) -> str:
        """A key that changes when the contents of the base change."""
        return hashlib.sha256(json.dumps(self.recipe).encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        return self.cache / "bases" / f"{self.title}-{platform.machine()}-{self.key}"

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def ready(self) -> bool:
        return (self.directory / "ready").exists()

    @property
    def log(self) -> Path:
        return self.cache / "logs" / f"debootstrap-{self.title}.log"

    def build(self, progress: ProgressReporter = NO_PROGRESS) -> None:
        """Builds the base system unless it exists. An interrupted build starts again from the beginning."""
        if self.ready:
            return
        start = time.monotonic()
        title = f"{self.title} base system"
        lock = self.cache / "bases" / f"{self.title}.lock"
        with progress.task(title, self._progress_text), file_lock(lock, f"the {title}", wait=True):
            if self.ready:
                return
            unmount_below(self.directory)
            remove_tree(self.directory)
            self.root.mkdir(parents=True)
            self._bootstrap()
            self._configure()
            self._finish()
            write_atomically(self.directory / "ready", "")
        progress.finished(title, "built", time.monotonic() - start)

    def _progress_text(self) -> str:
        """Returns the current step of debootstrap."""
        return last_line(self.log).removeprefix("I: ")[:43]

    def _bootstrap(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        source = host_mirror()
        code = run_logged(
            *parent_death_wrapper(),
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(self.packages)}",
            *self.debootstrap_options,
            self.system.value,
            self.root,
            *([source] if source else []),
            log=self.log,
        )
        if code != 0:
            unmount_below(self.directory)
            raise ToolError(
                "base-system-failed",
                f"The {self.title} base system could not be built: {last_line(self.log)}.",
                f"Read the log {self.log}. Check that this machine can download Debian packages, then retry.",
            )

    def _configure(self) -> None:
        """Configures the system as an installer does, without what has no function in the lab."""
        units = self.root / "etc/systemd/system"
        for unit in self.masked_units:
            mask = units / unit
            if not mask.is_symlink():
                mask.symlink_to("/dev/null")
        write_atomically(self.root / "etc/systemd/system.conf.d/lab.conf", self.systemd_config)
        write_atomically(self.root / INIT_PATH, INIT_SCRIPT, 0o755)
        for leftover in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
            for path in (self.root / leftover).iterdir():
                remove_tree(path) if path.is_dir() else path.unlink()
        for name in ("etc/machine-id", "etc/hostname", "etc/resolv.conf", "var/lib/dbus/machine-id"):
            (self.root / name).unlink(missing_ok=True)

    def _finish(self) -> None:
        """Completes the base after its configuration, for other kinds of machines."""


def copy_tree(source: Path, target: Path) -> None:
    """Copies a tree with owners, modes, times, links and attributes."""
    target.mkdir(parents=True, exist_ok=True)
    run("cp", "-a", "--reflink=auto", f"{source}/.", target, timeout=600)


def free_bytes(path: Path) -> int:
    """Returns the free disk space at a path, which need not exist."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free if os.access(path, os.R_OK) else 0
