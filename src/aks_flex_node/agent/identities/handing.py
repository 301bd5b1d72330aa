"""Tokens of the node's Azure identity for the API server, as a kubelet asks for them: often, and in a hurry.

What is good for a while longer is handed out of a file, and nothing large is imported for that.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IDENTITY = "identity.json"  # in the kubelet's directory: who the node is to Azure, with its secrets
KEPT = "azure-token.json"  # and the token that was last got with it
MARGIN = 300.0  # seconds before its end at which a token is replaced


@dataclass(frozen=True)
class Handed:
    """A token, for whom it was made out, and its life."""

    value: str = field(repr=False)
    begun: float
    ends: float  # unix times
    identity: str = ""  # a fingerprint of the identity that it is of

    def is_fresh(self, now: float) -> bool:
        """Whether it lasts a while; one of a short life is replaced after half of it."""
        left = self.ends - now
        return self.begun <= now and left > min(MARGIN, (self.ends - self.begun) / 2)

    def lasts(self, now: float) -> bool:
        return now < self.ends

    def credential(self) -> dict[str, object]:
        """As a kubelet reads it (client.authentication.k8s.io)."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.ends))
        return {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": self.value, "expirationTimestamp": until},
        }


def hand(identity: Path, sign_in: Callable[[str], tuple[str, float]], now: Callable[[], float] = time.time) -> Handed:
    """A token that lasts a while. `sign_in` gets one with the text of the identity: its value, and when it ends.

    Who cannot get a new one uses the old one as long as it is any good: whoever signs us in may be away for a while.
    """
    text = identity.read_text()
    mark, file = hashlib.sha256(text.encode()).hexdigest(), identity.with_name(KEPT)
    known = read(file)
    if known and known.identity == mark and known.is_fresh(now()):
        return known
    begun = now()
    try:
        value, ends = sign_in(text)
    except Exception:
        if known and known.identity == mark and known.lasts(now()):
            return known
        raise
    got = Handed(value, begun, ends, mark)
    keep(file, got)
    return got


def read(file: Path) -> Handed | None:
    """What was kept; nothing when it cannot be read."""
    try:
        known = json.loads(file.read_text())
        return Handed(
            str(known["token"]), float(known["begun"]), float(known["ends"]), str(known.get("identity", ""))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(file: Path, token: Handed) -> None:
    """For root's eyes from the first moment. A disk that is full keeps nobody from using what was got."""
    text = json.dumps({"token": token.value, "begun": token.begun, "ends": token.ends, "identity": token.identity})
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as out:
                out.write(text)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
