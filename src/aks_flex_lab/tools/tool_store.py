"""The store of installed tools: one directory for each tool, keyed by version, architecture and recipe.

A tool is built in a temporary directory and renamed together with its manifest, so that it is never incomplete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aks_flex_lab.tools.recipes import machine_arch

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.tools.recipes import GoTool

MANIFEST_NAME = "manifest.json"
STORE_FORMAT = 1  # increase it when the result of the same recipe changes


@dataclass(frozen=True)
class ManifestFile:
    path: str  # relative to the directory of the tool
    size: int
    sha256: str


@dataclass(frozen=True)
class ToolManifest:
    """The files of an installed tool, and their source."""

    name: str
    version: str
    arch: str
    source: str  # release or build
    files: tuple[ManifestFile, ...]


@dataclass(frozen=True)
class ToolDirectory:
    """The directory of one tool for one architecture."""

    root: Path
    tool: GoTool
    arch: str

    @property
    def path(self) -> Path:
        return self.root / f"{self.tool.name}-{self.tool.version}-{self.arch}-{recipe_key(self.tool, self.arch)}"

    @property
    def title(self) -> str:
        """The tool, and its architecture if the host has another."""
        return self.tool.title if self.arch == machine_arch() else f"{self.tool.title} {self.arch}"

    def build_directory(self, source: str) -> Path:
        """Returns the temporary directory for a source; a build does not reuse an incomplete download."""
        return self.path.with_name(f".{self.path.name}.{source}")

    @property
    def downloads(self) -> Path:
        return self.build_directory("downloads")

    def command(self, name: str) -> Path:
        return self.path / name

    def manifest(self) -> ToolManifest | None:
        """Returns the manifest; None when the tool is not installed, or when a file has changed."""
        try:
            manifest = read_manifest(self.path / MANIFEST_NAME)
            whole = all((self.path / file.path).stat().st_size == file.size for file in manifest.files)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return manifest if whole else None

    @property
    def ready(self) -> bool:
        return self.manifest() is not None

    def commit(self, source: str) -> None:
        """Renames the temporary directory to the directory of the tool."""
        bench = self.build_directory(source)
        files = tuple(manifest_files(bench))
        manifest = ToolManifest(self.tool.name, self.tool.version, self.arch, source, files)
        (bench / MANIFEST_NAME).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
        os.sync()  # so that files are not empty after a power loss
        shutil.rmtree(self.path, ignore_errors=True)
        bench.rename(self.path)
        for leftover in self.root.glob(f".{self.path.name}.*"):
            shutil.rmtree(leftover)


def recipe_key(tool: GoTool, arch: str) -> str:
    """Returns twelve hexadecimal digits that change with the sources and recipe of the tool."""
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


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
