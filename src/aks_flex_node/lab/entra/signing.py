"""The keys that tokens are signed with. The newest signs; the one before it is still shown, as Entra ID does."""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from aks_flex_node.lab.files import locked, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHOWN = 2


class SigningKeys:
    """Keys in a state directory, named by the moment they were made."""

    def __init__(self, state: Path) -> None:
        self._room = state / "signing"
        self._read: dict[str, rsa.RSAPrivateKey] = {}

    def ensure(self) -> None:
        with locked(self._room / ".lock", "the signing keys", wait=True):
            if not self._names():
                self._make()

    def rotate(self) -> None:
        """A new key signs from now on; of the older ones, the last is still shown."""
        with locked(self._room / ".lock", "the signing keys", wait=True):
            self._make()
            for name in self._names()[:-SHOWN]:
                (self._room / name).unlink()

    def sign(self, claims: Mapping[str, Any]) -> str:
        name = self._names()[-1]
        key = self._key(name)
        return jwt.encode(dict(claims), key, "RS256", headers={"kid": key_id(key), "x5t": key_id(key)})

    def verified(self, token: str, audience: list[str] | None = None) -> dict[str, Any] | None:
        """The claims of a token that one of our keys signed and that has not expired; None for any other."""
        for name in self._names():
            try:
                told: dict[str, Any] = jwt.decode(
                    token,
                    self._key(name).public_key(),
                    algorithms=["RS256"],
                    audience=audience,
                    options={"require": ["exp"], "verify_aud": audience is not None},
                )
            except jwt.PyJWTError:
                continue
            return told
        return None

    def shown(self) -> dict[str, Any]:
        """The document at `jwks_uri`."""
        return {"keys": [_shown(self._key(name)) for name in self._names()]}

    def _make(self) -> None:
        key = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_atomically(self._room / f"{time.time_ns():020d}.pem", pem, 0o600)

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._room.glob("*.pem"))

    def _key(self, name: str) -> rsa.RSAPrivateKey:
        if name not in self._read:
            key = serialization.load_pem_private_key((self._room / name).read_bytes(), None)
            assert isinstance(key, rsa.RSAPrivateKey)  # noqa: S101 - we made it ourselves, above
            self._read[name] = key
        return self._read[name]


def key_id(key: rsa.RSAPrivateKey) -> str:
    number = key.public_key().public_numbers().n
    return _text(hashlib.sha256(number.to_bytes(256, "big")).digest()[:20])


def _shown(key: rsa.RSAPrivateKey) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {
        "kty": "RSA",
        "use": "sig",
        "kid": key_id(key),
        "x5t": key_id(key),
        "n": _text(numbers.n.to_bytes(256, "big")),
        "e": _text(numbers.e.to_bytes(3, "big")),
    }


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unique() -> str:
    return _text(uuid.uuid4().bytes)
