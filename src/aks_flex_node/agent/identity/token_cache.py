"""Token cache of the kubelet's exec credential plugin: reads a fresh token from a file without importing slow
modules.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from aks_flex_node import atomic_file
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IDENTITY_FILE = "identity.json"  # in the kubelet's directory: the Azure identity of the node, with its secrets
TOKEN_CACHE_FILE = "azure-token.json"  # noqa: S105 - a file name: the token that was last issued with it
REFRESH_MARGIN_SECONDS = 300.0  # before its expiry, when a token is replaced


@frozen
class CachedToken:
    """A token with its lifetime and a digest of its identity."""

    value: str = field(repr=False)
    issued_at: float
    expires_at: float  # Unix times
    identity_digest: str = ""  # SHA-256 of the identity file that the token was issued for

    def is_fresh(self, now: float) -> bool:
        """Returns whether the token need not be replaced yet. Short-lived tokens are replaced after half their
        lifetime.
        """
        left = self.expires_at - now
        return self.issued_at <= now and left > min(REFRESH_MARGIN_SECONDS, (self.expires_at - self.issued_at) / 2)

    def is_valid(self, now: float) -> bool:
        return now < self.expires_at

    def exec_credential(self) -> dict[str, object]:
        """Returns the token as an ExecCredential (client.authentication.k8s.io)."""
        until = format_utc(self.expires_at)
        return {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": self.value, "expirationTimestamp": until},
        }


def get_cached_token(
    identity: Path, sign_in: Callable[[str], tuple[str, float]], now: Callable[[], float] = time.time
) -> CachedToken:
    """Returns a fresh token from the cache or from `sign_in`, which takes the identity text and returns the token and
    its expiry.

    If the sign-in fails, the cached token is used until it expires, because the authority can be temporarily
    unavailable.
    """
    text = identity.read_text()
    digest, file = hashlib.sha256(text.encode()).hexdigest(), identity.with_name(TOKEN_CACHE_FILE)
    known = read_cache(file)
    if known and known.identity_digest == digest and known.is_fresh(now()):
        return known
    begun = now()
    try:
        value, ends = sign_in(text)
    except Exception:
        if known and known.identity_digest == digest and known.is_valid(now()):
            return known
        raise
    issued = CachedToken(value, begun, ends, digest)
    write_cache(file, issued)
    return issued


def read_cache(file: Path) -> CachedToken | None:
    """Returns the cached token, or None if the file cannot be read."""
    try:
        known = json.loads(file.read_text())
        return CachedToken(
            str(known["token"]), float(known["begun"]), float(known["ends"]), str(known.get("identity", ""))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_cache(file: Path, token: CachedToken) -> None:
    """Writes the cache, readable by root only. Write failures are ignored: the token itself is still usable."""
    text = json.dumps(
        {"token": token.value, "begun": token.issued_at, "ends": token.expires_at, "identity": token.identity_digest}
    )
    with suppress(OSError):
        atomic_file.write(file, text.encode(), 0o600)
