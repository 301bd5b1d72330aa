"""The key that signs a package repository: read as OpenPGP writes it (RFC 4880), and known by its fingerprint. Pure.

apt believes every key in the file that it is given. So all of them must be among those that are expected, and what
apt gets is what was read here, packet by packet, and not the text that was fetched.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING

from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ARMOUR = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+: [^\r\n]*\r?\n)*\r?\n(?P<body>[A-Za-z0-9+/=\s]+?)"
    r"(?:\r?\n=[A-Za-z0-9+/]{4})?\s*-----END PGP PUBLIC KEY BLOCK-----"
)
PUBLIC_KEY = 6


def checked(text: str, expected: Iterable[str], where: str) -> bytes:
    """The keyring for apt, when every key in it is one of those that are expected."""
    try:
        ring = b"".join(_blocks(text))
        found = [_fingerprint(body) for tag, body in _packets(ring) if tag == PUBLIC_KEY]
    except (ValueError, IndexError, binascii.Error):
        found = []
    if not found:
        raise ArtifactError(
            "package-key-unreadable",
            f"{where} is not a public OpenPGP key in ASCII armour.",
            "Check azure.arc.package.keyURL; a proxy or a sign-in page may have answered in its place.",
        )
    allowed = {each.replace(" ", "").upper() for each in expected}
    if strange := [each for each in found if each not in allowed]:
        raise ArtifactError(
            "package-key-wrong",
            f"The key at {where} is not the one that is expected: its fingerprint is {strange[0]}.",
            "Nothing was installed. If the repository has a new key that you trust, name its fingerprint in "
            "azure.arc.package.keyFingerprints.",
        )
    return ring


def _blocks(text: str) -> Iterator[bytes]:
    for block in ARMOUR.finditer(text):
        yield base64.b64decode("".join(block["body"].split()), validate=True)


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and body of each packet; one whose length is not told has no place in a key."""
    at = 0
    while at < len(data):
        first = data[at]
        if not first & 0x80:
            raise ValueError("not a packet")
        tag, start, size = _new(data, at) if first & 0x40 else _old(data, at)
        body = data[start : start + size]
        if len(body) != size:
            raise ValueError("cut off")
        yield tag, body
        at = start + size


def _old(data: bytes, at: int) -> tuple[int, int, int]:
    width = {0: 1, 1: 2, 2: 4}.get(data[at] & 3)
    if width is None:
        raise ValueError("without a length")
    return (data[at] >> 2) & 15, at + 1 + width, int.from_bytes(data[at + 1 : at + 1 + width], "big")


def _new(data: bytes, at: int) -> tuple[int, int, int]:
    tag, first = data[at] & 63, data[at + 1]
    if first < 192:
        return tag, at + 2, first
    if first < 224:
        return tag, at + 3, ((first - 192) << 8) + data[at + 2] + 192
    if first == 255:
        return tag, at + 6, int.from_bytes(data[at + 2 : at + 6], "big")
    raise ValueError("in parts")


def _fingerprint(body: bytes) -> str:
    if body[0] != 4:
        raise ValueError("of another version")
    told = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.sha1(told, usedforsecurity=False).hexdigest().upper()
