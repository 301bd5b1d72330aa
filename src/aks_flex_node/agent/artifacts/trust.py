"""Who may say which digest an artifact has. A server that stores artifacts (a mirror) is never one of them.

| source | where the digest comes from |
|---|---|
| administrator | `sha256` settings and the checksums file of this machine, or the manifest of its offline bundle |
| pin | the table that ships with the agent (`pins.txt`) |
| publisher | the publisher's checksum files, over https with the system's CAs |
| signature | of the agent's own releases: a checksum list that a release key signed |
"""

from __future__ import annotations

import os
import stat
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.digest import Digest, DigestSource, TrustedDigest
from aks_flex_node.errors import ArtifactError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.artifacts.model import Artifact

PINS = "pins.txt"
MAX_CHECKSUMS_BYTES = 1 << 20


@frozen
class LocalDigests:
    """The digests that this machine knows without a network, by URL."""

    administrator: Mapping[str, Digest] = field(default_factory=dict)
    pins: Mapping[str, Digest] = field(default_factory=dict)
    release_keys: bytes | None = None  # OpenPGP keys; None: those of this machine

    def find(self, artifact: Artifact) -> TrustedDigest | None:
        """Returns the digest of an artifact. The administrator's have precedence."""
        if artifact.digest:
            return TrustedDigest(Digest.parse(artifact.digest), DigestSource.ADMINISTRATOR)
        for url in (artifact.url, artifact.publisher_url):
            if digest := self.administrator.get(url):
                return TrustedDigest(digest, DigestSource.ADMINISTRATOR)
        pinned = self.pins.get(artifact.publisher_url)
        return TrustedDigest(pinned, DigestSource.PIN) if pinned else None


def load_local_digests(checksums_file: str | None) -> LocalDigests:
    """Reads the pins of this release, and the administrator's file if it exists."""
    from importlib import resources  # slow to import, and all commands import this module

    shipped = resources.files(__package__ or "").joinpath(PINS).read_text(encoding="utf-8")
    own = read_checksums_file(Path(checksums_file)) if checksums_file else {}
    return LocalDigests(own, parse_checksums(shipped))


def read_checksums_file(path: Path) -> dict[str, Digest]:
    """Reads the administrator's file. Raises ArtifactError if it is damaged, or if others can write to it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_CHECKSUMS_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise checksums_file_error(path, f"cannot be read ({error.strerror or error})") from error
    if status.st_uid not in {0, os.geteuid()} or stat.S_IMODE(status.st_mode) & 0o022:
        raise checksums_file_error(path, "can be changed by other users than root")
    if len(content) > MAX_CHECKSUMS_BYTES:
        raise checksums_file_error(path, f"is larger than {MAX_CHECKSUMS_BYTES >> 20} MiB")
    try:
        return parse_checksums(content.decode())
    except UnicodeDecodeError:
        raise checksums_file_error(path, "is not text") from None
    except ValueError as error:
        raise checksums_file_error(path, f"has an invalid line: {error}") from None


def parse_checksums(text: str) -> dict[str, Digest]:
    """Parses lines with a SHA-256 or SHA-512 hash and a URL. Empty lines and comments (#) are ignored. Raises
    ValueError with the first line that is neither.
    """
    found: dict[str, Digest] = {}
    for line in (each.strip() for each in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        value, _, url = line.partition(" ")
        digest, url = Digest.of(value), url.strip().removeprefix("*")
        if digest is None or not url.startswith("https://") or found.get(url, digest) != digest:
            raise ValueError(line[:200])
        found[url] = digest
    return found


def checksums_file_error(path: Path, cause: str) -> ArtifactError:
    return ArtifactError(
        "checksums-file-invalid",
        f"The file {path} {cause}. It decides which programs this machine runs, so nothing is downloaded.",
        "Each line is a SHA-256 or SHA-512 hash and an https URL. `aks-flex-node artifacts pins` prints such a file. "
        f"Then run `chown root: {path}` and `chmod 0644 {path}`. Or remove the file.",
    )
