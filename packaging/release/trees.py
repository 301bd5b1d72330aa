"""What a program needs, for every Python of the supported systems at once, in one tree.

Most of it is the same for all of them, and compiled modules carry their Python in their names; so it goes together
into `lib/`. Only what differs for a Python under the same name goes into `lib/python3.X/`, which comes first.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from aks_flex_node.lab.processes import run
from deb.wheels import PYTHONS

# What glibc the oldest of the supported systems has is newer than this.
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
# Notes of the installer about itself, which differ for no reason, and programs that belong to other packages.
NOTES = {"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "uv_cache.json", "direct_url.json"}


@dataclass(frozen=True)
class Tree:
    """The packages for one Python, as installed."""

    python: str
    folder: Path

    def files(self) -> dict[str, Path]:
        found = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: path for name, path in found.items() if _belongs(Path(name))}


def _belongs(name: Path) -> bool:
    note = name.parent.name.endswith(".dist-info") and name.name in NOTES
    return not note and name.parts[0] != "bin" and "__pycache__" not in name.parts and name.name != ".lock"


def fetched(requirements: Path, arch: str, work: Path) -> list[Tree]:
    """The pinned packages for each Python, checked by their hashes, whatever this machine's own Python is."""
    uv = Path(sys.executable).parent / "uv"
    words = ["--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy"]
    trees = [Tree(python, work / f"{arch}-{python}") for python in PYTHONS]
    for tree in trees:
        place = ["--target", str(tree.folder), "--python-version", tree.python, "--python-platform", PLATFORMS[arch]]
        run(uv, "pip", "install", *words, *place, "-r", requirements, timeout=600)
    return trees


def merged(trees: list[Tree]) -> dict[str, Path]:
    """One layout for all: names below `lib/`, and the files to put there."""
    by_root: dict[str, dict[str, dict[str, Path]]] = defaultdict(lambda: defaultdict(dict))
    for tree in trees:
        for name, path in tree.files().items():
            by_root[Path(name).parts[0]][tree.python][name] = path
    placed: dict[str, Path] = {}
    for wanted in by_root.values():
        # What some Pythons lack is not for them, either.
        placed.update(_shared(wanted) if len(wanted) == len(trees) else _apart(wanted))
    return placed


def _shared(wanted: dict[str, dict[str, Path]]) -> dict[str, Path]:
    """One package, in common from the newest Python down; one that wants other bytes under a name has it apart.

    Whole, because a package cannot be had from two places at once. Its own folder is looked into first.
    """
    common: dict[str, Path] = {}
    apart: dict[str, dict[str, Path]] = {}
    for python, files in reversed(wanted.items()):
        if all(common[name].read_bytes() == path.read_bytes() for name, path in files.items() if name in common):
            common.update(files)
        else:
            apart[python] = files
    return common | _apart(apart)


def _apart(wanted: dict[str, dict[str, Path]]) -> dict[str, Path]:
    return {f"python{python}/{name}": path for python, files in wanted.items() for name, path in files.items()}


def own_sources(package: Path, left_out: set[str]) -> dict[str, Path]:
    """Our own package, without the rooms that this program has no use for."""
    files = {path.relative_to(package): path for path in sorted(package.rglob("*")) if path.is_file()}
    apart = left_out | {"__pycache__"}
    return {f"aks_flex_node/{name}": path for name, path in files.items() if not apart & set(name.parts)}
