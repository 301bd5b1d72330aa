"""The store of finished tools: one directory a tool, keyed by version, architecture and recipe.

A tool is built beside its directory and renamed into place with its manifest, so readers see all of it or none.
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

    from aks_flex_lab.tools.recipes import GoTool

MANIFEST_NAME = "manifest.json"
STORE_FORMAT = 1  # raise it when the same recipe would be made into something else


@dataclass(frozen=True)
class ManifestFile:
    path: str  # below the tool's folder
    size: int
    sha256: str


@dataclass(frozen=True)
class ToolManifest:
    """What stands on a shelf, and how it came there."""

    name: str
    version: str
    arch: str
    source: str  # release or build
    seconds: float
    files: tuple[ManifestFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class ToolDirectory:
    """The place of one tool for one architecture."""

    root: Path
    tool: GoTool
    arch: str

    @property
    def path(self) -> Path:
        return self.root / f"{self.tool.name}-{self.tool.version}-{self.arch}-{recipe_key(self.tool, self.arch)}"

    def build_directory(self, source: str) -> Path:
        """Where the tool is made; a build does not go on from half a download."""
        return self.path.with_name(f".{self.path.name}.{source}")

    @property
    def downloads(self) -> Path:
        return self.build_directory("downloads")

    def command(self, name: str) -> Path:
        return self.path / name

    def manifest(self) -> ToolManifest | None:
        """What the shelf holds; None when it is empty, or when a file is no longer as it was put there."""
        try:
            manifest = read_manifest(self.path / MANIFEST_NAME)
            whole = all((self.path / file.path).stat().st_size == file.size for file in manifest.files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return manifest if whole else None

    @property
    def ready(self) -> bool:
        return self.manifest() is not None

    def commit(self, source: str, seconds: float) -> ToolManifest:
        """Move what is on the workbench to its place."""
        bench = self.build_directory(source)
        files = tuple(manifest_files(bench))
        manifest = ToolManifest(self.tool.name, self.tool.version, self.arch, source, round(seconds, 1), files)
        (bench / MANIFEST_NAME).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
        os.sync()  # a power cut right after the rename must not find empty files
        shutil.rmtree(self.path, ignore_errors=True)
        bench.rename(self.path)
        for leftover in self.root.glob(f".{self.path.name}.*"):
            shutil.rmtree(leftover)
        return manifest


def recipe_key(tool: GoTool, arch: str) -> str:
    """Twelve digits that change when anything changes that the tool is made from."""
    recipe = tool.recipe
    digest = hashlib.sha256()
    made_from = (tool.title, arch, tool.commands, tool.release_for(arch))
    made_how = (STORE_FORMAT, recipe.ldflags, recipe.tags, recipe.cgo, recipe.folders)
    digest.update(repr((made_from, made_how)).encode() + b"\0")
    for file in sorted(recipe.directory.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def read_manifest(path: Path) -> ToolManifest:
    data = json.loads(path.read_text())
    return ToolManifest(**{**data, "files": tuple(ManifestFile(**file) for file in data["files"])})


def manifest_files(directory: Path) -> list[ManifestFile]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    return [ManifestFile(str(path.relative_to(directory)), path.stat().st_size, file_hash(path)) for path in paths]


def reclaimable_bytes(folder: Path) -> int:
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
