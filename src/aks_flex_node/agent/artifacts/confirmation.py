"""Confirms the digests of installed programs whose manifest does not say who gave them: an earlier release accepted
those of a mirror.

Every job asks for this before it starts, so it must not delay one. A publisher is asked once, for a few seconds. One
that does not answer is not asked again for a day: a site with a mirror may never reach it.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aks_flex_node import atomic_file
from aks_flex_node.agent.artifacts.digest import UNKNOWN_SOURCE
from aks_flex_node.agent.artifacts.disk_space import make_directory
from aks_flex_node.agent.artifacts.fetcher import ArtifactFetcher
from aks_flex_node.agent.artifacts.model import TreeManifest
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import Retrier, RetryBackoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aks_flex_node.agent.artifacts.bundle import OfflineBundle
    from aks_flex_node.agent.artifacts.cache import ArtifactCache
    from aks_flex_node.agent.artifacts.model import Artifact, ArtifactOrigin
    from aks_flex_node.agent.artifacts.trust import LocalDigests
    from aks_flex_node.agent.http.download_options import DownloadOptions

CONNECT_SECONDS = 3.0
STALL_SECONDS = 5.0
ASK_AGAIN_SECONDS = 86400.0
UNREACHABLE_FILE = ".unreachable-publishers.json"


class DigestConfirmation:
    def __init__(
        self,
        root: Path,
        cache: ArtifactCache,
        sources: DownloadOptions,
        digests: LocalDigests,
        bundle: OfflineBundle | None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        limited = replace(
            sources,
            attempts=1,
            connect_seconds=min(CONNECT_SECONDS, sources.connect_seconds),
            stall_seconds=min(STALL_SECONDS, sources.stall_seconds),
        )
        retrier = Retrier(1, RetryBackoff(), threading.Event())
        self._fetching = ArtifactFetcher(cache, limited, retrier, digests, bundle)
        self._file, self._now = root / UNREACHABLE_FILE, now

    def close(self) -> None:
        self._fetching.close()

    def confirm(self, artifacts: Sequence[Artifact], installed: Path) -> bytes | None:
        """Returns the manifest of an installed tree with the sources of its digests, or with `unknown` if none can be
        asked. Returns None if a source knows another digest.
        """
        manifest = TreeManifest.read(installed)
        if manifest is None or len(manifest.artifacts) != len(artifacts):
            return None
        origins = []
        for origin, artifact in zip(manifest.artifacts, artifacts, strict=True):
            source = self._source(origin, artifact)
            if not source:
                return None
            origins.append(replace(origin, digest_source=source))
        return replace(manifest, artifacts=tuple(origins)).content()

    def _source(self, origin: ArtifactOrigin, artifact: Artifact) -> str:
        publisher = urlsplit(artifact.checksums[0]).netloc if artifact.checksums else ""
        try:
            trusted = self._fetching.known_digest(artifact)
            if trusted is None and self._is_unreachable(publisher):
                return UNKNOWN_SOURCE
            trusted = trusted or self._fetching.published_digest(artifact)
        except ArtifactError as error:
            if error.retryable:
                self._record_unreachable(publisher)
            return UNKNOWN_SOURCE
        return trusted.source.value if str(trusted.digest) == origin.digest else ""

    def _is_unreachable(self, publisher: str) -> bool:
        return publisher in self._unreachable()

    def _unreachable(self) -> dict[str, float]:
        """Returns when the publishers that are not asked now were asked. A clock that was changed ends their time."""
        try:
            known = json.loads(self._file.read_bytes())
            return {str(name): at for name, at in known.items() if 0 <= self._now() - float(at) < ASK_AGAIN_SECONDS}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _record_unreachable(self, publisher: str) -> None:
        content = json.dumps({**self._unreachable(), publisher: self._now()})
        with suppress(OSError, ArtifactError):  # a full disk; then the next job asks
            make_directory(self._file.parent)
            atomic_file.write(self._file, content.encode(), 0o644)
