"""The cache of verified artifacts on disk, by digest, with locks between processes; cleans it, and removes trees that
were built from it ahead and are no longer needed."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.digest import Digest, DigestSource, TrustedDigest, hash_file
from aks_flex_node.agent.artifacts.disk_space import make_directory, remove_tree
from aks_flex_node.agent.artifacts.model import TreeManifest
from aks_flex_node.agent.http.download_options import url_identity
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from aks_flex_node.agent.artifacts.model import Artifact

ORIGIN_FILE = ".origin.json"
PUBLISHED_KEY = "publishedAs"  # the publisher's URLs of which the publisher gave this digest
PARTIAL_SUFFIX = ".partial"
LOCK_RETRY_SECONDS = 0.1  # interval for retrying to lock a file that another process uses


@frozen
class VerifiedFile:
    """A verified file, or a section of a file."""

    path: Path
    size: int
    digest: Digest
    sha256: str
    offset: int = 0
    linkable: bool = False  # owned by the agent, so that trees can hard-link it
    source: DigestSource = DigestSource.ADMINISTRATOR  # of the digest

    @property
    def trusted_digest(self) -> TrustedDigest:
        return TrustedDigest(self.digest, self.source)


class ArtifactCache:
    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, digest: Digest) -> Path:
        return self._root / digest.folder

    def find(self, digest: Digest, name: str) -> VerifiedFile | None:
        """Returns the file with this digest, or None. Removes a corrupt file."""
        path = self.folder(digest) / name
        try:
            hashes = hash_file(path, digest.algorithm)
            size = path.stat().st_size
        except FileNotFoundError:
            return None
        if hashes.digest(digest.algorithm) != digest:
            path.unlink(missing_ok=True)
            return None
        return VerifiedFile(path, size, digest, hashes.sha256, linkable=True)

    def published_digest(self, artifact: Artifact) -> Digest | None:
        """Returns the digest that the publisher itself gave for this artifact before."""
        for folder in folders(self._root):
            if artifact.publisher_url and artifact.publisher_url in read_origin(folder).get(PUBLISHED_KEY, ()):
                return read_folder(folder)
        return None

    def record_origin(self, digest: Digest, artifact: Artifact, source: DigestSource) -> None:
        """Records the URL of an artifact and, if the publisher gave its digest, the publisher's URL."""
        folder = self.folder(digest)
        known = read_origin(folder)
        urls = {*known.get("urls", ()), url_identity(artifact.url)}
        published = {*known.get(PUBLISHED_KEY, ())}
        if source is DigestSource.PUBLISHER:
            published.add(artifact.publisher_url)
        if urls == set(known.get("urls", ())) and published == set(known.get(PUBLISHED_KEY, ())):
            return
        wire = {
            "component": artifact.component,
            "version": artifact.version,
            "urls": sorted(urls),
            PUBLISHED_KEY: sorted(published),
        }
        fresh = folder / f"{ORIGIN_FILE}.new"
        fresh.write_text(json.dumps(wire))
        fresh.replace(folder / ORIGIN_FILE)

    def forget_origin(self, digest: Digest) -> None:
        """Removes the record of the URLs of a file, so that its digest is fetched again."""
        (self.folder(digest) / ORIGIN_FILE).unlink(missing_ok=True)

    @contextmanager
    def locked(self, digest: Digest, wait: Callable[[float], object]) -> Iterator[Path]:
        """Locks the directory of a file, which other threads or processes may use at the same time."""
        folder = self.folder(digest)
        descriptor = lock_folder(folder, wait)
        try:
            yield folder
        finally:
            os.close(descriptor)


def lock_folder(folder: Path, wait: Callable[[float], object]) -> int:
    """Creates a directory if needed, locks it, and returns the file descriptor that owns the lock."""
    while True:
        make_directory(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while not try_lock(descriptor):
                wait(LOCK_RETRY_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        # The previous owner may have removed the directory. Then the lock is on a deleted inode.
        if folder.exists() and folder.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def clean_cache(cache: Path, keep: set[str]) -> int:
    """Removes all files except the digests to keep and files that are locked. Returns the number of bytes freed."""
    freed = 0
    for folder in folders(cache):
        size = sum(freed_by(path) for path in folder.iterdir())
        if str(read_folder(folder)) not in keep and discard(folder):
            freed += size
    return freed


def freed_by(path: Path) -> int:
    """Returns the bytes freed by removing a file: none while a tree has a hard link to it."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if status.st_nlink == 1 else 0


def discard(folder: Path) -> bool:
    """Removes a directory. Returns False if it is locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        free = try_lock(descriptor)
        if free:
            remove_tree(folder)
        return free
    finally:
        os.close(descriptor)


def folders(cache: Path) -> list[Path]:
    if not cache.is_dir():
        return []
    return sorted(each for each in cache.iterdir() if each.is_dir() and read_folder(each))


def read_folder(folder: Path) -> Digest | None:
    algorithm, _, value = folder.name.partition("-")
    digest = Digest.of(value)
    return digest if digest and digest.algorithm == algorithm else None


def read_origin(folder: Path) -> dict[str, Any]:
    try:
        wire = json.loads((folder / ORIGIN_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return wire if isinstance(wire, dict) else {}


def discard_staged(folder: Path, cache: Path, keep: Collection[str]) -> list[str]:
    """Removes the trees in a directory, except those to keep, and the downloads that only they were built from.
    Removes the directory itself if none is kept. Returns the names of what was removed.
    """
    if not folder.is_dir():
        return []
    others = [each for each in folder.iterdir() if each.name not in keep]
    # Files first: the record of what is staged must not outlive a tree.
    removed = [each.name for each in sorted(others, key=lambda each: (each.is_dir(), each.name))]
    used = {digest for name in keep for digest in _digests(folder / name)}
    unused = {digest for name in removed for digest in _digests(folder / name)} - used
    for name in removed:
        remove_tree(folder / name)
    for digest in unused:
        with suppress(FileNotFoundError):
            discard(cache / digest.folder)
    if not keep:
        folder.rmdir()
    return removed


def _digests(tree: Path) -> set[Digest]:
    manifest = TreeManifest.read(tree)
    texts = [each.digest.rpartition(":")[2] for each in manifest.artifacts] if manifest else []
    return {digest for text in texts if (digest := Digest.of(text))}
