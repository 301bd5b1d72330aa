"""Tests of azcmagent's package: it comes only from its configured repository, signed with that repository's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.arc.packages import AzcmagentPackage, repository, verified_keyring
from aks_flex_node.errors import ArtifactError, BusyError, MachineError
from aks_flex_node.settings.azure_models import MICROSOFT_KEYS
from aks_flex_node.settings.base import replace
from tests.arc_machines import config
from tests.openpgp_keys import BOTH, FINGERPRINT, KEY, OTHER_FINGERPRINT, OTHER_KEY

if TYPE_CHECKING:
    from tests.unit.agent.arc.conftest import Place


UBUNTU = 'ID=ubuntu\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\n'


@pytest.mark.parametrize(
    ("release", "url", "suite", "key"),
    [
        (UBUNTU, "ubuntu/22.04/prod", "jammy", "keys/microsoft.asc"),
        ("ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n", "debian/12/prod", "bookworm", "keys/microsoft.asc"),
        (
            "ID=debian\nVERSION_ID=13\nVERSION_CODENAME=trixie\n",
            "debian/13/prod",
            "trixie",
            "keys/microsoft-2025.asc",
        ),
        (UBUNTU.replace("22.04", "26.04"), "ubuntu/26.04/prod", "jammy", "keys/microsoft-2025.asc"),
    ],
)
def test_package_repository_defaults_to_microsofts_for_the_os_release(
    release: str, url: str, suite: str, key: str
) -> None:
    found = repository(config(), release)
    assert (found.url, found.suite, found.key) == (
        f"https://packages.microsoft.com/{url}",
        suite,
        f"https://packages.microsoft.com/{key}",
    )


def test_os_without_microsoft_repository_requires_one_in_the_config() -> None:
    with pytest.raises(MachineError, match="Plan 9") as caught:
        repository(config(), 'ID=plan9\nPRETTY_NAME="Plan 9"\n')
    assert caught.value.name == "azcmagent-not-found"
    given = {
        "arc__package__repository": "https://a/b",
        "arc__package__suite": "c",
        "arc__package__keyURL": "https://d",
    }
    assert repository(config(**given), "ID=plan9\n").url == "https://a/b"


def test_apt_uses_one_signed_source_and_no_proxy_password_in_arguments(place: Place) -> None:
    seen: dict[str, str] = {}

    def look() -> None:
        for name in ("apt.conf", "sources.list"):
            seen[name] = place.text(f"/var/lib/aks-flex-node-packages/{name}")

    place.before_run = look
    settings = config(arc__package__repository="https://mirror.example/arc")
    proxied = replace(settings, proxy=replace(settings.proxy, https="http://me:hidden@proxy.example:3128"))

    AzcmagentPackage(place.host, proxied, lambda _: KEY).install()

    assert seen["sources.list"].split() == [
        *("deb", "[signed-by=/var/lib/aks-flex-node-packages/key.gpg]"),
        *("https://mirror.example/arc", "bookworm", "main"),
    ]
    assert 'Dir::Etc::sourceparts "/var/lib/aks-flex-node-packages/empty";' in seen["apt.conf"]
    assert "hidden" in seen["apt.conf"]
    assert not any("hidden" in word for argv in place.system.run for word in argv)
    assert place.host.stat("/var/lib/aks-flex-node-packages") is None


def test_package_install_changes_nothing_when_the_key_is_wrong(place: Place) -> None:
    with pytest.raises(ArtifactError):
        AzcmagentPackage(place.host, config(), lambda _: OTHER_KEY).install()
    assert place.host.done == []


@pytest.mark.parametrize(
    "words",
    [
        "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?",
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)",
    ],
)
def test_package_install_reports_busy_package_manager_as_retryable(place: Place, words: str) -> None:
    place.system.refused = words
    with pytest.raises(BusyError) as caught:
        AzcmagentPackage(place.host, config(), lambda _: KEY).install()
    assert (caught.value.name, caught.value.retryable) == ("package-manager-locked", True)


def test_package_install_failure_contains_the_apt_error_message(place: Place) -> None:
    place.system.refused = "E: The repository 'https://x bookworm InRelease' is not signed"
    with pytest.raises(ArtifactError, match="is not signed") as caught:
        AzcmagentPackage(place.host, config(), lambda _: KEY).install()
    assert caught.value.name == "arc-package-failed"
    assert place.host.stat("/var/lib/aks-flex-node-packages") is None


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
