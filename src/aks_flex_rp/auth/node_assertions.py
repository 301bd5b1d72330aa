"""Verifies what a node signs with its key: the proof at the fetch of a config URL or a rotation, and assertions.

The token contains the public key. It decides nothing by itself: an assertion is verified only if the thumbprint of
its key is one that the node which it names is bound to. The curve and the algorithm are fixed. Everything that the
token shows by itself is verified before the node is looked up, so that a client without a key causes no work there.
"""

from __future__ import annotations

import base64
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from aks_flex_node.api.node_keys import (
    ALGORITHM,
    ASSERTION_SECONDS,
    ASSERTION_TYPE,
    MAX_TOKEN_LENGTH,
    PROOF_SECONDS,
    PROOF_TYPE,
    PublicKey,
    encode,
    short,
)
from aks_flex_rp.auth.auth_errors import Unauthenticated
from aks_flex_rp.callers import Caller, CallerKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.auth.auth_errors import AuthErrorCode
    from aks_flex_rp.callers import NodeRef
    from aks_flex_rp.node_keys import NodeKeys

CLOCK_SECONDS = 60  # allowed clock difference
COORDINATE_BYTES = 32
OTHER_AUDIENCE = "is for something else: its audience differs."
_ECDSA = ec.ECDSA(hashes.SHA256())
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_HEADER = {"alg", "typ", "jwk"}
_COORDINATE = re.compile(r"[A-Za-z0-9_-]{43}")
_SUBJECT = re.compile(
    r"(/subscriptions/[^/]+/resourcegroups/[^/]+/providers/[^/]+/managedclusters/[^/]+)"
    r"/flexnodeconfig/([^/]+)"
)


class InvalidNodeKey(Exception):  # noqa: N818 - a response
    """A proof or an assertion is not valid. `is_time` means that only its time is wrong."""

    def __init__(self, why: str, *, is_time: bool = False) -> None:
        super().__init__(why)
        self.why, self.is_time = why, is_time


@dataclass(frozen=True)
class SignedAssertion:
    """An assertion whose signature and time are valid. Whether its key is the node's is not known yet."""

    node: NodeRef
    thumbprint: str
    audience: str
    source: str = ""  # address of the client


@dataclass(frozen=True)
class KnownNode:
    """What the service knows of the node that an assertion names."""

    audience: str
    keys: NodeKeys


def is_assertion(token: str) -> bool:
    """Returns whether a bearer token claims to be signed by a node key."""
    return _header(token).get("typ") == ASSERTION_TYPE if len(token) <= MAX_TOKEN_LENGTH else False


def verify_proof(token: str, audience: str, clock: Callable[[], float] = time.time) -> str:
    """Verifies that a client has the key which it shows, and returns the thumbprint. Raises InvalidNodeKey."""
    key = _public_key(token, PROOF_TYPE)
    claims = _claims(token, key)
    if claims["aud"] != audience:
        raise InvalidNodeKey(OTHER_AUDIENCE)
    _check_period(claims, PROOF_SECONDS, clock())
    return key.thumbprint


async def verify_assertion(
    token: str,
    find: Callable[[SignedAssertion], Awaitable[KnownNode | None]],
    clock: Callable[[], float] = time.time,
    source: str = "",
) -> tuple[Caller, float]:
    """Returns the caller of an assertion and when the assertion expires. Raises Unauthenticated."""
    try:
        key = _public_key(token, ASSERTION_TYPE)
        claims = _claims(token, key)
        _check_period(claims, ASSERTION_SECONDS, clock())
        thumbprint, node, audience = key.thumbprint, _subject(claims), claims["aud"]
        if not isinstance(audience, str) or not audience:
            raise InvalidNodeKey(OTHER_AUDIENCE)
        known = await find(SignedAssertion(node, thumbprint, audience, source)) if node else None
        if node is None or known is None or thumbprint not in known.keys.known:
            raise Unauthenticated(
                "NodeKeyNotKnown",
                f"The key {short(thumbprint)} does not belong to the node that the request names. Create a new "
                "join command for the node, and run it on its machine.",
            )
        if audience != known.audience:
            raise InvalidNodeKey(OTHER_AUDIENCE)
    except InvalidNodeKey as error:
        code: AuthErrorCode = "NodeKeyTimeInvalid" if error.is_time else "InvalidAuthenticationToken"
        raise Unauthenticated(code, f"The assertion of the node key {error.why}") from None
    name = f"node {node[1]} (key {short(thumbprint)})"
    return Caller(thumbprint, name, CallerKind.NODE_KEY, node=node), float(claims["exp"]) + CLOCK_SECONDS


def _public_key(token: str, kind: str) -> PublicKey:
    """Returns the key that a token contains, which is not verified yet."""
    if len(token) > MAX_TOKEN_LENGTH:
        raise InvalidNodeKey(f"is longer than {MAX_TOKEN_LENGTH} characters.")
    header = _header(token) if _TOKEN.fullmatch(token) else {}
    if set(header) != _HEADER or header["typ"] != kind or header["alg"] != ALGORITHM:
        raise InvalidNodeKey(f"is not a JSON web token of type {kind}, signed with {ALGORITHM}.")
    named = header.get("jwk")
    found = named if isinstance(named, dict) else {}
    key = PublicKey(str(found.get("x", "")), str(found.get("y", "")))
    if found != key.jwk or not all(_is_coordinate(each) for each in (key.x, key.y)):
        raise InvalidNodeKey("has no public key of the curve P-256.")
    return key


def _is_coordinate(text: str) -> bool:
    """Returns whether the text is the only encoding of its bytes. With another one, a revoked key would have another
    thumbprint.
    """
    return _COORDINATE.fullmatch(text) is not None and encode(decoded_part(text)) == text


def _claims(token: str, key: PublicKey) -> dict[str, Any]:
    """Verifies the signature, and returns the claims, of which one is the audience.

    Done here, and not by a library that supports all kinds of tokens: that takes twice the time, and every node
    presents a fresh assertion every few minutes.
    """
    signed, _, encoded = token.rpartition(".")
    try:
        point, signature = b"\x04" + decoded_part(key.x) + decoded_part(key.y), decoded_part(encoded)
        if len(signature) != 2 * COORDINATE_BYTES:
            raise InvalidNodeKey("has no signature of ES256.")
        r, s = (int.from_bytes(each, "big") for each in (signature[:COORDINATE_BYTES], signature[COORDINATE_BYTES:]))
        public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        public.verify(encode_dss_signature(r, s), signed.encode(), _ECDSA)
        claims = dict(json.loads(decoded_part(signed.partition(".")[2])))
        if "aud" not in claims:
            raise InvalidNodeKey(OTHER_AUDIENCE)
    except InvalidSignature:
        raise InvalidNodeKey("has an invalid signature.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidNodeKey("cannot be parsed.") from None
    return claims


def _check_period(claims: dict[str, Any], longest: int, now: float) -> None:
    begin, end = claims.get("iat"), claims.get("exp")
    if type(begin) is not int or type(end) is not int or not 0 < end - begin <= longest:
        raise InvalidNodeKey(f"is not valid for at most {longest} seconds.")
    if not begin - CLOCK_SECONDS <= now < end + CLOCK_SECONDS:
        raise InvalidNodeKey("has expired, or is not valid yet. Check the clock of the machine.", is_time=True)


def _subject(claims: dict[str, Any]) -> NodeRef | None:
    """Returns the cluster and the node that the assertion names."""
    found = _SUBJECT.fullmatch(str(claims.get("sub", "")))
    return (found[1], found[2]) if found else None


def _header(token: str) -> dict[str, Any]:
    try:
        found = json.loads(decoded_part(token.partition(".")[0]))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def decoded_part(part: str) -> bytes:
    """Decodes a part of a JSON web token."""
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
