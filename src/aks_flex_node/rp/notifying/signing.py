"""Signatures as Standard Webhooks has them: HMAC-SHA256 over the message's id, the moment of sending and the body."""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp import private_files

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64  # bytes of a secret
MOST = 2  # secrets while one takes the other's place


def read_secrets(file: Path) -> tuple[bytes, ...]:
    """The newest first. Read anew for every batch, so that a changed file counts at once."""
    lines = private_files.read(file).decode("ascii", "replace").split()
    found = [_decoded(line) for line in lines]
    if not 1 <= len(found) <= MOST or None in found:
        raise ConfigError(
            "webhook-secret-malformed",
            f"{file} holds no secret for a webhook: one or two lines, each {PREFIX} and {SHORTEST} to {LONGEST} "
            "bytes in base64.",
            f'Make one with `(umask 077; echo "{PREFIX}$(openssl rand -base64 32)" > {file})`.',
        )
    return tuple(each for each in found if each)


def _decoded(line: str) -> bytes | None:
    try:
        secret = base64.b64decode(line.removeprefix(PREFIX), validate=True)
    except ValueError:
        return None
    return secret if SHORTEST <= len(secret) <= LONGEST else None


def headers(secrets: tuple[bytes, ...], message: str, body: bytes, now: int) -> dict[str, str]:
    """A signature for each secret: a receiver that knows any of them can tell that it comes from here."""
    signed = f"{message}.{now}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)
    return {
        "webhook-id": message,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }
