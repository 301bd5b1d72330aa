"""Debian's headless Chromium, driven by Playwright: nothing is downloaded, and only the test's key is trusted."""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

PROGRAM = Path("/usr/bin/chromium-headless-shell")
# Disables Chromium's background requests, which a closed network rejects.
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)


@contextmanager
def running_browser(trusted: Path, authority: Path) -> Iterator[Browser]:
    """Yields a browser that trusts only the server with this certificate.

    Chromium reads CAs from a database that needs a separate tool. Instead, the key's fingerprint is trusted. This is
    stricter than ignoring all certificate errors: pages of other servers are still rejected.
    """
    assert PROGRAM.exists(), "Debian's package chromium-headless-shell is not installed; `make test` installs it."
    trust = f"--ignore-certificate-errors-spki-list={fingerprint(trusted)}"
    # Chromium's sandbox creates namespaces, which it refuses as root.
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NODE_EXTRA_CA_CERTS", str(authority))  # for requests of Playwright without a page
        playwright = sync_playwright().start()
    try:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=[*QUIET, *sandbox, trust])
        yield browser
        browser.close()
    finally:
        playwright.stop()


def fingerprint(certificate: Path) -> str:
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return base64.b64encode(digest).decode()
