"""Downloads one file: resumes an earlier attempt, hashes the data as it arrives, and rejects a wrong digest. Also
tracks progress for progress bars. Incomplete data is in a `.partial` file, with a JSON file that describes its
origin.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from dataclasses import asdict, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.artifacts.digest import Digest, RunningHashes, hash_file
from aks_flex_node.agent.artifacts.disk_space import explain_disk_full, require_space
from aks_flex_node.agent.http.download_options import DownloadUrl, url_identity
from aks_flex_node.errors import ArtifactError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.retry import AttemptFailed, Retrier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aks_flex_node.agent.artifacts.model import Artifact
    from aks_flex_node.agent.http.client import HttpClient, HttpResponse


# A failed read loses its data, so reads start small and grow while the connection is fast.
MIN_READ_BYTES = 16 << 10
MAX_READ_BYTES = 1 << 18
QUICK_SECONDS, SLOW_SECONDS = 0.25, 1.0  # duration of one read
MAX_ARTIFACT_BYTES = 2 << 30
MAX_TEXT_BYTES = 1 << 20
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


@frozen
class PartialDownload:
    """Identifies the remote file that a partial file belongs to."""

    url: str
    etag: str = ""
    last_modified: str = ""
    length: int | None = None

    @classmethod
    def of(cls, response: HttpResponse, location: DownloadUrl, length: int | None) -> PartialDownload:
        headers = response.headers
        return cls(url_identity(location.url), headers.get("ETag", ""), headers.get("Last-Modified", ""), length)

    @classmethod
    def read(cls, path: Path) -> PartialDownload | None:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def condition(self) -> dict[str, str]:
        """Resumes only if the remote file is unchanged. Weak ETags are not sufficient for a byte range."""
        validator = self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified
        return {"If-Range": validator} if validator else {}


class Download:
    def __init__(
        self, network: HttpClient, location: DownloadUrl, digest: Digest, partial: Path, progress: TransferProgress
    ) -> None:
        self._network, self._location, self._digest, self._progress = network, location, digest, progress
        self._partial, self._note_path = partial, partial.with_name(f"{partial.name}.json")
        self._hashes, self._done = RunningHashes(digest.algorithm), 0
        self._note: PartialDownload | None = None

    def run(self, retrier: Retrier) -> RunningHashes:
        """Downloads until the file is complete. After a digest mismatch, downloads the file once more from the
        beginning.
        """
        note = PartialDownload.read(self._note_path)
        if note and note.url == url_identity(self._location.url) and self._partial.exists():
            self._hashes = hash_file(self._partial, self._digest.algorithm)
            self._done, self._note = self._partial.stat().st_size, note
        for last in (False, True):
            self._receive(retrier)
            found = self._hashes.digest(self._digest.algorithm)
            if found == self._digest:
                self._note_path.unlink(missing_ok=True)
                return self._hashes
            self._start_over()
            self._partial.unlink(missing_ok=True)
            if last:
                raise ArtifactError(
                    "artifact-checksum-mismatch",
                    f"The checksum of {self._location} does not match: expected {self._digest}, found {found}.",
                    "The file was downloaded twice. Check whether a proxy or a mirror alters it, and whether the "
                    "expected hash is the hash of this file.",
                    retryable=True,
                )
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _start_over(self) -> None:
        self._hashes, self._done, self._note = RunningHashes(self._digest.algorithm), 0, None
        self._note_path.unlink(missing_ok=True)

    def _receive(self, retrier: Retrier) -> None:
        if self._note and self._note.length == self._done:
            return
        try:
            retrier.run(lambda: self._attempt(retrier), lambda: self._done)
        except AttemptFailed as fault:
            raise artifact_unreachable_error(self._location, fault) from fault

    def _attempt(self, retrier: Retrier) -> None:
        headers = {"Range": f"bytes={self._done}-", **self._note.condition} if self._done and self._note else {}
        response = self._network.get(self._location, headers)
        try:
            length = self._begin(response)
            with self._partial.open("r+b" if self._done else "wb", buffering=0) as file:
                file.seek(self._done)
                file.truncate()
                with explain_disk_full(self._partial, (length or self._done) - self._done):
                    size, began = MIN_READ_BYTES, time.monotonic()
                    while piece := response.read(size):
                        retrier.raise_if_stopped()
                        write_all(file.fileno(), piece)
                        self._hashes.update(piece)
                        self._done += len(piece)
                        require_size(self._location, self._done)
                        self._progress.update(self._done, length)
                        now = time.monotonic()
                        size, began = next_read_size(size, now - began), now
                    retrier.raise_if_stopped()
                    require_whole(self._done, length)
        except BaseException:
            self._network.discard(response)
            raise
        self._network.release(response)

    def _begin(self, response: HttpResponse) -> int | None:
        """Returns the length of the whole file. Starts over if the server does not support resuming."""
        if response.status == 416:
            self._start_over()
            raise AttemptFailed("the file on the server is shorter than the partial file", after=0.0)
        start, length = content_range(response.status, response.headers)
        if start != self._done:
            self._start_over()
        if start not in {0, self._done}:
            raise AttemptFailed("the server resumed at the wrong offset", after=0.0)
        if length is not None:
            require_size(self._location, length)
            require_space(self._partial, length - self._done)
        self._note = PartialDownload.of(response, self._location, length)
        self._note_path.write_text(json.dumps(asdict(self._note)))
        return length


def next_read_size(size: int, seconds: float) -> int:
    """Returns the size of the next read: small on slow connections, for visible progress and small losses."""
    if seconds < QUICK_SECONDS:
        return min(size * 2, MAX_READ_BYTES)
    return max(size // 2, MIN_READ_BYTES) if seconds > SLOW_SECONDS else size


def fetch_text(network: HttpClient, location: DownloadUrl, retrier: Retrier) -> str:
    """Downloads a small text file, such as a checksum file."""

    def attempt() -> str:
        response = network.get(location)
        try:
            content = response.read(MAX_TEXT_BYTES + 1)
            require_size(location, len(content), MAX_TEXT_BYTES)
            require_whole(len(content), content_range(response.status, response.headers)[1])
        except BaseException:
            network.discard(response)
            raise
        network.release(response)
        return content.decode("utf-8", "replace")

    try:
        return retrier.run(attempt)
    except AttemptFailed as fault:
        raise artifact_unreachable_error(location, fault) from fault


def content_range(status: int, headers: Mapping[str, str]) -> tuple[int, int | None]:
    """Returns the offset of a response, and the length of the whole file if known."""
    if status == 206:
        match = CONTENT_RANGE.match(headers.get("Content-Range", ""))
        return (int(match[1]), int(match[2])) if match else (-1, None)
    length = headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def write_all(descriptor: int, piece: bytes | memoryview) -> None:
    """Writes all bytes. The kernel can write fewer when the disk is nearly full."""
    written = os.write(descriptor, piece)
    while written < len(piece):
        piece = memoryview(piece)[written:]
        written = os.write(descriptor, piece)


def require_size(location: DownloadUrl, size: int, limit: int | None = None) -> None:
    limit = MAX_ARTIFACT_BYTES if limit is None else limit
    if size > limit:
        raise ArtifactError(
            "artifact-too-large",
            f"{location} is larger than the limit of {limit >> 20} MiB.",
            "Check the URL: no program of a node is that large.",
        )


def require_whole(size: int, length: int | None) -> None:
    """Raises AttemptFailed if the body is truncated. A connection that is interrupted within TLS can look like the
    end of the body.
    """
    if length is not None and size != length:
        raise AttemptFailed("the connection was interrupted")


def artifact_unreachable_error(location: DownloadUrl, fault: AttemptFailed) -> ArtifactError:
    return ArtifactError(
        "artifact-unreachable",
        f"{location} could not be downloaded: {fault.cause}.",
        "Run `curl -v` with this URL on this machine. Behind a firewall, set `proxy`, `artifacts.baseURL` or "
        "`artifacts.bundle`. For a private CA, set `artifacts.caFile`.",
        retryable=fault.retryable,
    )


class TransferState(str, Enum):
    WAITING = "waiting"
    FETCHING = "fetching"
    UNPACKING = "unpacking"
    READY = "ready"
    FAILED = "failed"


@frozen
class Transfer:
    """The state of one artifact at one moment."""

    name: str
    done: int = 0  # bytes
    total: int | None = None
    state: TransferState = TransferState.WAITING
    cached: bool = False  # already complete in the cache or the bundle


class TransferProgress:
    """The latest `Transfer` of one artifact. Calls `observe` on each change, in the thread that made it."""

    def __init__(self, artifact: Artifact, observe: Callable[[Transfer], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._now = Transfer(artifact.name)
        self._observe = observe

    @property
    def current(self) -> Transfer:
        with self._lock:
            return self._now

    def update(self, done: int, total: int | None) -> None:
        self._change(done=done, total=total)

    def set_state(self, state: TransferState) -> None:
        self._change(state=state)

    def set_cached(self, size: int) -> None:
        self._change(done=size, total=size, cached=True)

    def _change(self, **changes: Any) -> None:
        with self._lock:
            self._now = replace(self._now, **changes)
        if self._observe:
            self._observe(self.current)
