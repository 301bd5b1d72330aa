"""Tests of what the service remembers of the records that it has read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aks_flex_rp.crypto.record_codes import RecordCodes
from aks_flex_rp.store.model import RecordRefused
from aks_flex_rp.store.record_authenticator import RecordAuthenticator, SignedRow

KEEPER_KEY = {"1": b"k" * 32}


def signed(keeper: RecordAuthenticator, name: str, revision: int) -> SignedRow:
    row = SignedRow("node", ("/c", name), (name, revision), revision)
    return replace(row, code=keeper.sign(row))


def test_number_of_remembered_revisions_is_bounded() -> None:
    """A contributor creates and deletes nodes under ever new names."""
    keeper = RecordAuthenticator(RecordCodes(KEEPER_KEY))
    keeper.newest.max_size = 3
    for number in range(10):
        keeper.verify(signed(keeper, "in-use", 7))
        keeper.verify(signed(keeper, f"edge-{number}", 7))

    assert len(keeper.newest) == 3
    with pytest.raises(RecordRefused):
        keeper.verify(signed(keeper, "in-use", 6))
