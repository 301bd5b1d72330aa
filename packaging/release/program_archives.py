"""Builds program archives that run from any directory: `bin/` and `lib/`, for every supported Python.

Compiled modules cannot be imported from a zip file, so these are tarballs and not zipapps. Files that differ between
Python versions are in `lib/python3.X/`, which comes first on the path.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.processes import run
from deb.wheels import PYTHONS
from release.checkout import HOME, REQUIREMENTS, SOURCES, tracked_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# All supported systems have a newer glibc.
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
# Files of the installer, which are not reproducible.
INSTALLER_FILES = {"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "uv_cache.json", "direct_url.json"}


@dataclass(frozen=True)
class PackageTree:
    """The installed packages for one Python."""

    python: str
    folder: Path

    def files(self) -> dict[str, Path]:
        found = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: path for name, path in found.items() if _belongs(Path(name))}


def _belongs(name: Path) -> bool:
    note = name.parent.name.endswith(".dist-info") and name.name in INSTALLER_FILES
    return not note and name.parts[0] != "bin" and "__pycache__" not in name.parts and name.name != ".lock"


def fetch_trees(requirements: Path, arch: str, work: Path, pythons: Iterable[str] = PYTHONS) -> list[PackageTree]:
    """Installs the pinned packages for each Python, verified by hash, independent of the Python of this host."""
    uv = Path(sys.executable).parent / "uv"
    options = ["--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy"]
    trees = [PackageTree(python, work / f"{arch}-{python}") for python in pythons]
    for tree in trees:
        target = ["--target", str(tree.folder), "--python-version", tree.python, "--python-platform", PLATFORMS[arch]]
        run(uv, "pip", "install", *options, *target, "-r", requirements, timeout=600)
    return trees


def merge_trees(trees: list[PackageTree]) -> dict[str, Path]:
    """Merges the trees into one layout: paths below `lib/` and their source files."""
    by_root: dict[str, dict[str, dict[str, Path]]] = defaultdict(lambda: defaultdict(dict))
    for tree in trees:
        for name, path in tree.files().items():
            by_root[Path(name).parts[0]][tree.python][name] = path
    placed: dict[str, Path] = {}
    for wanted in by_root.values():
        # A package that some Pythons do not have is installed only for the others.
        placed.update(_merge_package(wanted) if len(wanted) == len(trees) else _per_python(wanted))
    return placed


def _merge_package(wanted: dict[str, dict[str, Path]]) -> dict[str, Path]:
    """Shares the files of a package between Pythons, starting with the newest.

    A Python with different content gets a separate copy of the whole package, because a package cannot be split
    between two directories.
    """
    common: dict[str, Path] = {}
    apart: dict[str, dict[str, Path]] = {}
    for python, files in reversed(wanted.items()):
        if all(common[name].read_bytes() == path.read_bytes() for name, path in files.items() if name in common):
            common.update(files)
        else:
            apart[python] = files
    return common | _per_python(apart)


def _per_python(wanted: dict[str, dict[str, Path]]) -> dict[str, Path]:
    return {f"python{python}/{name}": path for python, files in wanted.items() for name, path in files.items()}


LAUNCHER = """#!/usr/bin/python3 -I
import pathlib, sys
python = "%d.%d" % sys.version_info[:2]
if python not in {pythons}:
    sys.exit("{name} requires Python {first} to {last}. The python3 of this machine is " + python + ".")
lib = pathlib.Path(__file__).resolve().parents[1] / "lib"
sys.path[:0] = [str(lib / ("python" + python)), str(lib)]
from {module} import main
main()
"""


@dataclass(frozen=True)
class ReleasedProgram:
    """A program of the release and its files."""

    name: str
    module: str
    requirements: Path
    packages: tuple[Path, ...]
    left_out: frozenset[str]
    beside: Mapping[str, Path]

    def launcher(self) -> str:
        return LAUNCHER.format(
            name=self.name, module=self.module, pythons=PYTHONS, first=PYTHONS[0], last=PYTHONS[-1]
        )

    def own_sources(self, tracked: Sequence[Path]) -> dict[str, Path]:
        """Returns those of the tracked files that belong to it, without the sub-packages that it does not need."""
        files = [(one, path) for one in self.packages for path in tracked if path.is_relative_to(one)]
        return {
            str(path.relative_to(package.parent)): path
            for package, path in files
            if not self.left_out & set(path.relative_to(package).parts)
        }

    def archive(self, version: str, arch: str) -> str:
        return f"{self.name}-{version}-linux-{arch}.tar.gz"


AGENT = ReleasedProgram(
    "aks-flex-node", "aks_flex_node.agent.cli", REQUIREMENTS / "base.txt", (SOURCES,), frozenset(), {}
)
PROVIDER = ReleasedProgram(
    "aks-flex-rp",
    "aks_flex_rp.cli",
    REQUIREMENTS / "rp.txt",
    (SOURCES, SOURCES.with_name("aks_flex_rp")),
    frozenset({"agent"}),
    {
        f"share/systemd/{name}": HOME / "packaging" / "systemd" / name
        for name in ("aks-flex-rp.service", "aks-flex-rp.sysusers")
    },
)
PROGRAMS = (AGENT, PROVIDER)


def build_archive(program: ReleasedProgram, version: str, arch: str, target: Path, *, moment: int) -> Path:
    """Builds the archive and its checksum file, in the format that self-update expects."""
    with tempfile.TemporaryDirectory() as work:
        placed = merge_trees(fetch_trees(program.requirements, arch, Path(work)))
        placed.update(program.own_sources(tracked_files(program.packages)))
        content = pack(program, placed, moment=moment)
    archive = target / program.archive(version, arch)
    archive.write_bytes(content)
    archive.with_name(f"{archive.name}.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  {archive.name}\n")
    return archive


def pack(program: ReleasedProgram, placed: Mapping[str, Path], *, moment: int) -> bytes:
    """Packs the files reproducibly."""
    members = {f"lib/{name}": path.read_bytes() for name, path in placed.items()}
    members.update({name: path.read_bytes() for name, path in program.beside.items()})
    members["LICENSE"] = (HOME / "LICENSE").read_bytes()
    command = f"bin/{program.name}"
    members[command] = program.launcher().encode()
    total = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=total, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(members):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(members[name]), moment
            member.mode = 0o755 if name == command else 0o644
            archive.addfile(member, io.BytesIO(members[name]))
    return total.getvalue()
