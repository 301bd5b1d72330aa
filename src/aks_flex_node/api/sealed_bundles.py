"""Sealed config bundles, for storage that others administer: AES-256-GCM with a key of each bundle.

The key is in the fragment of the config URL, which clients never send. So the storage can neither read a bundle nor
change it.
"""

from __future__ import annotations

import base64
import os

SEAL_FORMAT = b"aks-flex sealed bundle 1\n"  # authenticated with the content
KEY_BYTES = 32
NONCE_BYTES = 12
SEALED_EXTRA_BYTES = len(SEAL_FORMAT) + NONCE_BYTES + 16  # by which a sealed bundle is longer


class BundleTampered(Exception):  # noqa: N818 - names a state
    """Raised when content is not what was sealed with the key."""


def new_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode().rstrip("=")


def seal(bundle: bytes, key: str) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import

    nonce = os.urandom(NONCE_BYTES)
    return SEAL_FORMAT + nonce + AESGCM(_decoded(key)).encrypt(nonce, bundle, SEAL_FORMAT)


def unseal(content: bytes, key: str) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - slow to import
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import

    sealed = content.removeprefix(SEAL_FORMAT)
    if len(content) < SEALED_EXTRA_BYTES or len(sealed) == len(content):
        raise BundleTampered("it is not sealed")
    try:
        return AESGCM(_decoded(key)).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], SEAL_FORMAT)
    except InvalidTag:
        raise BundleTampered("it is not what the service sealed with the key in the URL") from None


def _decoded(key: str) -> bytes:
    return base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))
