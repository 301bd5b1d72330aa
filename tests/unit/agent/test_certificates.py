"""Tests of a certificate's expiry, compared with a library, and of damaged certificates."""

from __future__ import annotations

import datetime
import errno
import os

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from aks_flex_node.agent.certificates import find_damage, validity
from tests.client_certificates import certificate_until, client_pem
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.config.builders import PEM

UTC = datetime.timezone.utc
KEY = ec.generate_private_key(ec.SECP256R1())


def end_of(pem: bytes) -> datetime.datetime | None:
    found = validity(pem)
    return found[1] if found else None


@pytest.mark.parametrize(
    "end",
    [
        datetime.datetime(2027, 2, 28, 23, 59, 58, tzinfo=UTC),
        datetime.datetime(1999, 12, 31, tzinfo=UTC),
        datetime.datetime(2049, 12, 31, 1, 2, 3, tzinfo=UTC),
        datetime.datetime(2050, 1, 1, tzinfo=UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
    ids=str,
)
def test_certificate_expiry_is_read_in_both_time_formats(end: datetime.datetime) -> None:
    assert end_of(certificate_until(end, KEY)) == end
    assert end_of(certificate_until(end, KEY, names=100)) == end


def test_expiry_is_of_the_first_certificate_and_keys_are_skipped() -> None:
    first = certificate_until(datetime.datetime(2030, 1, 1, tzinfo=UTC), KEY)
    key = b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"
    assert end_of(key + first + PEM.encode()) == datetime.datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"garbage",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMIIBITCByKADAgECAgEBMAoGCCqGSM49BAMC\n-----END CERTIFICATE-----\n",
        PEM[: len(PEM) // 2].encode(),
    ],
)
def test_unreadable_certificate_has_no_expiry(pem: bytes) -> None:
    assert validity(pem) is None


def test_truncated_certificate_does_not_raise() -> None:
    lines = PEM.splitlines(keepends=True)
    body = "".join(lines[1:-1]).replace("\n", "")
    for count in range(0, len(body), 4):
        validity(f"{lines[0]}{body[:count]}\n{lines[-1]}".encode())


FILE = "/pki/kubelet-client-current.pem"
INTACT = client_pem()
START = INTACT.index("-----BEGIN EC")
OTHER = client_pem(datetime.datetime(2048, 1, 1, tzinfo=UTC))
LINES = INTACT.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        ("", "is empty"),
        ("\0" * 99, "contains no readable certificate"),
        (INTACT[:START], "contains no readable private key"),
        (INTACT[START:], "contains no readable certificate"),
        (INTACT[:START] + OTHER[OTHER.index("-----BEGIN EC") :], "cannot be used together"),
        ("".join([*LINES[:-2], "AAAA" + LINES[-2][4:], LINES[-1]]), "cannot be used together"),
        (INTACT, ""),
    ],
    ids=["empty", "zeros", "no key", "no certificate", "another key", "changed key", "intact"],
)
def test_damage_of_a_certificate_with_its_key_is_named(content: str, damage: str) -> None:
    found = find_damage(RecordedHost({FILE: content}), FILE)
    assert damage in found
    assert bool(found) is bool(damage)


@pytest.mark.parametrize(("number", "damaged"), [(errno.EMFILE, False), (errno.ENOMEM, False), (errno.EACCES, True)])
def test_file_that_cannot_be_read_at_the_moment_is_not_damaged(number: int, damaged: bool) -> None:
    host = RecordedHost({FILE: INTACT})

    def refuse(_path: str) -> bytes:
        raise OSError(number, os.strerror(number))

    host.read = refuse  # type: ignore[assignment]
    assert bool(find_damage(host, FILE)) is damaged
