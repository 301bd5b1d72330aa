"""A node key in the hands of a test: what an agent signs with it, and what an attacker changes in that."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from aks_flex_node.api import node_keys


@dataclass(frozen=True)
class HeldKey:
    private: str = field(default_factory=node_keys.new_private_key)

    @property
    def public(self) -> node_keys.PublicKey:
        return node_keys.public_key(self.private)

    @property
    def thumbprint(self) -> str:
        return self.public.thumbprint

    def signed(self, header: dict[str, Any], claims: dict[str, Any]) -> str:
        """Returns a token with any header and claims, and a signature that is valid for them."""
        now = int(time.time())
        body = f"{_encoded(header)}.{_encoded({**claims, 'iat': now, 'exp': now + 60})}"
        key = load_pem_private_key(self.private.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        r, s = decode_dss_signature(key.sign(body.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{body}.{node_keys.encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def proof(self, audience: str, now: float | None = None) -> str:
        return node_keys.sign_proof(self.private, audience, time.time() if now is None else now)

    def url_proof(self, url: str, now: float | None = None) -> str:
        secret = url.partition("#")[0].rpartition("/")[2]
        return self.proof(node_keys.url_audience(secret), now)

    def assertion(
        self, resource: str, audience: str, begin: float | None = None, seconds: float = 300, kind: str = ""
    ) -> str:
        begin = time.time() if begin is None else begin
        claims = {"sub": resource.lower(), "aud": audience}
        made = node_keys.sign_tokens(
            self.private, kind or node_keys.ASSERTION_TYPE, claims, [(begin, begin + seconds)]
        )
        return made[0]


def with_header(token: str, **changes: Any) -> str:
    """Returns a token with another header, and the signature of before."""
    header, rest = token.split(".", 1)
    return f"{_encoded({**_decoded(header), **changes})}.{rest}"


def with_claims(token: str, **changes: Any) -> str:
    header, claims, signature = token.split(".")
    return f"{header}.{_encoded({**_decoded(claims), **changes})}.{signature}"


def _encoded(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def _decoded(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found
