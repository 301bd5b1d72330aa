"""Offline bundles: a directory or a tar with artifacts by their hashes, and a manifest that says which they are.

    manifest.json                    format, architecture, artifacts
    <algorithm>-<hash>/<file name>   as in the cache

A directory and a plain tar are read where they are; a compressed tar is taken into the cache once, as a whole.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.caches import PARTIAL, Blob, Cache
from aks_flex_node.agent.artifacts.digests import Digest, hash_file
from aks_flex_node.agent.artifacts.downloads import write_all
from aks_flex_node.agent.artifacts.inflating import MAGIC, Broken, Hostile, Inflated
from aks_flex_node.agent.artifacts.members import members
from aks_flex_node.agent.artifacts.sources import identity, without_secrets
from aks_flex_node.agent.artifacts.space import room_for
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.artifacts.trees import Artifact

FORMAT = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 20


@dataclass(frozen=True)
class BundleEntry:
    component: str
    version: str
    url: str
    digest: str
    file: str  # its path in the bundle
    size: int


@dataclass(frozen=True)
class BundleManifest:
    arch: str
    artifacts: tuple[BundleEntry, ...]
    format: int = FORMAT

    def wire(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def parse(cls, text: str | bytes) -> BundleManifest:
        """Raises ValueError, KeyError or TypeError when it makes no sense."""
        wire: Mapping[str, Any] = json.loads(text)
        if wire["format"] != FORMAT:
            raise ValueError(f"its format is {wire['format']!r}, and this program knows {FORMAT}")
        return cls(str(wire["arch"]), tuple(_entry(each) for each in wire["artifacts"]))


def _entry(wire: Mapping[str, Any]) -> BundleEntry:
    entry = BundleEntry(**wire)
    texts = (entry.component, entry.version, entry.url, entry.digest, entry.file)
    if not all(isinstance(each, str) for each in texts) or type(entry.size) is not int or entry.size < 0:
        raise ValueError("an artifact in it is not described as one")
    return entry


class Bundle(ABC):
    """A bundle that artifacts are taken from. It is opened when the first one is asked for."""

    linkable = False  # the files are somebody else's

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._entries: dict[str, BundleEntry] | None = None

    @staticmethod
    def at(path: str, cache: Cache) -> Bundle:
        place = Path(path)
        if place.is_dir():
            return FolderBundle(place)
        return PackedBundle(place, cache) if is_gzip(place) else TarBundle(place)

    def find(self, artifact: Artifact) -> Blob:
        """The artifact, verified against the bundle's manifest."""
        entry = self._entry(artifact)
        digest = Digest.read(entry.digest)
        if artifact.digest and Digest.read(artifact.digest) != digest:
            raise broken(self.path, entry.file, f"is {digest}, and the configuration wants {artifact.digest}")
        try:
            path, offset = self.locate(entry)
            hashes = hash_file(path, digest.algorithm, offset, entry.size)
        except OSError as error:
            raise incomplete(self.path, entry.file) from error
        found = hashes.digest(digest.algorithm)
        if found != digest:
            raise broken(self.path, entry.file, f"was altered: expected {digest}, found {found}")
        return Blob(path, entry.size, digest, hashes.sha256, offset, self.linkable)

    @abstractmethod
    def open(self) -> bytes:
        """Make the bundle ready to be read, and return its manifest."""

    @abstractmethod
    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        """In which file an artifact is, and from where on."""

    def _entry(self, artifact: Artifact) -> BundleEntry:
        with self._lock:
            if self._entries is None:
                self._entries = {entry.url: entry for entry in self._manifest().artifacts}
        entry = self._entries.get(identity(artifact.url))
        if entry is None:
            raise incomplete(self.path, without_secrets(artifact.url))
        return entry

    def _manifest(self) -> BundleManifest:
        try:
            return BundleManifest.parse(self.open())
        except OSError as error:
            raise broken(self.path, MANIFEST, f"cannot be read ({error.strerror or error})") from error
        except (ValueError, KeyError, TypeError, RecursionError, Broken, Hostile) as error:
            raise broken(self.path, MANIFEST, f"makes no sense ({error})") from error


class FolderBundle(Bundle):
    def open(self) -> bytes:
        return (self.path / MANIFEST).read_bytes()

    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        return self.path / inside(entry.file), 0


class TarBundle(Bundle):
    """A plain tar: its members are read in place."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._offsets: dict[str, int] = {}

    def open(self) -> bytes:
        sizes = {}
        with closing(Inflated(Blob(self.path, self.path.stat().st_size, Digest("sha256", ""), ""))) as stream:
            for member in members(stream):
                if member.kind == "file":
                    self._offsets[member.name], sizes[member.name] = stream.tell(), member.size
        with self.path.open("rb") as file:
            file.seek(self._offsets[MANIFEST])
            return file.read(min(sizes[MANIFEST], LARGEST_MANIFEST))

    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        if entry.file not in self._offsets:
            raise FileNotFoundError(entry.file)
        return self.path, self._offsets[entry.file]


class PackedBundle(Bundle):
    """A compressed tar: what its manifest names goes into the cache, unless it is there."""

    linkable = True

    def __init__(self, path: Path, cache: Cache) -> None:
        super().__init__(path)
        self._cache = cache

    def open(self) -> bytes:
        with closing(Inflated(Blob(self.path, self.path.stat().st_size, Digest("sha256", ""), ""))) as stream:
            inside_it = members(stream)
            first = next(inside_it, None)
            if first is None or first.name != MANIFEST or first.size > LARGEST_MANIFEST:
                raise ValueError("it has to be the first file of the archive")
            text = b"".join(bytes(piece) for piece in stream.pieces(first.size))
            lacking = {entry.file: entry for entry in BundleManifest.parse(text).artifacts if not self._has(entry)}
            for member in inside_it if lacking else ():
                if member.kind == "file" and member.name in lacking:
                    self._keep(lacking[member.name], stream, member.size)
            return text

    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        return self._cache.folder(Digest.read(entry.digest)) / inside(entry.file).name, 0

    def _has(self, entry: BundleEntry) -> bool:
        path, _ = self.locate(entry)
        return path.exists() and path.stat().st_size == entry.size

    def _keep(self, entry: BundleEntry, stream: Inflated, size: int) -> None:
        path, _ = self.locate(entry)
        fresh = path.with_name(f"{path.name}{PARTIAL}")
        with self._cache.alone(Digest.read(entry.digest), time.sleep), room_for(path, size):
            with fresh.open("wb", buffering=0) as file:
                for piece in stream.pieces(size):
                    write_all(file.fileno(), piece)
            fresh.chmod(0o644)
            fresh.replace(path)


def inside(file: str) -> Path:
    """A path of the manifest, which may be anybody's: it must not lead out of the bundle."""
    path = Path(file)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise FileNotFoundError(file)
    return path


def is_gzip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # told when the bundle is opened


def incomplete(bundle: Path, what: str) -> ArtifactError:
    return ArtifactError(
        "bundle-incomplete",
        f"The bundle {bundle} does not hold {what}.",
        "Make it anew with `aks-flex-node artifacts bundle`, with the configuration of this machine.",
    )


def broken(bundle: Path, file: str, why: str) -> ArtifactError:
    return ArtifactError(
        "bundle-broken",
        f"In the bundle {bundle}, {file} {why}.",
        "Copy the bundle again, or make it anew with `aks-flex-node artifacts bundle`.",
    )
