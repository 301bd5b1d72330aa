"""The tree that the artifact mirror serves: `<host>/<path…>`, as the publishers lay out their own files.

It is made once from the tools in the cache, under a key of everything that is in it. Programs are hard links, so the
tree costs little more than its tarballs; whoever serves it must never write to it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab.errors import ToolError
from aks_flex_node.lab.files import locked
from aks_flex_node.lab.progress import SILENCE, Progress
from aks_flex_node.lab.tools.archives import Compress, Member, best_compress, make_archive
from aks_flex_node.lab.tools.catalog import NODE_COMMANDS
from aks_flex_node.lab.tools.recipes import Checksum, Tool
from aks_flex_node.lab.tools.shelves import bytes_freed_by_removing, file_hash

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.tools.recipes import ReleaseFile
    from aks_flex_node.lab.tools.shelves import Shelf
    from aks_flex_node.lab.tools.toolbox import Toolbox

LAYOUT = 1  # raise it when the same tools would be laid out otherwise
NODE_TARBALL_MIRRORS = ("acs-mirror.azureedge.net", "packages.aks.azure.com")


def artifact_tree(toolbox: Toolbox, progress: Progress = SILENCE, compress: Compress | None = None) -> Path:
    """The tree of all release files, made when it is not there yet."""
    shelves = published(toolbox)
    root = toolbox.cache / "artifacts"
    place = root / tree_key(shelves)
    if place.exists():
        return place
    tree = Tree(root / f".{place.name}.partial", compress or best_compress())
    start = time.monotonic()
    with progress.working("artifacts", lambda: tree.doing), locked(root / ".lock", "the artifacts", wait=True):
        if not place.exists():
            shutil.rmtree(tree.root, ignore_errors=True)
            fill(tree, shelves)
            os.sync()
            tree.root.rename(place)
    progress.done("artifacts", "packed", time.monotonic() - start)
    return place


def published(toolbox: Toolbox) -> list[Shelf]:
    """The tools that have a publisher."""
    return [toolbox.shelf(tool) for tool in toolbox.tools if isinstance(tool, Tool) and tool.release]


def tree_key(shelves: list[Shelf]) -> str:
    digest = hashlib.sha256(f"{LAYOUT}\n".encode())
    for shelf in shelves:
        manifest = shelf.manifest()
        if manifest is None:
            raise ToolError("tool-missing", f"{shelf.tool.title} is not there.", "Run `aks-flex-lab tools install`.")
        digest.update(f"{shelf.place.name}\n".encode())
        digest.update("".join(f"{file.sha256} {file.path}\n" for file in manifest.files).encode())
    return digest.hexdigest()[:12]


@dataclass
class Tree:
    """A tree in the making."""

    root: Path
    compress: Compress
    doing: str = ""

    def at(self, url: str) -> Path:
        path = self.root / url
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def archive(self, members: list[Member], url: str) -> None:
        self.doing = f"packing {url.rsplit('/', 1)[1]}"
        make_archive(members, self.at(url), self.compress)

    def link(self, source: Path, url: str) -> None:
        """The same file under another name; a copy where the disk knows no links."""
        try:
            os.link(source, self.at(url))
        except OSError:
            shutil.copy2(source, self.at(url))

    def write(self, url: str, text: str) -> None:
        """Add to a file: one checksum file may speak of several."""
        with self.at(url).open("a") as file:
            file.write(text)

    def checksum(self, url: str, checksum: Checksum) -> None:
        path = self.at(url)
        value = file_hash(path, checksum.algorithm)
        self.write(checksum.url, f"{value}  {path.name}\n" if checksum.named else value)


def fill(tree: Tree, shelves: list[Shelf]) -> None:
    for shelf in shelves:
        for file in shelf.tool.release_for(shelf.arch):
            publish(tree, shelf, file)
    kubernetes = [shelf for shelf in shelves if shelf.tool.name == "kubernetes"]
    for shelf in kubernetes:
        publish_node_tarball(tree, shelf)
        link_below_release(tree, shelf.tool.version)
    announce_stable(tree, [shelf.tool.version for shelf in kubernetes])


def publish(tree: Tree, shelf: Shelf, file: ReleaseFile) -> None:
    """One release file with its checksum files."""
    if file.inside is None:
        tree.link(shelf.command(file.commands[0]), file.url)
    else:
        tree.archive(members(shelf, file), file.url)
    for checksum in file.checksums:
        tree.checksum(file.url, checksum)


def members(shelf: Shelf, file: ReleaseFile) -> list[Member]:
    commands = [Member(f"{file.inside}/{name}", shelf.command(name)) for name in file.commands]
    below = [path for folder in file.folders for path in (shelf.place / folder).rglob("*") if path.is_file()]
    return commands + [Member(str(path.relative_to(shelf.place)), path) for path in below]


def publish_node_tarball(tree: Tree, shelf: Shelf) -> None:
    """What Kubernetes publishes for nodes, and Azure's mirrors carry on."""
    name = f"kubernetes-node-linux-{shelf.arch}.tar.gz"
    url = f"dl.k8s.io/v{shelf.tool.version}/{name}"
    commands = [Member(f"kubernetes/node/bin/{command}", shelf.command(command)) for command in NODE_COMMANDS]
    tree.archive(commands, url)
    for algorithm in ("sha256", "sha512"):
        tree.checksum(url, Checksum(f"{url}.{algorithm}", algorithm, named=False))
    for mirror in NODE_TARBALL_MIRRORS:
        tree.link(tree.at(url), f"{mirror}/kubernetes/v{shelf.tool.version}/binaries/{name}")


def link_below_release(tree: Tree, version: str) -> None:
    """dl.k8s.io answers at `/v1.…` and at `/release/v1.…`."""
    root = tree.root / "dl.k8s.io"
    for file in sorted(path for path in (root / f"v{version}").rglob("*") if path.is_file()):
        tree.link(file, f"dl.k8s.io/release/{file.relative_to(root)}")


def announce_stable(tree: Tree, versions: list[str]) -> None:
    """The small files that name the newest version, of all and of each minor."""
    newest_first = sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    named: dict[str, str] = {}
    for version in newest_first:
        major, minor, _ = version.split(".")
        for name in ("stable", f"stable-{major}", f"stable-{major}.{minor}"):
            named.setdefault(name, version)
    for name, version in named.items():
        tree.write(f"dl.k8s.io/release/{name}.txt", f"v{version}")


def clean(toolbox: Toolbox) -> int:
    """Remove every tree but the one that the present tools make, and say how many bytes that was."""
    root = toolbox.cache / "artifacts"
    shelves = published(toolbox)
    keep = root / tree_key(shelves) if all(shelf.manifest() for shelf in shelves) else None
    freed = 0
    with locked(root / ".lock", "the artifacts"):
        for folder in sorted(path for path in root.iterdir() if path.is_dir() and path != keep):
            freed += bytes_freed_by_removing(folder)
            shutil.rmtree(folder)
    return freed
