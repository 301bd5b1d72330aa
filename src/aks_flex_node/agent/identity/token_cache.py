"""Token cache of the kubelet's exec credential plugin: a token that is fresh is read from a file, and nothing slow is
imported for that.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IDENTITY_FILE = "identity.json"  # in the kubelet's directory: who the node is to Azure, with its secrets
TOKEN_CACHE_FILE = "azure-token.json"  # noqa: S105 - a file name: the token that was last got with it
REFRESH_MARGIN_SECONDS = 300.0  # seconds before its end at which a token is replaced


@dataclass(frozen=True)
class CachedToken:
    """A token, for whom it was made out, and its life."""

    value: str = field(repr=False)
    issued_at: float
    expires_at: float  # unix times
    identity_digest: str = ""  # a fingerprint of the identity that it is of

    def is_fresh(self, now: float) -> bool:
        """Whether it lasts a while; one of a short life is replaced after half of it."""
        left = self.expires_at - now
        return self.issued_at <= now and left > min(REFRESH_MARGIN_SECONDS, (self.expires_at - self.issued_at) / 2)

    def is_valid(self, now: float) -> bool:
        return now < self.expires_at

    def exec_credential(self) -> dict[str, object]:
        """As a kubelet reads it (client.authentication.k8s.io)."""
        until = format_utc(self.expires_at)
        return {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": self.value, "expirationTimestamp": until},
        }


def get_cached_token(
    identity: Path, sign_in: Callable[[str], tuple[str, float]], now: Callable[[], float] = time.time
) -> CachedToken:
    """A token that lasts a while. `sign_in` gets one with the text of the identity: its value, and when it ends.

    Who cannot get a new one uses the old one as long as it is any good: whoever signs us in may be away for a while.
    """
    text = identity.read_text()
    mark, file = hashlib.sha256(text.encode()).hexdigest(), identity.with_name(TOKEN_CACHE_FILE)
    known = read_cache(file)
    if known and known.identity_digest == mark and known.is_fresh(now()):
        return known
    begun = now()
    try:
        value, ends = sign_in(text)
    except Exception:
        if known and known.identity_digest == mark and known.is_valid(now()):
            return known
        raise
    got = CachedToken(value, begun, ends, mark)
    write_cache(file, got)
    return got


def read_cache(file: Path) -> CachedToken | None:
    """What was kept; nothing when it cannot be read."""
    try:
        known = json.loads(file.read_text())
        return CachedToken(
            str(known["token"]), float(known["begun"]), float(known["ends"]), str(known.get("identity", ""))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_cache(file: Path, token: CachedToken) -> None:
    """For root's eyes from the first moment. A disk that is full keeps nobody from using what was got."""
    text = json.dumps(
        {"token": token.value, "begun": token.issued_at, "ends": token.expires_at, "identity": token.identity_digest}
    )
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as out:
                out.write(text)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
