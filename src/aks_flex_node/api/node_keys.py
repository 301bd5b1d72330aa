"""Node keys on the wire: the proof that a client has a key, and the assertions with which a node authenticates.

Both are JSON web tokens, signed with ES256 by an EC P-256 key that only the node has. They contain the public key,
and the resource provider knows the key by its thumbprint (RFC 7638). The `typ` of the two differs, so that one is
never accepted as the other.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_HEADER = "Aks-Flex-Node-Key"  # of the request for a config URL: the proof
AUDIENCE_HEADER = "Aks-Flex-Node-Key-Audience"  # of its response: the key is bound, and assertions name this audience
AUDIENCE_PREFIX = "aks-flex-rp:"
ALGORITHM = "ES256"
PROOF_TYPE = "aks-flex-node-key+jwt"
ASSERTION_TYPE = "aks-flex-node+jwt"
PROOF_SECONDS = 300  # longest validity of a proof
ASSERTION_SECONDS = 300  # longest validity of an assertion
MAX_TOKEN_LENGTH = 2048  # characters of a proof or an assertion
SHOWN_CHARACTERS = 12  # of a thumbprint in messages


@dataclass(frozen=True)
class PublicKey:
    """The public part of a node key: the coordinates of its point, as in a JSON web key."""

    x: str
    y: str

    @property
    def jwk(self) -> dict[str, str]:
        return {"crv": "P-256", "kty": "EC", "x": self.x, "y": self.y}

    @property
    def thumbprint(self) -> str:
        text = json.dumps(self.jwk, sort_keys=True, separators=(",", ":"))
        return encode(hashlib.sha256(text.encode()).digest())


def short(thumbprint: str) -> str:
    """Returns a thumbprint as messages show it."""
    return f"{thumbprint[:SHOWN_CHARACTERS]}…" if thumbprint else "no key"


def fingerprint(thumbprint: str) -> str:
    """Returns what two people compare to make sure that they mean the same key: four groups of four characters."""
    digest = hashlib.sha256(thumbprint.encode()).hexdigest()[:16]
    return "-".join(digest[start : start + 4] for start in range(0, 16, 4))


def url_audience(secret: str) -> str:
    """Returns the audience of a proof for a config URL: it names the URL, and does not reveal it."""
    return encode(hashlib.sha256(secret.encode()).digest())


def rotation_audience(node_id: str, thumbprint: str) -> str:
    """Returns the audience of the consent of a current key that another one replaces it."""
    return f"{node_id} {thumbprint}"


def new_private_key() -> str:
    """Returns a new private key (PEM)."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - slow to import

    made = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def public_key(private_key: str) -> PublicKey:
    """Returns the public part of a private key (PEM). Raises ValueError if it is not an EC P-256 key."""
    return _public_part(_loaded(private_key))


def sign_proof(private_key: str, audience: str, now: float) -> str:
    """Returns the proof that the caller has the key, for one config URL or one node."""
    return sign_tokens(private_key, PROOF_TYPE, {"aud": audience}, [(now, now + PROOF_SECONDS)])[0]


def sign_tokens(
    private_key: str, kind: str, claims: Mapping[str, Any], periods: list[tuple[float, float]]
) -> list[str]:
    """Returns a token for each period of validity. Raises ValueError if the key cannot be used."""
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature  # noqa: PLC0415 - slow to import

    key = _loaded(private_key)
    header = _encoded_json({"alg": ALGORITHM, "typ": kind, "jwk": _public_part(key).jwk})
    tokens = []
    for begin, end in periods:
        body = f"{header}.{_encoded_json({**claims, 'iat': int(begin), 'exp': int(end)})}"
        r, s = decode_dss_signature(key.sign(body.encode(), ec.ECDSA(hashes.SHA256())))
        tokens.append(f"{body}.{encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}")
    return tokens


def encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _encoded_json(document: Mapping[str, Any]) -> str:
    return encode(json.dumps(document, separators=(",", ":")).encode())


def _loaded(private_key: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - slow to import

    try:
        key = load_pem_private_key(private_key.encode(), None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("it is not an EC P-256 key")
    return key


def _public_part(key: Any) -> PublicKey:
    numbers = key.public_key().public_numbers()
    return PublicKey(*(encode(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y)))
