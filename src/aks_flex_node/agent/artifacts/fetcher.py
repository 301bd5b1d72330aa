"""Gets an artifact as a verified file: from the offline bundle, the cache or the network, in this order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.cache import PARTIAL_SUFFIX, ArtifactCache, VerifiedFile
from aks_flex_node.agent.artifacts.digest import Digest, DigestSource, TrustedDigest, find_digest
from aks_flex_node.agent.artifacts.download import Download, TransferProgress, fetch_text
from aks_flex_node.agent.http.client import HttpClient
from aks_flex_node.agent.http.download_options import DownloadOptions, DownloadUrl, redact_url
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import AttemptFailed, Retrier

if TYPE_CHECKING:
    from aks_flex_node.agent.artifacts.bundle import OfflineBundle
    from aks_flex_node.agent.artifacts.model import Artifact
    from aks_flex_node.agent.artifacts.trust import LocalDigests


class ArtifactFetcher:
    def __init__(
        self,
        cache: ArtifactCache,
        sources: DownloadOptions,
        retrier: Retrier,
        digests: LocalDigests,
        bundle: OfflineBundle | None,
    ) -> None:
        self._cache, self._sources, self._digests = cache, sources, digests
        self._network = HttpClient(sources)
        # Checksums come from the publisher itself: neither a mirror nor the CA of a mirror can replace them.
        publisher = replace(sources, base_url=None, ca_file=None)
        self._publisher = self._network if publisher == sources else HttpClient(publisher)  # shares its connections
        self._retrier, self._bundle = retrier, bundle

    def close(self) -> None:
        """Aborts all requests in progress."""
        self._network.close()
        self._publisher.close()

    def fetch(self, artifact: Artifact, progress: TransferProgress) -> VerifiedFile:
        """Returns the verified artifact."""
        if self._bundle:
            blob = self._bundle.find(artifact, self.local_digest(artifact))
            progress.set_cached(blob.size)
            return blob
        trusted = self.trusted_digest(artifact)
        with self._cache.locked(trusted.digest, self._wait) as folder:
            cached = self._cache.find(trusted.digest, artifact.name)
            if cached:
                blob = cached
                progress.set_cached(blob.size)
            else:
                partial, path = folder / f"{artifact.name}{PARTIAL_SUFFIX}", folder / artifact.name
                source = self._sources.resolve(artifact.url)
                hashes = Download(self._network, source, trusted.digest, partial, progress).run(self._retrier)
                partial.chmod(0o644)
                partial.replace(path)
                blob = VerifiedFile(path, path.stat().st_size, trusted.digest, hashes.sha256, linkable=True)
            self._cache.record_origin(trusted.digest, artifact, trusted.source)
        return replace(blob, source=trusted.source)

    def trusted_digest(self, artifact: Artifact) -> TrustedDigest:
        """Returns the expected digest: from this machine, or from the publisher."""
        if known := self.local_digest(artifact):
            return known
        if artifact.signed_list:
            return TrustedDigest(self._signed_digest(artifact), DigestSource.SIGNATURE)
        if published := self._cache.published_digest(artifact):
            return TrustedDigest(published, DigestSource.PUBLISHER)
        try:
            return self._published_digest(artifact)
        except ArtifactError as error:
            if error.name == "artifact-checksum-missing":
                self._require_published(artifact)
            raise

    def local_digest(self, artifact: Artifact) -> TrustedDigest | None:
        """Returns the digest that the administrator of this machine or the agent's pins give, else None."""
        return self._digests.find(artifact)

    def reject(self, blob: VerifiedFile) -> None:
        """Forgets where a file came from, so that a corrected file at the same URL is downloaded."""
        self._cache.forget_origin(blob.digest)

    def _signed_digest(self, artifact: Artifact) -> Digest:
        """Returns the digest in a signed list. The list may come from a mirror, because its signature is verified."""
        from aks_flex_node.agent.artifacts.release_signature import signature_error, signed_digest

        try:
            sums, signature = (
                fetch_text(self._network, self._sources.resolve(url), self._retrier)
                for url in (artifact.signed_list, f"{artifact.signed_list}.asc")
            )
        except ArtifactError as error:
            if error.name != "artifact-not-found":
                raise
            self._require_published(artifact)
            raise signature_error(f"{redact_url(artifact.signed_list)}.asc or its list was not found") from error
        return signed_digest(sums.encode(), signature.encode(), artifact.publisher_name, self._digests.release_keys)

    def _published_digest(self, artifact: Artifact) -> TrustedDigest:
        """Asks the publisher for the digest."""
        failure: ArtifactError | None = None
        for url in artifact.checksums:
            try:
                text = fetch_text(self._publisher, DownloadUrl(url, url), self._retrier)
            except ArtifactError as error:
                if error.name == "artifact-not-found":
                    continue  # publishers use sha256 or sha512, with different file names
                if self._sources.resolve(artifact.url).url == artifact.publisher_url:
                    raise
                failure = error  # a machine with a mirror may not reach the publisher
                break
            digest = find_digest(text, artifact.publisher_name)
            if digest:
                return TrustedDigest(digest, DigestSource.PUBLISHER)
        searched = ", ".join(redact_url(url) for url in artifact.checksums) or "none"
        why = f" {failure.message}" if failure else ""
        raise ArtifactError(
            "artifact-checksum-missing",
            f"No trusted checksum was found for {redact_url(artifact.url)} (checksum files: {searched}).{why}",
            artifact.pin_hint,
            retryable=failure is not None and failure.retryable,
        )

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
