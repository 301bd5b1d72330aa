"""azcmagent's package comes from a repository of its own, and from nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.arc.packages import AzcmagentPackage, repository
from aks_flex_node.agent.config.base_model import replace
from aks_flex_node.errors import ArtifactError, BusyError, MachineError
from tests.arc_machines import config
from tests.openpgp_keys import KEY, OTHER_KEY

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
def test_what_is_left_out_is_microsofts_for_the_release(release: str, url: str, suite: str, key: str) -> None:
    found = repository(config(), release)
    assert (found.url, found.suite, found.key) == (
        f"https://packages.microsoft.com/{url}",
        suite,
        f"https://packages.microsoft.com/{key}",
    )


def test_a_system_that_microsoft_has_no_repository_for_needs_one_in_the_configuration() -> None:
    with pytest.raises(MachineError, match="Plan 9") as caught:
        repository(config(), 'ID=plan9\nPRETTY_NAME="Plan 9"\n')
    assert caught.value.name == "azcmagent-not-found"
    given = {
        "arc__package__repository": "https://a/b",
        "arc__package__suite": "c",
        "arc__package__keyURL": "https://d",
    }
    assert repository(config(**given), "ID=plan9\n").url == "https://a/b"


def test_apt_reads_one_source_by_one_key_and_tells_nobody_the_proxys_password(place: Place) -> None:
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


def test_nothing_is_run_when_the_key_is_another(place: Place) -> None:
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
def test_a_package_manager_that_is_at_work_is_named_as_the_cause(place: Place, words: str) -> None:
    place.system.refused = words
    with pytest.raises(BusyError) as caught:
        AzcmagentPackage(place.host, config(), lambda _: KEY).install()
    assert (caught.value.name, caught.value.retryable) == ("package-manager-locked", True)


def test_what_apt_says_is_told(place: Place) -> None:
    place.system.refused = "E: The repository 'https://x bookworm InRelease' is not signed"
    with pytest.raises(ArtifactError, match="is not signed") as caught:
        AzcmagentPackage(place.host, config(), lambda _: KEY).install()
    assert caught.value.name == "arc-package-failed"
    assert place.host.stat("/var/lib/aks-flex-node-packages") is None
