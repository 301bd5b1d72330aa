"""What can be said of blobs without an account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.delivery.azure_blob import by_connection_string, by_identity, expiry_of, folder_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_blob_says_when_it_expires_and_what_is_not_ours_never_does() -> None:
    assert expiry_of(f"{folder_of('cluster', 'edge-1')}1708123456-a-b.json") == 1708123456.0
    assert expiry_of("somebody/elses.json") == float("inf")


def test_each_node_has_its_own_folder() -> None:
    assert len({folder_of("a", "b"), folder_of("a", "c"), folder_of("b", "b")}) == 3


@pytest.mark.parametrize(
    "text", ["", "canary", "AccountName=a;SharedAccessSignature=canary;BlobEndpoint=https://a.b/"]
)
def test_a_file_without_a_connection_string_is_told_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "connection"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        by_connection_string(file)
    assert caught.value.name == "blob-account-invalid"
    assert "canary" not in str(caught.value)


def test_a_connection_string_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "connection"
    file.touch(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        by_connection_string(file)


def test_an_account_is_reached_by_tls_alone() -> None:
    with pytest.raises(ConfigError, match="not the URL of a storage account"):
        by_identity("http://account.example", None)  # type: ignore[arg-type]
