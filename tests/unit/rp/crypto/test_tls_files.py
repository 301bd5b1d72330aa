"""Tests of TLS files that another program maintains, and of their reload."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from aks_flex_node.errors import ConfigError
from aks_flex_rp.crypto.tls_certificates import CertificateFiles, ServerTls, create_ca, sign_server_certificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_rp.crypto.tls_certificates import CertificateChain

NOW = 1_800_000_000.0
DAY = 86400.0


@dataclass(frozen=True)
class Files:
    given: CertificateFiles
    authority: CertificateChain

    def put(self, chain: CertificateChain, *, whole: bool = True) -> None:
        certificates = chain.certificates if whole else chain.certificates[:1]
        self.given.certificate.write_bytes(b"".join(each.public_bytes(Encoding.PEM) for each in certificates))
        self.given.key.write_bytes(chain.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def server(self, now: float = NOW) -> CertificateChain:
        return sign_server_certificate(self.authority, ("rp.example",), now)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(CertificateFiles(tmp_path / "tls.crt", tmp_path / "tls.key"), create_ca(NOW))
    made.given.key.touch(0o600)
    made.put(made.server())
    return made


def refused(files: Files, now: float = NOW) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        files.given.current(now)
    return caught.value


def test_tls_files_are_used_and_pin_included_ca(files: Files) -> None:
    assert files.given.current(NOW).pin == files.authority.pin


def test_certificate_chain_without_ca_has_no_pin(files: Files) -> None:
    files.put(files.server(), whole=False)
    assert files.given.current(NOW).pin == ""


def test_expired_or_not_yet_valid_certificate_is_refused(files: Files) -> None:
    assert refused(files, NOW + 366 * DAY).name == "tls-certificate-expired"
    assert refused(files, NOW - DAY).name == "tls-certificate-not-yet-valid"


def test_unreadable_tls_file_error_names_the_file(files: Files) -> None:
    files.given.certificate.write_text("nothing")
    assert "tls.crt contains no PEM certificate" in refused(files).message
    files.put(files.server())
    files.given.key.write_text("nothing")
    assert "tls.key contains no PEM private key" in refused(files).message
    files.given.certificate.unlink()
    assert "tls.crt: No such file" in refused(files).message


def test_password_protected_tls_key_is_refused(files: Files) -> None:
    key = files.authority.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    files.given.key.write_bytes(key)
    assert "password" in refused(files).message


def test_tls_key_may_be_group_readable_but_not_world_readable(files: Files) -> None:
    files.given.key.chmod(0o640)
    files.given.current(NOW)
    files.given.key.chmod(0o644)
    assert refused(files).name == "private-file-permissions"


def test_tls_refresh_loads_replaced_files(files: Files) -> None:
    serving = ServerTls(files.given, NOW)
    assert not serving.refresh(NOW)
    files.put(files.server(), whole=False)
    assert serving.refresh(NOW)
    assert serving.pin == ""


def test_tls_refresh_keeps_old_certificate_when_new_files_are_invalid(files: Files) -> None:
    serving = ServerTls(files.given, NOW)
    files.given.key.write_text("half of a")
    with pytest.raises(ConfigError):
        serving.refresh(NOW)
    assert serving.pin == files.authority.pin


def test_running_service_reloads_tls_files_and_logs_invalid_ones_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time()
    files.put(files.server(now))
    serving = ServerTls(files.given, now)

    async def run() -> None:
        keeping = asyncio.create_task(serving.run(0.01))
        files.given.key.write_text("half of a")
        await until(lambda: "remains in use" in caplog.text)
        await asyncio.sleep(0.05)  # some more iterations, which must log nothing new
        files.put(files.server(now), whole=False)
        await until(lambda: serving.pin == "")
        keeping.cancel()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert caplog.text.count("remains in use") == 1
    assert "Renewed the TLS certificate." in caplog.text


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("It did not come.")
