"""Reads the validity period of a PEM certificate without a cryptography library."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime, timezone

SEQUENCE, EXPLICIT_VERSION, UTC_TIME = 0x30, 0xA0, 0x17
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


def expiry(pem: bytes) -> datetime | None:
    """Returns the expiry time of the first certificate in a PEM file, or None when no certificate can be read."""
    found = validity(pem)
    return found[1] if found else None


def validity(pem: bytes) -> tuple[datetime, datetime] | None:
    """Returns notBefore and notAfter of the first certificate in a PEM file, or None when none can be read."""
    found = PEM.search(pem)
    if found is None:
        return None
    try:
        return _validity(base64.b64decode(found[1]))
    except (IndexError, ValueError, binascii.Error):
        return None


def _validity(der: bytes) -> tuple[datetime, datetime]:
    _, certificate, _ = _element(der)
    _, body, _ = _element(certificate)
    fields = _elements(body)
    if fields[0][0] == EXPLICIT_VERSION:
        fields = fields[1:]
    # Serial number, signature algorithm, issuer, validity.
    start, end = _elements(fields[3][1])
    return _time(*start), _time(*end)


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
