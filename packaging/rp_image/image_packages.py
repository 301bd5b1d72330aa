"""The Debian packages of the image: fetched by name with apt, which verifies their signatures, and only unpacked.

No package is installed: their scripts need a shell, which the image does not have.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any

from aks_flex_lab.apt import download_command, host_mirror
from aks_flex_lab.processes import run
from deb.archive_formats import ar_members
from release.checkout import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELEASE = "trixie"
DISTRO = "debian-13"
PYTHON = "3.13"  # of this release
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Python, what its modules and those of the wheels link to, and the CAs that the service trusts.
PACKAGES = (
    *("base-files", "ca-certificates", "gcc-14-base", "libc6", "libgcc-s1"),
    *(f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib"),
    *(
        "libbz2-1.0",
        "libexpat1",
        "libffi8",
        "liblzma5",
        "libsqlite3-0",
        "libssl3t64",
        "libuuid1",
        "libzstd1",
        "zlib1g",
    ),
)
PRINTED = re.compile(r"^'[^']+' (?P<file>\S+) \d+ SHA256:(?P<sha256>[0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class DebianArchive:
    """Where packages come from. Mirrors of an earlier date have the packages of that date."""

    mirror: str
    security: str

    def sources(self) -> str:
        options = f"[signed-by={KEYRING}]"
        return (
            f"deb {options} {self.mirror} {RELEASE} main\n"
            f"deb {options} {self.security} {RELEASE}-security main\n"
        )  # fmt: skip


def debian_archive(mirror: str = "", security: str = "") -> DebianArchive:
    """Returns these mirrors, or those that this host uses, if it runs Debian."""
    found, updates = mirror or host_mirror(), security or host_mirror("-security")
    if found and updates:
        return DebianArchive(found, updates)
    missing = [f"{option} URL" for option, url in (("--mirror", found), ("--security-mirror", updates)) if not url]
    raise ReleaseError(f"The apt sources of this host have no such Debian mirror. Set {' and '.join(missing)}.")


@dataclass(frozen=True)
class DebianPackage:
    control: str
    data: bytes  # the tar of its files
    sha256: str

    @classmethod
    def read(cls, file: Path) -> DebianPackage:
        content = file.read_bytes()
        members = ar_members(content)
        with tarfile.open(fileobj=io.BytesIO(members["control.tar.xz"])) as opened:
            control = opened.extractfile("./control")
            text = control.read().decode() if control else ""
        return cls(text, members["data.tar.xz"], hashlib.sha256(content).hexdigest())

    def field(self, name: str) -> str:
        return str(HeaderParser().parsestr(self.control)[name])

    @property
    def name(self) -> str:
        return self.field("Package")

    def members(self) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
        """Yields path, entry and content of every file and link."""
        with tarfile.open(fileobj=io.BytesIO(self.data)) as opened:
            for member in opened:
                content = opened.extractfile(member) if member.isfile() or member.islnk() else None
                if content or member.issym():
                    yield member.name.removeprefix("./"), member, content.read() if content else b""

    def component(self) -> dict[str, Any]:
        """Returns the package for a software bill of materials."""
        version, arch = self.field("Version"), self.field("Architecture")
        purl = f"pkg:deb/debian/{self.name}@{version.replace('+', '%2B')}?arch={arch}&distro={DISTRO}"
        return {
            "type": "library",
            "bom-ref": purl,
            "name": self.name,
            "version": version,
            "purl": purl,
            "hashes": [{"alg": "SHA-256", "content": self.sha256}],
        }


def fetch_packages(arch: str, cache: Path, archive: DebianArchive) -> list[DebianPackage]:
    """Downloads the current versions of the packages for an architecture, except those in the cache."""
    apt = _apt_command(arch, cache, archive)
    run(*apt, "update", "--error-on=any", timeout=600)
    downloads = cache / "packages"
    downloads.mkdir(exist_ok=True)
    found = {
        each["file"]: each["sha256"]
        for each in PRINTED.finditer(run(*apt, "download", "--print-uris", *PACKAGES).out)
    }
    if len(found) != len(PACKAGES):
        raise ReleaseError(f"{archive.mirror} does not have all packages of the image for {arch}: {sorted(found)}.")
    run(*apt, "download", *PACKAGES, cwd=downloads, timeout=600)
    packages = {name: DebianPackage.read(downloads / name) for name in sorted(found)}
    if changed := [name for name, package in packages.items() if package.sha256 != found[name]]:
        raise ReleaseError(f"{downloads} has other content than {archive.mirror}: {changed}. Delete these files.")
    return sorted(packages.values(), key=lambda package: package.name)


def _apt_command(arch: str, cache: Path, archive: DebianArchive) -> tuple[str, ...]:
    """Returns apt-get with directories of its own, so that it neither needs root nor changes this host."""
    lists = cache / "lists" / arch
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = cache / "sources.list"
    sources.write_text(archive.sources())
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": lists,
        "Dir::Cache": cache / "apt",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
        "APT::Sandbox::User": "",  # the files belong to the caller
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }
    (cache / "apt" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    return download_command(cache / "status", options)
