"""Gets an artifact as a verified file: from the offline bundle, the cache or the network, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.cache import PARTIAL_SUFFIX, ArtifactCache, VerifiedFile
from aks_flex_node.agent.artifacts.digest import Digest, find_digest
from aks_flex_node.agent.artifacts.download import Download, fetch_text
from aks_flex_node.agent.http.download_options import DownloadOptions, redact_url
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import AttemptFailed

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.artifacts.bundle import OfflineBundle
    from aks_flex_node.agent.artifacts.download import TransferProgress
    from aks_flex_node.agent.artifacts.model import Artifact
    from aks_flex_node.agent.http.client import HttpClient
    from aks_flex_node.retry import Retrier


class ArtifactFetcher:
    def __init__(
        self,
        cache: ArtifactCache,
        sources: DownloadOptions,
        network: HttpClient,
        retrier: Retrier,
        bundle: OfflineBundle | None,
    ) -> None:
        self._cache, self._sources, self._network = cache, sources, network
        self._retrier, self._bundle = retrier, bundle

    def fetch(self, artifact: Artifact, progress: TransferProgress) -> VerifiedFile:
        """Returns the verified artifact."""
        if self._bundle:
            return self._from_bundle(self._bundle, artifact, progress)
        digest = self._digest(artifact)
        with self._cache.locked(digest, self._wait) as folder:
            blob = self._cache.find(digest, artifact.name)
            if blob:
                progress.set_cached(blob.size)
            else:
                blob = self._download(artifact, digest, folder, progress)
            self._cache.record_origin(digest, artifact)
        return blob

    def reject(self, blob: VerifiedFile) -> None:
        """Forgets where a file came from, so that a corrected file at the same URL is downloaded."""
        self._cache.forget_origin(blob.digest)

    def _from_bundle(self, bundle: OfflineBundle, artifact: Artifact, progress: TransferProgress) -> VerifiedFile:
        blob = bundle.find(artifact)
        progress.set_cached(blob.size)
        return blob

    def _download(self, artifact: Artifact, digest: Digest, folder: Path, progress: TransferProgress) -> VerifiedFile:
        partial, path = folder / f"{artifact.name}{PARTIAL_SUFFIX}", folder / artifact.name
        source = self._sources.resolve(artifact.url)
        hashes = Download(self._network, source, digest, partial, progress).run(self._retrier)
        partial.chmod(0o644)
        partial.replace(path)
        return VerifiedFile(path, path.stat().st_size, digest, hashes.sha256, linkable=True)

    def _digest(self, artifact: Artifact) -> Digest:
        """Returns the expected digest: from the configuration, from the cache, or from the publisher."""
        if artifact.digest:
            return Digest.parse(artifact.digest)
        return self._cache.digest_of(artifact.url) or self._published_digest(artifact)

    def _published_digest(self, artifact: Artifact) -> Digest:
        for url in (*artifact.checksums, *artifact.publisher_checksums):
            try:
                text = fetch_text(self._network, self._sources.resolve(url), self._retrier)
            except ArtifactError as error:
                if error.name == "artifact-not-found":
                    continue  # publishers use sha256 or sha512, with different file names
                if url in artifact.publisher_checksums:
                    break  # a machine with a mirror may not reach the publisher
                raise
            digest = find_digest(text, artifact.name)
            if digest:
                return digest
        self._require_published(artifact)
        raise unverified_error(artifact)

    def _require_published(self, artifact: Artifact) -> None:
        """Raises artifact-not-found if the file itself does not exist: then a checksum would not help."""
        try:
            response = self._network.get(self._sources.resolve(artifact.url), {"Range": "bytes=0-0"})
        except AttemptFailed:
            return
        except ArtifactError as error:
            if error.name == "artifact-not-found":
                raise
            return
        self._network.discard(response)

    def _wait(self, seconds: float) -> None:
        self._retrier.raise_if_stopped()
        self._retrier.stopped.wait(seconds)


def unverified_error(artifact: Artifact) -> ArtifactError:
    urls = (*artifact.checksums, *artifact.publisher_checksums)
    searched = ", ".join(redact_url(url) for url in urls) or "none"
    return ArtifactError(
        "artifact-checksum-missing",
        f"No checksum was found for {redact_url(artifact.url)} (checksum files: {searched}).",
        artifact.pin_hint,
    )
