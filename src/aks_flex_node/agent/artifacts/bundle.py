"""Reads offline bundles: a directory or a tar with artifacts by their digests, and a manifest that lists them.

    manifest.json                    format, architecture, artifacts
    <algorithm>-<hash>/<file name>   as in the cache

A directory and a plain tar are read in place; a compressed tar is extracted into the cache once.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from aks_flex_node.agent.artifacts.archive import (
    GZIP_MAGIC,
    ArchiveBroken,
    ArchiveHostile,
    ArchiveStream,
    read_members,
)
from aks_flex_node.agent.artifacts.cache import PARTIAL_SUFFIX, ArtifactCache, VerifiedFile
from aks_flex_node.agent.artifacts.digest import Digest, DigestSource, TrustedDigest, hash_file
from aks_flex_node.agent.artifacts.disk_space import explain_disk_full
from aks_flex_node.agent.artifacts.download import write_all
from aks_flex_node.agent.http.download_options import redact_url, url_identity
from aks_flex_node.errors import ArtifactError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts.model import Artifact

BUNDLE_FORMAT = 1
BUNDLE_MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20


@frozen
class BundleEntry:
    component: str
    version: str
    url: str
    digest: str
    file: str  # path in the bundle
    size: Annotated[int, msgspec.Meta(ge=0)]


@frozen
class BundleManifest:
    arch: str
    artifacts: tuple[BundleEntry, ...]
    format: int = BUNDLE_FORMAT

    def wire(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def parse(cls, text: str | bytes) -> BundleManifest:
        """Parses a manifest. Raises ValueError, KeyError or TypeError if it is invalid."""
        wire = json.loads(text)
        if wire["format"] != BUNDLE_FORMAT:
            raise ValueError(f"format {wire['format']!r} is not supported, only {BUNDLE_FORMAT}")
        return msgspec.convert(wire, cls)


class OfflineBundle(ABC):
    """A bundle to read artifacts from. It is opened at the first access."""

    linkable = False  # the files do not belong to the agent

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._entries: dict[str, BundleEntry] | None = None

    @staticmethod
    def at(path: str, cache: ArtifactCache) -> OfflineBundle:
        bundle_path = Path(path)
        if bundle_path.is_dir():
            return DirectoryBundle(bundle_path)
        return CompressedBundle(bundle_path, cache) if is_gzip(bundle_path) else TarBundle(bundle_path)

    def find(self, artifact: Artifact, known: TrustedDigest | None) -> VerifiedFile:
        """Returns an artifact, verified against the manifest of the bundle and the digest that this machine knows."""
        entry = self._entry(artifact)
        digest = Digest.parse(entry.digest)
        try:
            path, offset = self.locate(entry)
            hashes = hash_file(path, digest.algorithm, offset, entry.size)
            other = hash_file(path, known.digest.algorithm, offset, entry.size) if known else None
        except OSError as error:
            raise bundle_incomplete_error(self.path, entry.file) from error
        found = hashes.digest(digest.algorithm)
        if found != digest:
            raise bundle_broken_error(self.path, entry.file, f"is corrupt: expected {digest}, found {found}")
        if known and other and (actual := other.digest(known.digest.algorithm)) != known.digest:
            required = f"this machine requires {known.digest} (from: {known.source.value})"
            raise bundle_broken_error(self.path, entry.file, f"has the digest {actual}, but {required}")
        source = known.source if known else DigestSource.ADMINISTRATOR  # who chose this bundle for this machine
        return VerifiedFile(path, entry.size, digest, hashes.sha256, offset, self.linkable, source)

    @abstractmethod
    def open(self) -> bytes:
        """Opens the bundle and returns its manifest."""

    @abstractmethod
    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        """Returns the file that contains an artifact and the offset in it."""

    def _entry(self, artifact: Artifact) -> BundleEntry:
        with self._lock:
            if self._entries is None:
                self._entries = {entry.url: entry for entry in self._manifest().artifacts}
        entry = self._entries.get(url_identity(artifact.url))
        if entry is None:
            raise bundle_incomplete_error(self.path, redact_url(artifact.url))
        return entry

    def _manifest(self) -> BundleManifest:
        try:
            return BundleManifest.parse(self.open())
        except OSError as error:
            raise bundle_broken_error(
                self.path, BUNDLE_MANIFEST, f"cannot be read ({error.strerror or error})"
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError, ArchiveBroken, ArchiveHostile) as error:
            raise bundle_broken_error(self.path, BUNDLE_MANIFEST, f"is invalid ({error})") from error


class DirectoryBundle(OfflineBundle):
    def open(self) -> bytes:
        return (self.path / BUNDLE_MANIFEST).read_bytes()

    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        return self.path / checked_member_path(entry.file), 0


class TarBundle(OfflineBundle):
    """An uncompressed tar, whose members are read in place."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._offsets: dict[str, int] = {}

    def open(self) -> bytes:
        sizes = {}
        with closing(
            ArchiveStream(VerifiedFile(self.path, self.path.stat().st_size, Digest("sha256", ""), ""))
        ) as stream:
            for member in read_members(stream):
                if member.kind == "file":
                    self._offsets[member.name], sizes[member.name] = stream.tell(), member.size
        with self.path.open("rb") as file:
            file.seek(self._offsets[BUNDLE_MANIFEST])
            return file.read(min(sizes[BUNDLE_MANIFEST], MAX_MANIFEST_BYTES))

    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        if entry.file not in self._offsets:
            raise FileNotFoundError(entry.file)
        return self.path, self._offsets[entry.file]


class CompressedBundle(OfflineBundle):
    """A compressed tar, whose artifacts are extracted into the cache."""

    linkable = True

    def __init__(self, path: Path, cache: ArtifactCache) -> None:
        super().__init__(path)
        self._cache = cache

    def open(self) -> bytes:
        with closing(
            ArchiveStream(VerifiedFile(self.path, self.path.stat().st_size, Digest("sha256", ""), ""))
        ) as stream:
            members = read_members(stream)
            first = next(members, None)
            if first is None or first.name != BUNDLE_MANIFEST or first.size > MAX_MANIFEST_BYTES:
                raise ValueError("it must be the first file of the archive")
            text = b"".join(bytes(piece) for piece in stream.chunks(first.size))
            missing = {entry.file: entry for entry in BundleManifest.parse(text).artifacts if not self._has(entry)}
            for member in members if missing else ():
                if member.kind == "file" and member.name in missing:
                    entry = missing[member.name]
                    path, _ = self.locate(entry)
                    fresh = path.with_name(f"{path.name}{PARTIAL_SUFFIX}")
                    with (
                        self._cache.locked(Digest.parse(entry.digest), time.sleep),
                        explain_disk_full(path, member.size),
                    ):
                        with fresh.open("wb", buffering=0) as file:
                            for piece in stream.chunks(member.size):
                                write_all(file.fileno(), piece)
                        fresh.chmod(0o644)
                        fresh.replace(path)
            return text

    def locate(self, entry: BundleEntry) -> tuple[Path, int]:
        return self._cache.folder(Digest.parse(entry.digest)) / checked_member_path(entry.file).name, 0

    def _has(self, entry: BundleEntry) -> bool:
        path, _ = self.locate(entry)
        return path.exists() and path.stat().st_size == entry.size


def checked_member_path(file: str) -> Path:
    """Returns a path of the manifest, which is untrusted, if it is inside the bundle."""
    path = Path(file)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise FileNotFoundError(file)
    return path


def is_gzip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    except OSError:
        return False  # reported when the bundle is opened


def bundle_incomplete_error(bundle: Path, what: str) -> ArtifactError:
    return ArtifactError(
        "offline-bundle-incomplete",
        f"The bundle {bundle} does not contain {what}.",
        "Create it again with `aks-flex-node artifacts bundle` and the configuration of this machine.",
    )


def bundle_broken_error(bundle: Path, file: str, cause: str) -> ArtifactError:
    return ArtifactError(
        "offline-bundle-corrupt",
        f"In the bundle {bundle}, {file} {cause}.",
        "Copy the bundle again, or create it again with `aks-flex-node artifacts bundle`.",
    )
