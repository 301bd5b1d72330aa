"""Tests of digests in the formats that users and publishers write."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.artifacts.digest import Digest, find_digest
from aks_flex_node.errors import ArtifactError

A, B, LONG = "a" * 64, "b" * 64, "c" * 128


@pytest.mark.parametrize("text", [f"sha256:{A}", A, f"SHA256:{A.upper()}", f" {A}\n"])
def test_digest_is_parsed(text: str) -> None:
    assert Digest.parse(text) == Digest("sha256", A)


@pytest.mark.parametrize("text", ["", "sha256:", f"sha512:{A}", f"md5:{A[:32]}", A[:-1], "g" * 64])
def test_invalid_digest_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        Digest.parse(text)
    assert caught.value.name == "digest-invalid"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (A, A),
        (f"{LONG}\n", LONG),
        (f"{A}  tool\n", A),
        (f"{B}  other\n{A} *tool\n", A),
        (f"{A}  _output/linux/tool\n", A),
        (f"SHA256 (tool) = {A}\n", A),
        (f"{A}  tool.sig\n{B}  tool\n", B),
    ],
)
def test_file_digest_is_found_in_a_checksum_file(text: str, expected: str) -> None:
    found = find_digest(text, "tool")
    assert found is not None
    assert found.value == expected


@pytest.mark.parametrize("text", ["", "<html>", f"{A}  other", f"{A}\n{B}\n", f"{A[:-2]}  tool"])
def test_checksum_file_without_an_entry_for_the_file_gives_no_digest(text: str) -> None:
    assert find_digest(text, "tool") is None
