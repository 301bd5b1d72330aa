"""Signing keys with rotation, and access, identity and refresh tokens with Entra ID's claims."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraDirectory, EntraPrincipal


class SigningKey:
    """The key in a state directory that signs all tokens."""

    def __init__(self, state: Path) -> None:
        self._file = state / "signing.pem"

    def ensure(self) -> None:
        with file_lock(self._file.with_suffix(".lock"), "the signing key", wait=True):
            if not self._file.exists():
                key = rsa.generate_private_key(65537, 2048)
                form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                write_atomically(self._file, key.private_bytes(serialization.Encoding.PEM, form, plain), 0o600)

    def sign(self, claims: Mapping[str, Any]) -> str:
        return jwt.encode(dict(claims), self._key, "RS256", headers={"kid": self._id, "x5t": self._id})

    def verify(self, token: str, audience: list[str]) -> dict[str, Any] | None:
        """Returns the claims of a valid token that the key signed, or else None."""
        try:
            claims: dict[str, Any] = jwt.decode(
                token, self._key.public_key(), ["RS256"], audience=audience, options={"require": ["exp"]}
            )
        except jwt.PyJWTError:
            return None
        return claims

    def jwks(self) -> dict[str, Any]:
        """Returns the document at `jwks_uri`."""
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [{**public, "use": "sig", "kid": self._id, "x5t": self._id}]}

    @cached_property
    def _key(self) -> rsa.RSAPrivateKey:
        key = serialization.load_pem_private_key(self._file.read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)  # noqa: S101 - we made it ourselves, above
        return key

    @property
    def _id(self) -> str:
        number = self._key.public_key().public_numbers().n
        return _base64url(hashlib.sha256(number.to_bytes(256, "big")).digest()[:20])


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


REFRESH_AUDIENCE = "urn:aks-flex-lab:refresh"  # audience of a refresh token, which only this authority accepts
TOKEN_SECONDS = 3600
REFRESH_SECONDS = 86400


@dataclass(frozen=True)
class TokenIssuer:
    directory: EntraDirectory
    keys: SigningKey
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
                **self._times(),
                "aud": resource,
                "iss": self.older_issuer,
                "idp": self.older_issuer,
                "appid": principal.client_id or client_id,
                "appidacr": "1" if principal.secret else "2",
                "oid": principal.object_id,
                "sub": principal.object_id,
                "tid": tenant,
                "uti": str(uuid.uuid4()),
                "ver": "1.0",
                **_principal_claims(principal),
            }
        )

    def id_token(self, principal: EntraPrincipal, client_id: str, nonce: str = "") -> str:
        """Issues an identity token with the user and the nonce of the request."""
        claims = {"preferred_username": principal.name, "name": principal.name, "oid": principal.object_id}
        who = {"iss": self.issuer, "aud": client_id, "tid": self.directory.tenant, "sub": principal.object_id}
        more = _group_claims(principal) | ({"nonce": nonce} if nonce else {})
        times = self._times()
        return self.keys.sign({**times, **who, **claims, **more, "uti": str(uuid.uuid4()), "ver": "2.0"})

    def refresh_token(self, principal: EntraPrincipal) -> str:
        return self.keys.sign({**self._times(REFRESH_SECONDS), "aud": REFRESH_AUDIENCE, "oid": principal.object_id})

    def redeem_refresh_token(self, token: str) -> EntraPrincipal | None:
        claims = self.keys.verify(token, [REFRESH_AUDIENCE])
        return self.directory.find(str(claims["oid"]), "user") if claims else None

    def client_info(self, principal: EntraPrincipal) -> str:
        return _base64url(json.dumps({"uid": principal.object_id, "utid": self.directory.tenant}).encode())

    @staticmethod
    def _times(seconds: int = TOKEN_SECONDS) -> dict[str, int]:
        now = int(time.time())
        return {"iat": now, "nbf": now, "exp": now + seconds}


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
