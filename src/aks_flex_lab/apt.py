"""apt of this host: the Debian mirrors that it uses, and downloads of packages that are not installed here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping

DEBIAN_RELEASES = ("bookworm", "trixie", "forky", "sid", "stable", "testing")


def host_mirror() -> str:
    """Returns the host's own Debian mirror; empty on another distribution, where debootstrap uses its default."""
    if "ID=debian" not in Path("/etc/os-release").read_text().splitlines():
        return ""
    mirrors = mirrors_by_release()
    return next((mirrors[name] for name in DEBIAN_RELEASES if name in mirrors), "")


def mirrors_by_release() -> dict[str, str]:
    """Returns the mirror of each release in the sources of the host's apt."""
    targets = run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", check=False).out
    return {release: site for site, _, release in (line.partition(" ") for line in targets.splitlines())}


def download_command(status: Path, options: Mapping[str, object]) -> tuple[str, ...]:
    """Returns apt-get with options, for a system on which no package is installed: `status` is created empty."""
    status.write_text("")
    settings = {"Dir::State::Status": status, **options}
    return ("apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")))
