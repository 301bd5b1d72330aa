"""Digests of files, and the checksum files in which publishers list them (GNU and BSD format)."""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from typing import TYPE_CHECKING

from aks_flex_node.errors import ArtifactError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from pathlib import Path

ALGORITHMS = {64: "sha256", 128: "sha512"}  # by length of the hash
HASH = re.compile(r"[0-9a-f]{128}|[0-9a-f]{64}")
GNU = re.compile(r"\\?(?P<hash>[0-9a-f]+)\s+\*?(?P<name>\S.*)", re.IGNORECASE)
BSD = re.compile(r"sha\d+\s*\((?P<name>.+)\)\s*=\s*(?P<hash>[0-9a-f]+)", re.IGNORECASE)
HASH_CHUNK_BYTES = 1 << 18


@frozen
class Digest:
    algorithm: str
    value: str

    @classmethod
    def of(cls, value: str) -> Digest | None:
        """Parses a bare hash. Its length determines the algorithm. Returns None if it is not a hash."""
        value = value.strip().lower()
        return cls(ALGORITHMS[len(value)], value) if HASH.fullmatch(value) else None

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parses `sha256:…`, `sha512:…` or a bare hash."""
        algorithm, _, value = text.strip().rpartition(":")
        digest = cls.of(value)
        if digest is None or algorithm.lower() not in {"", digest.algorithm}:
            raise ArtifactError(
                "digest-invalid",
                f"{text!r} is not a valid digest.",
                "Use `sha256:` with 64 hexadecimal digits, or `sha512:` with 128.",
            )
        return digest

    @property
    def folder(self) -> str:
        return f"{self.algorithm}-{self.value}"

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


class DigestSource(str, Enum):
    """Who gave a digest; see `trust`."""

    ADMINISTRATOR = "administrator"
    PIN = "pin"
    PUBLISHER = "publisher"
    SIGNATURE = "signature"  # of a release of the agent


TRUSTED_SOURCES = frozenset(each.value for each in DigestSource)


@frozen
class TrustedDigest:
    digest: Digest
    source: DigestSource


class RunningHashes:
    """Incremental hashes of a file: always sha256, and the publisher's algorithm if it is different."""

    def __init__(self, algorithm: str = "sha256") -> None:
        self._running = {name: hashlib.new(name) for name in ("sha256", algorithm)}

    def update(self, piece: bytes | memoryview) -> None:
        for running in self._running.values():
            running.update(piece)

    @property
    def sha256(self) -> str:
        return self._running["sha256"].hexdigest()

    def digest(self, algorithm: str) -> Digest:
        return Digest(algorithm, self._running[algorithm].hexdigest())


def hash_file(path: Path, algorithm: str = "sha256", offset: int = 0, size: int | None = None) -> RunningHashes:
    """Hashes a file, or the section of it that starts at `offset`."""
    hashes, view = RunningHashes(algorithm), memoryview(bytearray(HASH_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        left = size if size is not None else 1 << 62
        while left and (count := file.readinto(view[: min(HASH_CHUNK_BYTES, left)])):
            hashes.update(view[:count])
            left -= count
    return hashes


def find_digest(text: str, name: str) -> Digest | None:
    """Finds the digest of a file in a publisher's checksum file: a bare hash, or the line with the file name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) == 1 and (bare := Digest.of(lines[0])):
        return bare
    for line in lines:
        match = GNU.fullmatch(line) or BSD.fullmatch(line)
        if match and match["name"].strip().rpartition("/")[2] == name:
            return Digest.of(match["hash"])
    return None
