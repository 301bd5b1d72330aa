"""Where finished tools stand: one folder a tool, named by version, architecture and recipe.

A tool is made in a folder beside its place and moved there by one rename when it is whole and its manifest is in it,
so whoever looks sees all of a tool or none of it. The folder it is made in keeps its name and its files when the
making is interrupted: the next try goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.tools.recipes import Tool

MANIFEST = "manifest.json"
FORMAT = 1  # raise it when the same recipe would be made into something else


@dataclass(frozen=True)
class File:
    path: str  # below the tool's folder
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What stands on a shelf, and how it came there."""

    name: str
    version: str
    arch: str
    source: str  # release or build
    seconds: float
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Shelf:
    """The place of one tool for one architecture."""

    root: Path
    tool: Tool
    arch: str

    @property
    def place(self) -> Path:
        return self.root / f"{self.tool.name}-{self.tool.version}-{self.arch}-{key(self.tool, self.arch)}"

    def workbench(self, source: str) -> Path:
        """Where the tool is made; a build does not go on from half a download."""
        return self.place.with_name(f".{self.place.name}.{source}")

    @property
    def downloads(self) -> Path:
        return self.workbench("downloads")

    def command(self, name: str) -> Path:
        return self.place / name

    def manifest(self) -> Manifest | None:
        """What the shelf holds; None when it is empty, or when a file is no longer as it was put there."""
        try:
            manifest = read_manifest(self.place / MANIFEST)
            whole = all((self.place / file.path).stat().st_size == file.size for file in manifest.files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return manifest if whole else None

    @property
    def ready(self) -> bool:
        return self.manifest() is not None

    def put(self, source: str, seconds: float) -> Manifest:
        """Move what is on the workbench to its place."""
        bench = self.workbench(source)
        files = tuple(files_below(bench))
        manifest = Manifest(self.tool.name, self.tool.version, self.arch, source, round(seconds, 1), files)
        (bench / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
        os.sync()  # a power cut right after the rename must not find empty files
        shutil.rmtree(self.place, ignore_errors=True)
        bench.rename(self.place)
        for leftover in self.root.glob(f".{self.place.name}.*"):
            shutil.rmtree(leftover)
        return manifest


def key(tool: Tool, arch: str) -> str:
    """Twelve digits that change when anything changes that the tool is made from."""
    recipe = tool.recipe
    digest = hashlib.sha256()
    made_from = (tool.title, arch, tool.commands, tool.release_for(arch))
    made_how = (FORMAT, recipe.ldflags, recipe.tags, recipe.cgo, recipe.folders)
    digest.update(repr((made_from, made_how)).encode() + b"\0")
    for file in sorted(recipe.directory.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def read_manifest(path: Path) -> Manifest:
    data = json.loads(path.read_text())
    return Manifest(**{**data, "files": tuple(File(**file) for file in data["files"])})


def files_below(directory: Path) -> list[File]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST)
    return [File(str(path.relative_to(directory)), path.stat().st_size, file_hash(path)) for path in paths]


def bytes_freed_by_removing(folder: Path) -> int:
    """What the files take up that have no other name elsewhere."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    names_here = Counter(file.st_ino for file in files)
    sizes = {file.st_ino: file.st_size for file in files if names_here[file.st_ino] == file.st_nlink}
    return sum(sizes.values())


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
