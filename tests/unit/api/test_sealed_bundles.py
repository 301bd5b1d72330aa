"""Tests of sealed config bundles."""

from __future__ import annotations

import pytest

from aks_flex_node.api.sealed_bundles import SEALED_EXTRA_BYTES, BundleTampered, new_key, seal, unseal

BUNDLE = b'{"config": {"secret": "canary"}}'


def test_sealed_bundle_is_opened_only_with_its_key() -> None:
    key = new_key()
    sealed = seal(BUNDLE, key)
    assert unseal(sealed, key) == BUNDLE
    assert b"canary" not in sealed
    assert len(sealed) == len(BUNDLE) + SEALED_EXTRA_BYTES
    with pytest.raises(BundleTampered, match="not what the service sealed"):
        unseal(sealed, new_key())


def test_same_bundle_is_never_sealed_the_same() -> None:
    key = new_key()
    assert seal(BUNDLE, key) != seal(BUNDLE, key)
    assert new_key() != key


def test_every_changed_byte_is_found() -> None:
    key = new_key()
    sealed = seal(BUNDLE, key)
    for place in range(len(sealed)):
        changed = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        with pytest.raises(BundleTampered):
            unseal(changed, key)


def test_bundle_that_is_not_sealed_is_refused() -> None:
    key = new_key()
    for content in (BUNDLE, b"", seal(BUNDLE, key)[:40], seal(b"", key)[:-1]):
        with pytest.raises(BundleTampered):
            unseal(content, key)
