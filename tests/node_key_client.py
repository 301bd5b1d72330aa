"""A node key in the hands of a test: what an agent signs with it, and what an attacker changes in that."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any

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
