"""Programs that run from where they are unpacked: `bin/` and `lib/`, with the system's Python and nothing else.

A zipapp would not be honest here: compiled modules (cryptography, pydantic-core, uvloop and others) cannot be
imported from a zip, and would be unpacked behind one's back at the first start.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deb.wheels import LEFT_OUT, PYTHONS
from release.checkout import HOME, REQUIREMENTS, SOURCES
from release.trees import fetched, merged, own_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

LAUNCHER = """#!/usr/bin/python3 -I
import pathlib, sys
python = "%d.%d" % sys.version_info[:2]
if python not in {pythons}:
    sys.exit("{name} was made for Python {first} to {last}; this machine's python3 is " + python + ".")
lib = pathlib.Path(__file__).resolve().parents[1] / "lib"
sys.path[:0] = [str(lib / ("python" + python)), str(lib)]
from {module} import main
main()
"""


@dataclass(frozen=True)
class Program:
    """A command, and what it takes to run it."""

    name: str
    module: str
    requirements: Path
    left_out: frozenset[str]
    beside: Mapping[str, Path]

    def launcher(self) -> str:
        return LAUNCHER.format(
            name=self.name, module=self.module, pythons=PYTHONS, first=PYTHONS[0], last=PYTHONS[-1]
        )

    def archive(self, version: str, arch: str) -> str:
        return f"{self.name}-{version}-linux-{arch}.tar.gz"


AGENT = Program("aks-flex-node", "aks_flex_node.agent.cli", REQUIREMENTS / "base.txt", frozenset(LEFT_OUT), {})
# What the lab needs is what the provider needs.
PROVIDER = Program(
    "aks-flex-rp",
    "aks_flex_rp.cli",
    REQUIREMENTS / "lab.txt",
    frozenset({"lab", "agent"}),
    {
        f"share/systemd/{name}": HOME / "packaging" / "systemd" / name
        for name in ("aks-flex-rp.service", "aks-flex-rp.sysusers")
    },
)
PROGRAMS = (AGENT, PROVIDER)


def build(program: Program, version: str, arch: str, target: Path, *, moment: int) -> Path:
    """The archive, and beside it its checksum, as self-update wants it."""
    with tempfile.TemporaryDirectory() as work:
        placed = merged(fetched(program.requirements, arch, Path(work)))
        placed.update(own_sources(SOURCES, set(program.left_out)))
        content = packed(program, placed, moment=moment)
    archive = target / program.archive(version, arch)
    archive.write_bytes(content)
    archive.with_name(f"{archive.name}.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  {archive.name}\n")
    return archive


def packed(program: Program, placed: Mapping[str, Path], *, moment: int) -> bytes:
    """The same bytes for the same files, whoever packs them and when."""
    members = {f"lib/{name}": path.read_bytes() for name, path in placed.items()}
    members.update({name: path.read_bytes() for name, path in program.beside.items()})
    members["LICENSE"] = (HOME / "LICENSE").read_bytes()
    command = f"bin/{program.name}"
    members[command] = program.launcher().encode()
    total = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=total, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        for name in sorted(members):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(members[name]), moment
            member.mode = 0o755 if name == command else 0o644
            made.addfile(member, io.BytesIO(members[name]))
    return total.getvalue()
