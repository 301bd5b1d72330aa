"""Builds the tree that the artifact mirror serves: `<host>/<path…>`, with the publishers' layout.

All labs serve the same tree, which grows: the release files of a tool are added once, after its installation.
Programs are hard links to the cached tools, so that a file of the tree is replaced and never written to. Tarballs
are reproducible.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from aks_flex_lab import processes
from aks_flex_lab.files import file_lock
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter
from aks_flex_lab.tools.catalog import AGENT_COMMANDS, KUBE_PROXY
from aks_flex_lab.tools.recipes import Checksum, GoTool
from aks_flex_lab.tools.tool_store import file_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

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


LAYOUT_VERSION = 2  # increase it when the layout changes
NODE_TARBALL_MIRRORS = ("acs-mirror.azureedge.net", "packages.aks.azure.com")


@dataclass(frozen=True)
class Publication:
    """An installed tool whose release files the mirror serves."""

    directory: ToolDirectory
    kubernetes: ToolDirectory | None  # kube-proxy is the last program of the node tarball, which has these others
    record: Path  # contains the key of the files that the tree has

    @property
    def key(self) -> str:
        digest = hashlib.sha256(f"{LAYOUT_VERSION}\n".encode())
        for directory in (self.directory, self.kubernetes):
            if directory and (manifest := directory.manifest()):
                digest.update(f"{directory.path.name}\n".encode())
                digest.update("".join(f"{file.sha256} {file.path}\n" for file in manifest.files).encode())
        return digest.hexdigest()

    @property
    def is_current(self) -> bool:
        return self.record.exists() and self.record.read_text() == self.key


def publications(toolbox: Toolbox) -> list[Publication]:
    """Returns the installed tools that have releases."""
    found = []
    for tool in toolbox.tools:
        if not isinstance(tool, GoTool) or not tool.release or not toolbox.tool_directory(tool).ready:
            continue
        beside = None
        if tool.name == KUBE_PROXY:
            beside = next(
                toolbox.tool_directory(other)
                for other in toolbox.tools
                if isinstance(other, GoTool) and (other.name, other.version) == ("kubernetes", tool.version)
            )
            if not beside.ready:
                continue
        record = records(toolbox) / f"{tool.name}-{tool.version}-{toolbox.arch}"
        found.append(Publication(toolbox.tool_directory(tool), beside, record))
    return found


def records(toolbox: Toolbox) -> Path:
    return toolbox.cache / "artifacts" / "published"


def artifact_tree(
    toolbox: Toolbox, progress: ProgressReporter = NO_PROGRESS, compress: Compress | None = None
) -> Path:
    """Returns the tree of release files; adds those of installed tools that it does not have."""
    tree = ArtifactTree(
        toolbox.cache / "artifacts" / "tree", compress or (pigz if shutil.which("pigz") else python_gzip)
    )
    if tree.root.exists() and all(each.is_current for each in publications(toolbox)):
        return tree.root
    start = time.monotonic()
    with (
        progress.task("artifacts", lambda: tree.progress_text),
        file_lock(toolbox.cache / "artifacts" / ".lock", "the artifacts", wait=True),
    ):
        if not tree.root.exists():
            shutil.rmtree(records(toolbox), ignore_errors=True)
            tree.root.mkdir()
        records(toolbox).mkdir(exist_ok=True)
        for each in publications(toolbox):
            if not each.is_current:  # Another lab may have added it.
                publish(tree, each)
                os.sync()
                each.record.write_text(each.key)
        write_stable_files(tree, {path.name.split("-")[1] for path in records(toolbox).glob("kubernetes-*")})
    progress.finished("artifacts", "packed", time.monotonic() - start)
    return tree.root


@dataclass
class ArtifactTree:
    """The tree, while files are added."""

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
        """Links a file to a name in place of what it had; copies it if the file system has no hard links."""
        path = self.at(url)
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        try:
            os.link(source, new)
        except OSError:
            shutil.copy2(source, new)
        new.replace(path)
        new.unlink(missing_ok=True)  # it remains if the name was a link to the same file

    def write(self, url: str, text: str) -> None:
        path = self.at(url)
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        new.write_text(text)
        new.replace(path)

    def checksum(self, url: str, checksum: Checksum) -> None:
        """Writes the checksum of a file; a checksum file with names keeps the lines of other files."""
        path, sums = self.at(url), self.at(checksum.url)
        text = file_hash(path, checksum.algorithm)
        if checksum.named:
            lines = sums.read_text().splitlines(keepends=True) if sums.exists() else []
            others = [line for line in lines if line.split()[1] != path.name]
            text = "".join([*others, f"{text}  {path.name}\n"])
        self.write(checksum.url, text)


def publish(tree: ArtifactTree, publication: Publication) -> None:
    """Adds the release files of a tool and their checksum files."""
    directory = publication.directory
    for file in directory.tool.release_for(directory.arch):
        if file.inside is None:
            tree.link(directory.command(file.commands[0]), file.url)
        else:
            commands = [ArchiveMember(f"{file.inside}/{name}", directory.command(name)) for name in file.commands]
            below = [
                path for folder in file.folders for path in (directory.path / folder).rglob("*") if path.is_file()
            ]
            tree.archive(
                (commands + [ArchiveMember(str(path.relative_to(directory.path)), path) for path in below]), file.url
            )
        add_checksums(tree, file.url, file.checksums)
    if publication.kubernetes:
        publish_node_tarball(tree, directory, publication.kubernetes)


def add_checksums(tree: ArtifactTree, url: str, checksums: Iterable[Checksum]) -> None:
    """Adds the checksum files of a file. dl.k8s.io serves all files both below `/v1.…` and `/release/v1.…`."""
    for checksum in checksums:
        tree.checksum(url, checksum)
    host, _, path = url.partition("/")
    if host == "dl.k8s.io":
        for name in (path, *(checksum.url.removeprefix(f"{host}/") for checksum in checksums)):
            tree.link(tree.at(f"{host}/{name}"), f"{host}/release/{name}")


def publish_node_tarball(tree: ArtifactTree, proxy: ToolDirectory, kubernetes: ToolDirectory) -> None:
    """Adds the node tarball of Kubernetes, which Azure's mirrors also serve."""
    version, name = proxy.tool.version, f"kubernetes-node-linux-{proxy.arch}.tar.gz"
    url = f"dl.k8s.io/v{version}/{name}"
    programs = [proxy.command(KUBE_PROXY), *map(kubernetes.command, AGENT_COMMANDS)]
    tree.archive([ArchiveMember(f"kubernetes/node/bin/{program.name}", program) for program in programs], url)
    sums = [Checksum(f"{url}.{algorithm}", algorithm, named=False) for algorithm in ("sha256", "sha512")]
    add_checksums(tree, url, sums)
    for mirror in NODE_TARBALL_MIRRORS:
        tree.link(tree.at(url), f"{mirror}/kubernetes/v{version}/binaries/{name}")


def write_stable_files(tree: ArtifactTree, versions: Iterable[str]) -> None:
    """Writes the files that contain the newest version, of all versions and of each minor version."""
    newest_first = sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    named: dict[str, str] = {}
    for version in newest_first:
        major, minor, _ = version.split(".")
        for name in ("stable", f"stable-{major}", f"stable-{major}.{minor}"):
            named.setdefault(name, version)
    for name, version in named.items():
        tree.write(f"dl.k8s.io/release/{name}.txt", f"v{version}")


def clean_artifacts(*toolboxes: Toolbox) -> bool:
    """Removes the tree if it has files of tools that are not those of the toolboxes; returns whether it did."""
    current = {each.record for box in toolboxes for each in publications(box) if each.is_current}
    root = toolboxes[0].cache / "artifacts"
    with file_lock(root / ".lock", "the artifacts"):
        if set(records(toolboxes[0]).glob("*")) <= current:
            return False
        for folder in [path for path in root.iterdir() if path.is_dir()]:
            shutil.rmtree(folder)
    return True
