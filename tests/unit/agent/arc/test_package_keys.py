"""Tests of a repository's key: identified by its fingerprint, and passed to apt unchanged."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.arc.packages import verified_keyring
from aks_flex_node.agent.config.azure_models import MICROSOFT_KEYS
from aks_flex_node.errors import ArtifactError
from tests.openpgp_keys import BOTH, FINGERPRINT, KEY, OTHER_FINGERPRINT, OTHER_KEY

HERE = "https://packages.example/key.asc"


@pytest.mark.parametrize(
    ("text", "expected"),
    [(KEY, FINGERPRINT), (OTHER_KEY, OTHER_FINGERPRINT), (KEY.replace("\n", "\r\n"), FINGERPRINT)],
)
def test_package_key_with_the_expected_fingerprint_is_accepted(text: str, expected: str) -> None:
    spaced = " ".join(expected[at : at + 4] for at in range(0, 40, 4)).lower()
    assert verified_keyring(text, [spaced], HERE) == verified_keyring(text, [expected], HERE)


@pytest.mark.parametrize("text", [OTHER_KEY, BOTH, KEY + OTHER_KEY, OTHER_KEY + KEY])
def test_unexpected_package_key_is_refused_and_its_fingerprint_named(text: str) -> None:
    """apt would trust both of two keys."""
    with pytest.raises(ArtifactError, match=OTHER_FINGERPRINT) as caught:
        verified_keyring(text, [FINGERPRINT, *MICROSOFT_KEYS], HERE)
    assert caught.value.name == "package-key-mismatch"
    assert verified_keyring(text, [FINGERPRINT, OTHER_FINGERPRINT], HERE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>sign in</html>",
        KEY.replace("PUBLIC KEY", "PRIVATE KEY"),
        KEY[:300] + "\n-----END PGP PUBLIC KEY BLOCK-----\n",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n-----END PGP PUBLIC KEY BLOCK-----\n",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n/////w==\n-----END PGP PUBLIC KEY BLOCK-----\n",
    ],
)
def test_unreadable_package_key_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        verified_keyring(text, [FINGERPRINT], HERE)
    assert caught.value.name == "package-key-unreadable"
    assert HERE in caught.value.message
