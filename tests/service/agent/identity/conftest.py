"""Fixtures: a shared key for the certificates of principals, because its generation is slow."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa


@pytest.fixture(scope="session")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)
