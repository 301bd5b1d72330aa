"""Builds the tree that the artifact mirror serves: `<host>/<path…>`, with the publishers' layout.

The tree is built once from the cached tools, keyed by its content. Programs are hard links: never write to the tree.
Tarballs are reproducible.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_lab import processes
from aks_flex_lab.errors import ToolError
from aks_flex_lab.files import file_lock
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter
from aks_flex_lab.tools.catalog import NODE_COMMANDS
from aks_flex_lab.tools.recipes import Checksum, GoTool
from aks_flex_lab.tools.tool_store import file_hash, reclaimable_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_lab.tools.recipes import ReleaseFile
    from aks_flex_lab.tools.tool_store import ToolDirectory
    from aks_flex_lab.tools.toolbox import Toolbox


Compress: TypeAlias = Callable[[Path, Path], None]  # compresses a file into a new one
COMPRESSION_LEVEL = 6  # similar to the publishers' files; higher levels take minutes and save little


@dataclass(frozen=True, order=True)
class ArchiveMember:
    name: str  # path in the archive as its publisher writes it, with or without a leading `./`
    source: Path


def make_archive(members: Iterable[ArchiveMember], path: Path, compress: Compress) -> None:
    """Writes a compressed tarball, and renames it to its final name when it is complete."""
    plain = path.with_name(f".{path.name}.tar")
    done = path.with_name(f".{path.name}.gz")
    write_tar(sorted(members), plain)
    compress(plain, done)
    plain.unlink()
    done.rename(path)


def write_tar(members: list[ArchiveMember], path: Path) -> None:
    folders: dict[str, None] = {}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            for folder in reversed(PurePosixPath(member.name).parents):
                if folder.parts and str(folder) not in folders:
                    folders[str(folder)] = None
                    archive.addfile(tar_entry(str(folder), tarfile.DIRTYPE, 0o755))
            executable = member.source.stat().st_mode & 0o100
            info = tar_entry(member.name, tarfile.REGTYPE, 0o755 if executable else 0o644)
            info.size = member.source.stat().st_size
            with member.source.open("rb") as content:
                archive.addfile(info, content)


def tar_entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    """Returns a reproducible tar entry: owned by root, with time 0."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, 0
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def best_compress() -> Compress:
    """Returns the compressor: pigz, which uses all cores, or else Python's gzip."""
    return pigz if shutil.which("pigz") else python_gzip


def pigz(plain: Path, done: Path) -> None:
    """Compresses with pigz and a fixed number of threads, because the output depends on it."""
    processes.run(
        "pigz", "--no-name", "--keep", "--force", f"-{COMPRESSION_LEVEL}", "--processes", "4", plain, timeout=600
    )
    plain.with_name(f"{plain.name}.gz").rename(done)


def python_gzip(plain: Path, done: Path) -> None:
    with (
        plain.open("rb") as source,
        done.open("wb") as out,
        gzip.GzipFile("", "wb", COMPRESSION_LEVEL, out, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)


LAYOUT_VERSION = 1  # increase it when the layout changes
NODE_TARBALL_MIRRORS = ("acs-mirror.azureedge.net", "packages.aks.azure.com")


def artifact_tree(
    toolbox: Toolbox, progress: ProgressReporter = NO_PROGRESS, compress: Compress | None = None
) -> Path:
    """Returns the tree of all release files; builds it if it does not exist.

    A tree with tools on demand starts from the links of the tree without them, because packing takes minutes.
    """
    directories = published_tools(toolbox)
    base = artifact_tree(replace(toolbox, on_demand=()), progress, compress) if toolbox.on_demand else None

    def fill(tree: ArtifactTree) -> None:
        if base:
            shutil.copytree(base, tree.root, copy_function=os.link, symlinks=True)
            publish_programs(tree, [directory for directory in directories if directory.tool.on_demand])
        else:
            fill_tree(tree, directories)

    return build_tree(toolbox.cache / "artifacts" / tree_key(directories), "artifacts", fill, progress, compress)


def foreign_tree(
    toolbox: Toolbox, base: Path, progress: ProgressReporter = NO_PROGRESS, compress: Compress | None = None
) -> Path:
    """Returns the tree of the release files of another architecture; builds it if it does not exist.

    The mirror serves it above the tree of the host's architecture, whose checksum files it extends. It has no node
    tarballs.
    """
    directories = published_tools(toolbox)
    key = hashlib.sha256(f"{base.name}\n{tree_key(directories)}\n".encode()).hexdigest()[:12]

    def fill(tree: ArtifactTree) -> None:
        files = [(directory, file) for directory in directories for file in directory.tool.release_for(toolbox.arch)]
        for url in dict.fromkeys(checksum.url for _, file in files for checksum in file.checksums):
            if (base / url).is_file():
                tree.write(url, (base / url).read_text())
        publish_programs(tree, directories)

    return build_tree(toolbox.cache / "artifacts" / key, f"artifacts {toolbox.arch}", fill, progress, compress)


def build_tree(
    target: Path,
    title: str,
    fill: Callable[[ArtifactTree], None],
    progress: ProgressReporter,
    compress: Compress | None,
) -> Path:
    """Fills a tree under a temporary name and renames it, unless it exists."""
    if target.exists():
        return target
    tree = ArtifactTree(target.with_name(f".{target.name}.partial"), compress or best_compress())
    start = time.monotonic()
    with (
        progress.task(title, lambda: tree.progress_text),
        file_lock(target.parent / ".lock", "the artifacts", wait=True),
    ):
        if not target.exists():
            shutil.rmtree(tree.root, ignore_errors=True)
            fill(tree)
            os.sync()
            tree.root.rename(target)
    progress.finished(title, "packed", time.monotonic() - start)
    return target


def published_tools(toolbox: Toolbox) -> list[ToolDirectory]:
    """Returns the tools that have published releases, and of those on demand the ones that this toolbox demands."""
    released = [tool for tool in toolbox.tools if isinstance(tool, GoTool) and tool.release]
    wanted = [tool for tool in released if not tool.on_demand or tool.selector in toolbox.on_demand]
    return [toolbox.tool_directory(tool) for tool in wanted]


def tree_key(directories: list[ToolDirectory]) -> str:
    digest = hashlib.sha256(f"{LAYOUT_VERSION}\n".encode())
    for directory in directories:
        manifest = directory.manifest()
        if manifest is None:
            raise ToolError(
                "tool-missing", f"{directory.tool.title} is not installed.", "Run `aks-flex-lab tools install`."
            )
        digest.update(f"{directory.path.name}\n".encode())
        digest.update("".join(f"{file.sha256} {file.path}\n" for file in manifest.files).encode())
    return digest.hexdigest()[:12]


@dataclass
class ArtifactTree:
    """A tree under construction."""

    root: Path
    compress: Compress
    progress_text: str = ""

    def at(self, url: str) -> Path:
        path = self.root / url
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def archive(self, members: list[ArchiveMember], url: str) -> None:
        self.progress_text = f"packing {url.rsplit('/', 1)[1]}"
        make_archive(members, self.at(url), self.compress)

    def link(self, source: Path, url: str) -> None:
        """Links a file to another name; copies it if the file system does not support hard links."""
        try:
            os.link(source, self.at(url))
        except OSError:
            shutil.copy2(source, self.at(url))

    def write(self, url: str, text: str) -> None:
        """Appends to a file, because a checksum file can list several files."""
        with self.at(url).open("a") as file:
            file.write(text)

    def checksum(self, url: str, checksum: Checksum) -> None:
        path = self.at(url)
        value = file_hash(path, checksum.algorithm)
        self.write(checksum.url, f"{value}  {path.name}\n" if checksum.named else value)


def fill_tree(tree: ArtifactTree, directories: list[ToolDirectory]) -> None:
    for directory in directories:
        for file in directory.tool.release_for(directory.arch):
            publish_file(tree, directory, file)
    kubernetes = [directory for directory in directories if directory.tool.name == "kubernetes"]
    for directory in kubernetes:
        publish_node_tarball(tree, directory)
        link_below_release(tree, directory.tool.version)
    write_stable_files(tree, [directory.tool.version for directory in kubernetes])


def publish_programs(tree: ArtifactTree, directories: list[ToolDirectory]) -> None:
    """Adds the release files of tools, but no node tarball: packing it takes long, and few nodes use it."""
    for directory in directories:
        for file in directory.tool.release_for(directory.arch):
            publish_file(tree, directory, file)


def publish_file(tree: ArtifactTree, directory: ToolDirectory, file: ReleaseFile) -> None:
    """Adds a release file and its checksum files."""
    if file.inside is None:
        tree.link(directory.command(file.commands[0]), file.url)
    else:
        tree.archive(archive_members(directory, file), file.url)
    for checksum in file.checksums:
        tree.checksum(file.url, checksum)


def archive_members(directory: ToolDirectory, file: ReleaseFile) -> list[ArchiveMember]:
    commands = [ArchiveMember(f"{file.inside}/{name}", directory.command(name)) for name in file.commands]
    below = [path for folder in file.folders for path in (directory.path / folder).rglob("*") if path.is_file()]
    return commands + [ArchiveMember(str(path.relative_to(directory.path)), path) for path in below]


def publish_node_tarball(tree: ArtifactTree, directory: ToolDirectory) -> None:
    """Adds the node tarball of Kubernetes, which Azure's mirrors also serve."""
    name = f"kubernetes-node-linux-{directory.arch}.tar.gz"
    url = f"dl.k8s.io/v{directory.tool.version}/{name}"
    commands = [
        ArchiveMember(f"kubernetes/node/bin/{command}", directory.command(command)) for command in NODE_COMMANDS
    ]
    tree.archive(commands, url)
    for algorithm in ("sha256", "sha512"):
        tree.checksum(url, Checksum(f"{url}.{algorithm}", algorithm, named=False))
    for mirror in NODE_TARBALL_MIRRORS:
        tree.link(tree.at(url), f"{mirror}/kubernetes/v{directory.tool.version}/binaries/{name}")


def link_below_release(tree: ArtifactTree, version: str) -> None:
    """Links the files below `/release/v1.…`, because dl.k8s.io serves both `/v1.…` and `/release/v1.…`."""
    root = tree.root / "dl.k8s.io"
    for file in sorted(path for path in (root / f"v{version}").rglob("*") if path.is_file()):
        tree.link(file, f"dl.k8s.io/release/{file.relative_to(root)}")


def write_stable_files(tree: ArtifactTree, versions: list[str]) -> None:
    """Writes the files that contain the newest version, of all versions and of each minor version."""
    newest_first = sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    named: dict[str, str] = {}
    for version in newest_first:
        major, minor, _ = version.split(".")
        for name in ("stable", f"stable-{major}", f"stable-{major}.{minor}"):
            named.setdefault(name, version)
    for name, version in named.items():
        tree.write(f"dl.k8s.io/release/{name}.txt", f"v{version}")


def clean_artifacts(toolbox: Toolbox) -> int:
    """Removes all trees except the one of the current tools; returns the freed bytes."""
    root = toolbox.cache / "artifacts"
    directories = published_tools(toolbox)
    keep = root / tree_key(directories) if all(directory.manifest() for directory in directories) else None
    freed = 0
    with file_lock(root / ".lock", "the artifacts"):
        for folder in sorted(path for path in root.iterdir() if path.is_dir() and path != keep):
            freed += reclaimable_bytes(folder)
            shutil.rmtree(folder)
    return freed
