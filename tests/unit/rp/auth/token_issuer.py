"""A tenant that signs tokens, without a network."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from aks_flex_rp.auth.auth_settings import AuthSettings, TenantSettings
from aks_flex_rp.auth.token_verifier import TokenVerifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.auth.tenant_keys import Fetch

TENANT = "aaaaaaaa-0000-4000-8000-000000000001"
STRANGER = "bbbbbbbb-0000-4000-8000-000000000002"
OID = "cccccccc-0000-4000-8000-000000000003"
APP = "dddddddd-0000-4000-8000-000000000004"
AUDIENCE = "api://aks-flex-rp"
V1 = f"https://sts.windows.net/{TENANT}/"
V2 = f"https://login.example/{TENANT}/v2.0"
JWKS = "https://login.example/keys"


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Returns an RSA key, generated once for all tests because it is slow."""
    return rsa.generate_private_key(65537, bits)


@cache
def curve_key(curve: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key({"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}[curve])


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def claims(**changes: Any) -> dict[str, Any]:
    """Returns the claims of a token; None removes a claim."""
    now = int(time.time())
    who = {"tid": TENANT, "oid": OID, "sub": OID, "appid": APP, "idtyp": "app", "ver": "1.0"}
    what = {"aud": AUDIENCE, "iss": V1, "iat": now, "nbf": now, "exp": now + 3600}
    return {name: value for name, value in {**who, **what, **changes}.items() if value is not None}


@dataclass
class Issuer:
    """A tenant whose metadata and keys are returned by `fetch`; `away` makes it unavailable."""

    keys: dict[str, Any] = field(default_factory=lambda: {"first": rsa_key("first")})
    issuer: str = V2
    away: bool = False
    asked: list[str] = field(default_factory=list)

    def sign(self, key_id: str = "first", algorithm: str = "RS256", **changes: Any) -> str:
        return jwt.encode(claims(**changes), self.keys[key_id], algorithm, headers={"kid": key_id})

    def fetch(self, address: str) -> Any:
        self.asked.append(address)
        if self.away:
            raise OSError("connection refused")
        if address == JWKS:
            return {"keys": [self._shown(key_id, key) for key_id, key in self.keys.items()]}
        return {"issuer": self.issuer, "jwks_uri": JWKS}

    @staticmethod
    def _shown(key_id: str, key: Any) -> dict[str, Any]:
        public = key.public_key()
        kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        return {**json.loads(kind.to_jwk(public)), "kid": key_id, "use": "sig"}

    def tokens(self, **options: Any) -> TokenVerifier:
        settings = AuthSettings(tenants=(TenantSettings(tenant_id=TENANT, audiences=(AUDIENCE,)),))
        fetch: Callable[[TenantSettings], Fetch] = lambda _: self.fetch  # noqa: E731
        return TokenVerifier(settings, fetch=fetch, **options)


def bearer(token: str) -> str:
    return f"Bearer {token}"
