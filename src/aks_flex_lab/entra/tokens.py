"""Signing keys with rotation, and access, identity and refresh tokens with Entra ID's claims."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraDirectory, EntraPrincipal


PUBLISHED_KEYS = 2


class SigningKeys:
    """Signing keys in a state directory, named by their creation time."""

    def __init__(self, state: Path) -> None:
        self._directory = state / "signing"
        self._read: dict[str, rsa.RSAPrivateKey] = {}

    def ensure(self) -> None:
        with file_lock(self._directory / ".lock", "the signing keys", wait=True):
            if not self._names():
                self._make()

    def rotate(self) -> None:
        """Creates a new signing key; the previous one is still published."""
        with file_lock(self._directory / ".lock", "the signing keys", wait=True):
            self._make()
            for name in self._names()[:-PUBLISHED_KEYS]:
                (self._directory / name).unlink()

    def sign(self, claims: Mapping[str, Any]) -> str:
        name = self._names()[-1]
        key = self._key(name)
        return jwt.encode(dict(claims), key, "RS256", headers={"kid": key_id(key), "x5t": key_id(key)})

    def verify(self, token: str, audience: list[str] | None = None) -> dict[str, Any] | None:
        """Returns the claims of a valid token that one of the keys signed, or else None."""
        for name in self._names():
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    self._key(name).public_key(),
                    algorithms=["RS256"],
                    audience=audience,
                    options={"require": ["exp"], "verify_aud": audience is not None},
                )
            except jwt.PyJWTError:
                continue
            return claims
        return None

    def jwks(self) -> dict[str, Any]:
        """Returns the document at `jwks_uri`."""
        return {"keys": [_public_jwk(self._key(name)) for name in self._names()]}

    def _make(self) -> None:
        key = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_atomically(self._directory / f"{time.time_ns():020d}.pem", pem, 0o600)

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._directory.glob("*.pem"))

    def _key(self, name: str) -> rsa.RSAPrivateKey:
        if name not in self._read:
            key = serialization.load_pem_private_key((self._directory / name).read_bytes(), None)
            assert isinstance(key, rsa.RSAPrivateKey)  # noqa: S101 - we made it ourselves, above
            self._read[name] = key
        return self._read[name]


def key_id(key: rsa.RSAPrivateKey) -> str:
    number = key.public_key().public_numbers().n
    return _base64url(hashlib.sha256(number.to_bytes(256, "big")).digest()[:20])


def _public_jwk(key: rsa.RSAPrivateKey) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {
        "kty": "RSA",
        "use": "sig",
        "kid": key_id(key),
        "x5t": key_id(key),
        "n": _base64url(numbers.n.to_bytes(256, "big")),
        "e": _base64url(numbers.e.to_bytes(3, "big")),
    }


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unique_token_id() -> str:
    return _base64url(uuid.uuid4().bytes)


REFRESH_AUDIENCE = "urn:aks-flex-lab:refresh"  # audience of a refresh token, which only this authority accepts
REFRESH_SECONDS = 86400


@dataclass(frozen=True)
class TokenIssuer:
    directory: EntraDirectory
    keys: SigningKeys
    base: str  # URL of the authority, for example https://login.flex.internal

    @property
    def issuer(self) -> str:
        """The issuer of v2.0 metadata and of identity tokens."""
        return f"{self.base}/{self.directory.tenant}/v2.0"

    @property
    def older_issuer(self) -> str:
        """The issuer of v1.0 metadata and of access tokens for ARM and AKS."""
        return f"https://sts.windows.net/{self.directory.tenant}/"

    def access_token(self, principal: EntraPrincipal, resource: str, client_id: str = "") -> str:
        tenant = self.directory.tenant
        return self.keys.sign(
            {
                **self._times(principal.token_seconds),
                "aud": resource,
                "iss": self.older_issuer,
                "idp": self.older_issuer,
                "appid": principal.client_id or client_id,
                "appidacr": "1" if principal.secret else "2",
                "oid": principal.object_id,
                "sub": principal.object_id,
                "tid": tenant,
                "uti": unique_token_id(),
                "ver": "1.0",
                **_principal_claims(principal),
            }
        )

    def id_token(self, principal: EntraPrincipal, client_id: str, nonce: str = "") -> str:
        """Issues an identity token with the user and the nonce of the request."""
        claims = {"preferred_username": principal.name, "name": principal.name, "oid": principal.object_id}
        who = {"iss": self.issuer, "aud": client_id, "tid": self.directory.tenant, "sub": principal.object_id}
        more = _group_claims(principal) | ({"nonce": nonce} if nonce else {})
        times = self._times(principal.token_seconds)
        return self.keys.sign({**times, **who, **claims, **more, "uti": unique_token_id(), "ver": "2.0"})

    def refresh_token(self, principal: EntraPrincipal) -> str:
        return self.keys.sign({**self._times(REFRESH_SECONDS), "aud": REFRESH_AUDIENCE, "oid": principal.object_id})

    def redeem_refresh_token(self, token: str) -> EntraPrincipal | None:
        claims = self.keys.verify(token, [REFRESH_AUDIENCE])
        return self.directory.find(str(claims["oid"]), "user") if claims else None

    def client_info(self, principal: EntraPrincipal) -> str:
        document = json.dumps({"uid": principal.object_id, "utid": self.directory.tenant})
        return base64.urlsafe_b64encode(document.encode()).rstrip(b"=").decode()

    @staticmethod
    def _times(seconds: float) -> dict[str, int]:
        now = int(time.time())
        return {"iat": now, "nbf": now, "exp": now + int(seconds)}


def _principal_claims(principal: EntraPrincipal) -> dict[str, Any]:
    """Returns the claims that differ between service principals, managed identities and users."""
    groups = _group_claims(principal)
    if principal.kind == "managedIdentity":
        return {"idtyp": "app", "xms_mirid": principal.resource_id, **groups}
    if principal.kind == "servicePrincipal":
        return {"idtyp": "app", **groups}
    named = {"upn": principal.name, "unique_name": principal.name, "scp": "user_impersonation"}
    return {"idtyp": "user", **named, **groups}


def _group_claims(principal: EntraPrincipal) -> dict[str, Any]:
    return {"groups": list(principal.groups)} if principal.groups else {}


def resource_of(scope: str) -> str:
    """Returns the audience of a scope: `https://x` for `https://x/.default`."""
    scopes = [each for each in scope.split() if each not in {"openid", "profile", "offline_access", "email"}]
    return scopes[0].rpartition("/")[0] if scopes and "/" in scopes[0] else "".join(scopes[:1])
