"""The package: which files it has, what dpkg is told of them, and its bytes."""

from __future__ import annotations

import gzip
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from aks_flex_node.agent.config.render import config_template
from deb import pages
from deb.archives import Entry, ar, tar_gz
from deb.wheels import carried

MACHINE = Path(__file__).parent / "machine"
NAME = "aks-flex-node"
LIB = f"usr/lib/{NAME}"
DOC = f"usr/share/doc/{NAME}"
EXAMPLE = f"etc/{NAME}/config.yaml.example"
MAINTAINER = "The AKS Flex Node authors <aksflexnode@users.noreply.github.com>"
HOMEPAGE = "https://github.com/Azure/AKSFlexNode"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
CONTROL = """Package: {name}
Version: {version}
Architecture: {arch}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: python3 (>= 3.10), python3 (<< 3.14)
Recommends: iptables, conntrack, ethtool, socat
Suggests: openvpn
Section: admin
Priority: optional
Homepage: {homepage}
Description: turn this machine into a worker node of an AKS cluster
 The agent of AKS Flex Node makes a machine outside Azure a worker node of an
 AKS cluster by one command, keeps it one, and leaves the machine as it was
 by another.
 .
 Installing the package changes nothing else on the machine: it starts and
 enables no service until the machine is told to join.
"""


@dataclass(frozen=True)
class Build:
    """One package to be made."""

    version: str
    arch: str
    when: int  # the time that everything in it bears
    checkout: Path
    wheels: Path

    @property
    def debian_version(self) -> str:
        """The version as dpkg orders versions: there, only a tilde lets 1.3.0rc1 come before 1.3.0."""
        return re.sub(r"(?<=\d)(a|b|rc)(?=\d)", r"~\1", self.version)

    @property
    def file_name(self) -> str:
        """With the version as it is said everywhere else: GitHub does not keep a tilde in a file's name."""
        return f"{NAME}_{self.version}_{self.arch}.deb"


def package(build: Build) -> bytes:
    files = contents(build)
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": tar_gz(control(build, files), build.when),
        "data.tar.gz": tar_gz(files, build.when),
    }
    return ar(members, build.when)


def contents(build: Build) -> dict[str, Entry]:
    wheels = carried(build.wheels, build.checkout / "src/aks_flex_node", build.version, build.when)
    manual = pages.manual(build.version, build.when)
    return {
        f"usr/bin/{NAME}": Entry((MACHINE / NAME).read_bytes(), 0o755),
        f"{LIB}/environments.py": Entry((MACHINE / "environments.py").read_bytes()),
        **{f"{LIB}/wheels/{name}": Entry(content) for name, content in wheels.items()},
        **{f"usr/share/man/man1/{name}.gz": Entry(_gzip(text.encode())) for name, text in manual.items()},
        **{place: Entry(text.encode()) for place, text in pages.completions().items()},
        EXAMPLE: Entry(config_template().encode()),
        f"{DOC}/copyright": Entry(_copyright(build).encode()),
        f"{DOC}/changelog.gz": Entry(_gzip(_changelog(build).encode())),
        f"{DOC}/troubleshooting.md": Entry((build.checkout / "docs/troubleshooting.md").read_bytes()),
    }


def control(build: Build, files: dict[str, Entry]) -> dict[str, Entry]:
    size = sum(-(-len(entry.content) // 1024) for entry in files.values())
    said = CONTROL.format(
        name=NAME, version=build.debian_version, arch=build.arch, maintainer=MAINTAINER, homepage=HOMEPAGE, size=size
    )
    sums = [f"{hashlib.md5(files[path].content).hexdigest()}  {path}\n" for path in sorted(files)]  # noqa: S324 - dpkg's own
    return {
        "control": Entry(said.encode()),
        "conffiles": Entry(f"/{EXAMPLE}\n".encode()),
        "md5sums": Entry("".join(line for line in sums if EXAMPLE not in line).encode()),
        "triggers": Entry((MACHINE / "triggers").read_bytes()),
        **{name: Entry(_script(name, build), 0o755) for name in SCRIPTS},
    }


def _script(name: str, build: Build) -> bytes:
    return (MACHINE / name).read_bytes().replace(b"@VERSION@", build.debian_version.encode())


def _changelog(build: Build) -> str:
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(build.when))
    said = f"  * What is new, in words of users:\n    {HOMEPAGE}/blob/main/CHANGELOG.md"
    return f"{NAME} ({build.debian_version}) stable; urgency=medium\n\n{said}\n\n -- {MAINTAINER}  {date}\n"


def _copyright(build: Build) -> str:
    """In the form that machines read. What the wheels are licensed under stands in each of them."""
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
    title, _, text = (build.checkout / "LICENSE").read_text().strip().partition("\n\n")
    holder, _, terms = text.partition("\n\n")
    body = "\n".join(f" {line.strip() or '.'}" for line in terms.splitlines())
    who = holder.removeprefix("Copyright (c) ")
    own = f"\nFiles: *\nCopyright: {who}\nLicense: {'Expat' if title == 'MIT License' else title}\n{body}\n"
    note = f"Comment: The licences of the packages below /{LIB}/wheels stand in each of them (*.dist-info).\n"
    return f"{head}Upstream-Name: {NAME}\nSource: {HOMEPAGE}\n{note}{own}"


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)
