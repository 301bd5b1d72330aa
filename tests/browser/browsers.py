"""Debian's Chromium without windows, driven by Playwright: nothing is downloaded, and nothing trusted but our key."""

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
# Without these it asks its maker for lists and news, which a closed network refuses many times over.
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
    """One that takes the server with this certificate for what it says it is, and no other.

    Chromium reads authorities from a database that is changed with a tool of its own. The fingerprint of a key is as
    good for us, and better than to ignore all errors: a page that comes from anywhere else is still refused.
    """
    assert PROGRAM.exists(), "Debian's package chromium-headless-shell is not installed; `make test` installs it."
    trust = f"--ignore-certificate-errors-spki-list={fingerprint(trusted)}"
    # Its sandbox makes namespaces, which it refuses to do as root.
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NODE_EXTRA_CA_CERTS", str(authority))  # for what Playwright asks for without a page
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
