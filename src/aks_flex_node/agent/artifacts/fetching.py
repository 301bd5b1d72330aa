"""From an artifact to a verified file: out of the bundle, the cache or the network, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.caches import PARTIAL, Blob, Cache
from aks_flex_node.agent.artifacts.digests import Digest, find_digest
from aks_flex_node.agent.artifacts.downloads import Download, fetch_text
from aks_flex_node.agent.artifacts.sources import Sources, without_secrets
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.artifacts.bundles import Bundle
    from aks_flex_node.agent.artifacts.connections import Network
    from aks_flex_node.agent.artifacts.persistence import Persistence
    from aks_flex_node.agent.artifacts.transfers import Progress
    from aks_flex_node.agent.artifacts.trees import Artifact


class Fetching:
    def __init__(
        self, cache: Cache, sources: Sources, network: Network, persistence: Persistence, bundle: Bundle | None
    ) -> None:
        self._cache, self._sources, self._network = cache, sources, network
        self._persistence, self._bundle = persistence, bundle

    def obtain(self, artifact: Artifact, progress: Progress) -> Blob:
        """The artifact, verified."""
        if self._bundle:
            return self._from_bundle(self._bundle, artifact, progress)
        digest = self._digest(artifact)
        with self._cache.alone(digest, self._wait) as folder:
            blob = self._cache.find(digest, artifact.name)
            if blob:
                progress.was_here(blob.size)
            else:
                blob = self._download(artifact, digest, folder, progress)
            self._cache.remember(digest, artifact)
        return blob

    def _from_bundle(self, bundle: Bundle, artifact: Artifact, progress: Progress) -> Blob:
        blob = bundle.find(artifact)
        progress.was_here(blob.size)
        return blob

    def _download(self, artifact: Artifact, digest: Digest, folder: Path, progress: Progress) -> Blob:
        partial, path = folder / f"{artifact.name}{PARTIAL}", folder / artifact.name
        place = self._sources.place(artifact.url)
        hashes = Download(self._network, place, digest, partial, progress).run(self._persistence)
        partial.chmod(0o644)
        partial.replace(path)
        return Blob(path, path.stat().st_size, digest, hashes.sha256, linkable=True)

    def _digest(self, artifact: Artifact) -> Digest:
        """What the file must be: as the configuration pins it, as it was before, or as its publisher says."""
        if artifact.digest:
            return Digest.read(artifact.digest)
        return self._cache.digest_of(artifact.url) or self._published_digest(artifact)

    def _published_digest(self, artifact: Artifact) -> Digest:
        for url in artifact.checksums:
            try:
                text = fetch_text(self._network, self._sources.place(url), self._persistence)
            except ArtifactError as error:
                if error.name == "artifact-missing":
                    continue  # publishers have sha256 or sha512, and name them in several ways
                raise
            digest = find_digest(text, artifact.name)
            if digest:
                return digest
        raise unverified(artifact)

    def _wait(self, seconds: float) -> None:
        self._persistence.check()
        self._persistence.stopped.wait(seconds)


def unverified(artifact: Artifact) -> ArtifactError:
    asked = ", ".join(without_secrets(url) for url in artifact.checksums) or "none is known"
    return ArtifactError(
        "artifact-unverified",
        f"No checksum was found for {without_secrets(artifact.url)} (asked: {asked}).",
        f"Pin `{artifact.component}.sha256` in the configuration: the file name {artifact.name} and its hash.",
    )
