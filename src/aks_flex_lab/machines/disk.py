"""The disk of a container machine: a copy of its base system, an overlay over /usr, and the identity of the machine.

    machines/NAME/root        the root directory; its /usr is empty until the machine runs
    machines/NAME/usr/upper   the machine's changes in /usr
    machines/NAME/usr/work    the work directory of overlayfs

The overlay is mounted only in the mount namespace of the machine's runner, so that it disappears when the runner
exits for any reason. If overlayfs does not support the file system of the cache, /usr is copied like the rest.
`write_identity` writes the identity to the disk of any kind of machine.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab import network
from aks_flex_lab.errors import HostError
from aks_flex_lab.files import write_atomically
from aks_flex_lab.machines.base_system import BaseSystem, copy_tree, free_bytes
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority

MACHINE_DISK_BYTES = 1 << 30
HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


@dataclass(frozen=True)
class MachineDisk:
    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def upper(self) -> Path:
        return self.directory / "usr" / "upper"

    @property
    def work(self) -> Path:
        return self.directory / "usr" / "work"

    @property
    def has_own_usr(self) -> bool:
        """Whether /usr is a copy on this disk, not an overlay over that of the base system."""
        return not self.upper.exists()

    def create(self, base: BaseSystem) -> None:
        """Copies the base system except /usr, and creates the directories of the overlay."""
        require_disk_space(self.directory)
        self.root.mkdir(parents=True)
        shutil.copymode(base.root, self.root)
        for entry in base.root.iterdir():
            if entry.name != "usr":
                run("cp", "-a", "--reflink=auto", entry, self.root)
        for directory in (self.root / "usr", self.upper, self.work):
            directory.mkdir(parents=True)
            shutil.copymode(base.root / "usr", directory)
        write_atomically(self.root / "etc" / "hosts", HOSTS)

    def copy(self, other: MachineDisk) -> None:
        """Creates this disk as a copy of another machine's disk."""
        require_disk_space(self.directory)
        copy_tree(other.root, self.root)
        if not other.has_own_usr:
            copy_tree(other.upper, self.upper)
            self.work.mkdir()

    def mount(self, base: BaseSystem) -> None:
        """Mounts the overlay over the base system's /usr. Call it in the machine's mount namespace."""
        if self.has_own_usr:
            return
        options = f"lowerdir={base.root / 'usr'},upperdir={self.upper},workdir={self.work}"
        if not run("mount", "-t", "overlay", "overlay", "-o", options, self.root / "usr", check=False).ok:
            copy_tree(base.root / "usr", self.root / "usr")
            copy_tree(self.upper, self.root / "usr")
            shutil.rmtree(self.directory / "usr")


def write_identity(root: Path, name: str, site: network.EdgeSite, authority: CertificateAuthority) -> None:
    """Sets the machine's host name, machine ID and resolver, and adds the lab's CA to its trust store."""
    etc = root / "etc"
    domain = f"{site.name}.{network.DOMAIN}"
    write_atomically(etc / "hostname", f"{name}\n")
    write_atomically(etc / "machine-id", f"{secrets.token_hex(16)}\n", 0o444)
    write_atomically(etc / "resolv.conf", f"search {domain} {network.DOMAIN}\nnameserver {network.DNS}\n")
    _trust(root, authority)


def _trust(root: Path, authority: CertificateAuthority) -> None:
    """Adds a CA as update-ca-certificates does, but faster. OpenSSL finds the certificate by its hash."""
    certs = root / "etc/ssl/certs"
    pem = authority.certificate.read_text()
    bundle = certs / "ca-certificates.crt"
    if pem not in bundle.read_text():
        write_atomically(bundle, bundle.read_text() + pem)
    write_atomically(certs / "aks-flex-lab.pem", pem)
    link = certs / f"{authority.subject_hash}.0"
    if not link.is_symlink():
        link.symlink_to("aks-flex-lab.pem")


def require_disk_space(path: Path) -> None:
    free = free_bytes(path)
    if free < MACHINE_DISK_BYTES:
        raise HostError(
            "disk-full",
            f"Only {free >> 20} MB are free in {path.parent}; a machine needs {MACHINE_DISK_BYTES >> 20} MB.",
            "Free disk space, or set AKS_FLEX_LAB_HOME to a directory on a larger disk.",
        )
