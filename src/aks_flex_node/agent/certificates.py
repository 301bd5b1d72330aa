"""Reads the validity period of a PEM certificate, and finds damaged certificates, without a cryptography library."""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.host.host import Host

SEQUENCE, EXPLICIT_VERSION, UTC_TIME = 0x30, 0xA0, 0x17
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)

BOTH = ("CERTIFICATE", "PRIVATE KEY")
TRANSIENT_ERRORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE))  # they say nothing of the file
KEY = re.compile(rb"-----BEGIN (?:EC |RSA )?PRIVATE KEY-----(.+?)-----END (?:EC |RSA )?PRIVATE KEY-----", re.DOTALL)


def describe_expiry(host: Host, path: str) -> dict[str, object] | None:
    """Returns the expiry time of a certificate and the days until then for `status`, or None."""
    found = validity(host.read(path) or b"")
    if found is None:
        return None
    _, end = found
    left = end - datetime.now(timezone.utc)
    return {"expires": format_utc(end.timestamp()), "days": round(left.total_seconds() / 86400, 1)}


def validity(pem: bytes) -> tuple[datetime, datetime] | None:
    """Returns notBefore and notAfter of the first certificate in a PEM file, or None when none can be read."""
    found = PEM.search(pem)
    if found is None:
        return None
    try:
        _, certificate, _ = _element(base64.b64decode(found[1]))
        _, body, _ = _element(certificate)
        fields = _elements(body)
        if fields[0][0] == EXPLICIT_VERSION:
            fields = fields[1:]
        # Serial number, signature algorithm, issuer, validity.
        start, end = _elements(fields[3][1])
        return _time(*start), _time(*end)
    except (IndexError, ValueError, binascii.Error):
        return None


def has_block(pem: bytes, kind: str) -> bool:
    """Returns whether PEM data has a block of this kind that can be decoded: `CERTIFICATE` or `PRIVATE KEY`."""
    if kind == "CERTIFICATE":
        return validity(pem) is not None
    found = KEY.search(pem)
    try:
        return found is not None and bool(_element(base64.b64decode(found[1])))
    except (IndexError, ValueError, binascii.Error):
        return False


def find_damage(host: Host, path: str, kinds: Iterable[str] = BOTH) -> str:
    """Returns why a file does not have the certificate or key that it must have; empty if it has, or if that cannot
    be told at the moment.
    """
    if host.stat(path) is None:
        return "is missing"
    try:
        content = host.read(path)
    except OSError as error:
        return "" if error.errno in TRANSIENT_ERRORS else f"cannot be read: {error.strerror}"
    if content is None:
        return "cannot be read"
    if not content:
        return "is empty"
    missing = (kind for kind in kinds if not has_block(content, kind))
    damage = next((f"contains no readable {kind.lower()}" for kind in missing), "")
    return damage or (find_pair_damage(content) if set(kinds) == set(BOTH) else "")


def find_pair_damage(pem: bytes) -> str:
    """Returns why a program cannot use a certificate with the key in the same data; empty if it can."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # a short key is not damage
    file = os.memfd_create("pair", os.MFD_CLOEXEC)
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}", password=lambda: b"")
    except ssl.SSLError as error:
        return f"contains a certificate and a key that cannot be used together ({error.reason or 'not PEM'})"
    finally:
        os.close(file)
    return ""


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == UTC_TIME:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        tag, value, data = _element(data)
        found.append((tag, value))
    return found


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Splits DER data into the tag and value of its first element and the remaining bytes."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("truncated DER element")
    return tag, data[start : start + length], data[start + length :]
