"""Tests of delivery by blobs without an account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.delivery.azure_blob import by_connection_string, by_identity, expiry_of, folder_of

if TYPE_CHECKING:
    from pathlib import Path


def test_blob_name_contains_expiry_and_foreign_blobs_never_expire() -> None:
    assert expiry_of(f"{folder_of('cluster', 'edge-1')}1708123456-a-b.json") == 1708123456.0
    assert expiry_of("somebody/elses.json") == float("inf")


def test_each_node_has_its_own_blob_folder() -> None:
    assert len({folder_of("a", "b"), folder_of("a", "c"), folder_of("b", "b")}) == 3


@pytest.mark.parametrize(
    "text", ["", "canary", "AccountName=a;SharedAccessSignature=canary;BlobEndpoint=https://a.b/"]
)
def test_invalid_connection_string_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "connection"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        by_connection_string(file)
    assert caught.value.name == "blob-account-invalid"
    assert "canary" not in str(caught.value)


def test_connection_string_readable_by_others_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "connection"
    file.touch(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        by_connection_string(file)


def test_storage_account_url_must_use_https() -> None:
    with pytest.raises(ConfigError, match="not the URL of a storage account"):
        by_identity("http://account.example", None)  # type: ignore[arg-type]
