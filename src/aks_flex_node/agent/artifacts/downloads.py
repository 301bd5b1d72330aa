"""One file on its way here: resumed where an earlier attempt ended, hashed as it comes, and refused when wrong.

What has arrived lies in a `.partial` file; beside it, a small note says from which file of the server it came.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.digests import Digest, Hashes, hash_file
from aks_flex_node.agent.artifacts.persistence import Interrupted, Persistence
from aks_flex_node.agent.artifacts.sources import Place, identity
from aks_flex_node.agent.artifacts.space import require_space, room_for
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aks_flex_node.agent.artifacts.connections import Network, Response
    from aks_flex_node.agent.artifacts.transfers import Progress

# A read that fails loses what it had, so reads start small and grow while all goes well.
SMALLEST_READ = 16 << 10
LARGEST_READ = 1 << 18
QUICK_SECONDS, SLOW_SECONDS = 0.25, 1.0  # of one read
LARGEST_ARTIFACT = 2 << 30
LARGEST_TEXT = 1 << 20
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


@dataclass(frozen=True)
class Note:
    """Which file of the server a partial file is the beginning of."""

    url: str
    etag: str = ""
    last_modified: str = ""
    length: int | None = None

    @classmethod
    def of(cls, response: Response, place: Place, length: int | None) -> Note:
        headers = response.headers
        return cls(identity(place.asked), headers.get("ETag", ""), headers.get("Last-Modified", ""), length)

    @classmethod
    def read(cls, path: Path) -> Note | None:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def condition(self) -> dict[str, str]:
        """Resume only in the same file. A weak tag promises too little to be used."""
        validator = self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified
        return {"If-Range": validator} if validator else {}


class Download:
    def __init__(self, network: Network, place: Place, digest: Digest, partial: Path, progress: Progress) -> None:
        self._network, self._place, self._digest, self._progress = network, place, digest, progress
        self._partial, self._note_path = partial, partial.with_name(f"{partial.name}.json")
        self._hashes, self._done = Hashes(digest.algorithm), 0
        self._note: Note | None = None

    def run(self, persistence: Persistence) -> Hashes:
        """Until the partial file is the whole file. Wrong bytes are thrown away, and fetched anew once."""
        self._take_up()
        for last in (False, True):
            self._receive(persistence)
            found = self._hashes.digest(self._digest.algorithm)
            if found == self._digest:
                self._note_path.unlink(missing_ok=True)
                return self._hashes
            self._start_over()
            self._partial.unlink(missing_ok=True)
            if last:
                raise wrong_bytes(self._place, self._digest, found)
        raise AssertionError("the last round returns or raises")

    def _take_up(self) -> None:
        """What an earlier run left is hashed, and counts as received."""
        note = Note.read(self._note_path)
        if note and note.url == identity(self._place.asked) and self._partial.exists():
            self._hashes = hash_file(self._partial, self._digest.algorithm)
            self._done, self._note = self._partial.stat().st_size, note

    def _start_over(self) -> None:
        self._hashes, self._done, self._note = Hashes(self._digest.algorithm), 0, None
        self._note_path.unlink(missing_ok=True)

    def _receive(self, persistence: Persistence) -> None:
        if self._note and self._note.length == self._done:
            return
        try:
            persistence.pursue(lambda: self._attempt(persistence), lambda: self._done)
        except Interrupted as fault:
            raise unreachable(self._place, fault) from fault

    def _attempt(self, persistence: Persistence) -> None:
        asked = {"Range": f"bytes={self._done}-", **self._note.condition} if self._done and self._note else {}
        response = self._network.get(self._place, asked)
        try:
            length = self._begin(response)
            with self._partial.open("r+b" if self._done else "wb", buffering=0) as file:
                file.seek(self._done)
                file.truncate()
                with room_for(self._partial, (length or self._done) - self._done):
                    self._pour(response, file.fileno(), length, persistence)
        except BaseException:
            self._network.done(response)
            raise
        self._network.finished(response)

    def _begin(self, response: Response) -> int | None:
        """The length of the whole file. A server that does not resume starts from nought, and so do we."""
        if response.status == 416:
            self._start_over()
            raise Interrupted("the server has less of the file than is here already", after=0.0)
        start, length = span(response.status, response.headers)
        if start != self._done:
            self._start_over()
        if start not in {0, self._done}:
            raise Interrupted("the server resumed at another place than it was asked to", after=0.0)
        if length is not None:
            require_size(self._place, length)
            require_space(self._partial, length - self._done)
        self._note = Note.of(response, self._place, length)
        self._note_path.write_text(json.dumps(asdict(self._note)))
        return length

    def _pour(self, response: Response, descriptor: int, length: int | None, persistence: Persistence) -> None:
        size, began = SMALLEST_READ, time.monotonic()
        while piece := response.read(size):
            persistence.check()
            write_all(descriptor, piece)
            self._hashes.update(piece)
            self._done += len(piece)
            require_size(self._place, self._done)
            self._progress.is_at(self._done, length)
            now = time.monotonic()
            size, began = next_size(size, now - began), now
        persistence.check()
        require_whole(self._done, length)


def next_size(size: int, seconds: float) -> int:
    """How much to read at once: little on a slow line, so that progress shows and little is lost."""
    if seconds < QUICK_SECONDS:
        return min(size * 2, LARGEST_READ)
    return max(size // 2, SMALLEST_READ) if seconds > SLOW_SECONDS else size


def fetch_text(network: Network, place: Place, persistence: Persistence) -> str:
    """A small file, such as a publisher's list of checksums."""

    def attempt() -> str:
        response = network.get(place)
        try:
            content = response.read(LARGEST_TEXT + 1)
            require_size(place, len(content), LARGEST_TEXT)
            require_whole(len(content), span(response.status, response.headers)[1])
        except BaseException:
            network.done(response)
            raise
        network.finished(response)
        return content.decode("utf-8", "replace")

    try:
        return persistence.pursue(attempt)
    except Interrupted as fault:
        raise unreachable(place, fault) from fault


def span(status: int, headers: Mapping[str, str]) -> tuple[int, int | None]:
    """Where an answer starts, and the length of the whole file if it is told."""
    if status == 206:
        match = CONTENT_RANGE.match(headers.get("Content-Range", ""))
        return (int(match[1]), int(match[2])) if match else (-1, None)
    told = headers.get("Content-Length", "")
    return 0, int(told) if told.isdigit() else None


def write_all(descriptor: int, piece: bytes | memoryview) -> None:
    """The kernel may take less than it is given when the disk is nearly full."""
    written = os.write(descriptor, piece)
    while written < len(piece):
        piece = memoryview(piece)[written:]
        written = os.write(descriptor, piece)


def require_size(place: Place, size: int, limit: int = LARGEST_ARTIFACT) -> None:
    if size > limit:
        raise ArtifactError(
            "artifact-too-large",
            f"{place} is larger than the {limit >> 20} MiB that are accepted.",
            "Is it the right URL? No program of a node is that large.",
        )


def require_whole(size: int, length: int | None) -> None:
    """A connection that is cut within TLS may look like the end of the answer."""
    if length is not None and size != length:
        raise Interrupted("the connection was cut")


def wrong_bytes(place: Place, expected: Digest, found: Digest) -> ArtifactError:
    return ArtifactError(
        "artifact-wrong-bytes",
        f"{place} is not what it should be: expected {expected}, found {found}.",
        "It was fetched twice. A proxy or a mirror may alter it, or the expected hash is of another file.",
        again=True,
    )


def unreachable(place: Place, fault: Interrupted) -> ArtifactError:
    return ArtifactError(
        "artifact-unreachable",
        f"{place} could not be fetched: {fault.cause}.",
        "Try `curl -v` with this URL on this machine. Behind a firewall, set `proxy`, `artifacts.baseURL` or "
        "`artifacts.bundle`; for a private authority, `artifacts.caFile`.",
        again=fault.again,
    )
