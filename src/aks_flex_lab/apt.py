"""apt of this host: the Debian mirrors that it uses, and packages that are downloaded and unpacked, not installed.

No script of an unpacked package runs, and the host's dpkg does not know it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.files import file_lock
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Only packages that are signed, whatever this host allows.
VERIFIED_ONLY = {
    "Acquire::AllowInsecureRepositories": "false",
    "Acquire::AllowWeakRepositories": "false",
    "Acquire::AllowDowngradeToInsecureRepositories": "false",
    "APT::Get::AllowUnauthenticated": "false",
}
DEBIAN_RELEASES = ("bookworm", "trixie", "forky", "sid", "stable", "testing")


def host_mirror(updates: str = "") -> str:
    """Returns the host's own Debian mirror, or that of updates such as `-security`; empty on another distribution."""
    if "ID=debian" not in Path("/etc/os-release").read_text().splitlines():
        return ""
    targets = run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", check=False).out
    mirrors = {release: site for site, _, release in (line.partition(" ") for line in targets.splitlines())}
    return next((mirrors[name + updates] for name in DEBIAN_RELEASES if name + updates in mirrors), "")


def download_command(status: Path, options: Mapping[str, object]) -> tuple[str, ...]:
    """Returns apt-get with options, for a system on which no package is installed: `status` is created empty."""
    status.write_text("")
    settings = {"Dir::State::Status": status, **VERIFIED_ONLY, **options}
    return ("apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")))


def unpacked_packages(target: Path, download: Callable[[Path, Path], None]) -> Path:
    """Returns the directory in which packages are unpacked; downloads them if it does not exist.

    `download` gets an empty directory for the packages, and one for the state of apt, which is removed at the end.
    """
    with file_lock(target.parent / ".lock", "the Debian packages", wait=True):
        if not target.exists():
            partial = target.with_name(f".{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            archives, state = partial / "archives", partial / "state"
            for directory in (archives, state):
                directory.mkdir(parents=True)
            download(archives, state)
            for archive in sorted(archives.glob("*.deb")):
                run("dpkg-deb", "--extract", archive, partial / "root", timeout=120)
            (partial / "root").rename(target)
            shutil.rmtree(partial)
    return target
