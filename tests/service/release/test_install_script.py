"""Tests of install.sh with a stand-in package: what it installs, rejects and prints."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run
from release.build_steps import INSTALLER
from release.checkout import HOME
from tests.service.release.publisher import EXAMPLE, Signer, Site, deb, publish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="dpkg installs as root alone")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    signer = Signer(tmp_path_factory.mktemp("gpg") / "home")
    signer.make()
    yield signer
    signer.stop()


@pytest.fixture
def site(signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("GNUPGHOME", str(signer.home))
    site = Site(publish(tmp_path / "release", "1.2.3", signer.name), tmp_path / "root", tmp_path / "programs")
    site.prepare()
    return site


def test_signed_package_is_installed_and_uninstalled(site: Site) -> None:
    done = site.install("--yes")
    assert done.ok, done.err
    assert "install aks-flex-node 1.2.3" in done.out
    assert site.command.exists()
    assert "is not installed" not in site.sh("--uninstall", "--purge", "--yes").out
    assert not site.command.exists()
    for words in ((), ("--purge",)):
        again = site.sh("--uninstall", "--yes", *words)
        assert (again.ok, again.out) == (True, "aks-flex-node is not installed.\n")


def test_dry_run_verifies_package_and_changes_nothing(site: Site) -> None:
    done = site.install("--dry-run")
    assert done.ok, done.err
    assert "Verified the signature and the checksum of aks-flex-node_1.2.3_" in done.out
    assert "not with --dry-run" in done.out
    assert not site.command.exists()
    assert site.install("--yes").ok
    assert "remove aks-flex-node 1.2.3" in site.sh("--uninstall", "--dry-run").out
    assert site.command.exists()


def test_upgrade_reports_installed_version(site: Site, signer: Signer, tmp_path: Path) -> None:
    assert site.install("--yes").ok
    newer = publish(tmp_path / "newer", "1.3.0", signer.name)
    assert "install aks-flex-node 1.3.0 (installed: 1.2.3)" in site.install(base=f"file://{newer}").out


def test_reinstalling_same_version_does_nothing(site: Site) -> None:
    assert site.install("--yes").ok
    done = site.install()  # and therefore without a prompt
    assert done.ok, done.err
    assert "aks-flex-node 1.2.3 is already installed." in done.out
    assert "This will" not in done.out


def test_downgrade_is_refused(site: Site, signer: Signer, tmp_path: Path) -> None:
    assert site.install("--yes").ok
    older = publish(tmp_path / "older", "1.2.3rc1", signer.name)
    done = site.install("--yes", base=f"file://{older}")
    assert "1.2.3 is installed, and 1.2.3rc1 is older." in done.err
    assert (done.ok, "1.2.3\n" in site.command.read_text()) == (False, True)


def test_release_candidate_is_upgraded_to_final_version(site: Site, signer: Signer, tmp_path: Path) -> None:
    early = publish(tmp_path / "early", "1.2.3rc1", signer.name)
    assert site.install("--yes", base=f"file://{early}").ok
    assert "already installed" in site.install(base=f"file://{early}").out
    done = site.install("--yes")
    assert done.ok, done.err
    assert "install aks-flex-node 1.2.3 (installed: 1.2.3~rc1)" in done.out


def test_upgrade_keeps_modified_config_file_without_prompt(site: Site, signer: Signer, tmp_path: Path) -> None:
    assert site.install("--yes").ok
    example = site.root / EXAMPLE
    example.write_text("# mine\n")
    newer = publish(tmp_path / "newer", "1.3.0", signer.name)
    done = site.install("--yes", base=f"file://{newer}")
    assert done.ok, done.err
    assert example.read_text() == "# mine\n"
    assert example.with_name(f"{example.name}.dpkg-dist").read_text() == "# of 1.3.0\n"


def test_half_configured_package_can_be_uninstalled(site: Site) -> None:
    assert site.install("--yes").ok
    status = site.root / "var" / "lib" / "dpkg" / "status"
    status.write_text(status.read_text().replace("install ok installed", "install ok half-configured"))
    assert "remove aks-flex-node 1.2.3" in site.sh("--uninstall", "--dry-run").out


def test_install_without_terminal_requires_yes(site: Site) -> None:
    done = site.install()
    assert not done.ok
    assert "No terminal for the confirmation." in done.err
    assert not site.command.exists()


def test_package_with_wrong_checksum_is_refused(site: Site) -> None:
    [package] = site.release.glob("*.deb")
    package.write_bytes(package.read_bytes() + b"x")
    done = site.install("--yes")
    assert f"The checksum of {package.name} does not match." in done.err
    assert (done.ok, site.command.exists()) == (False, False)


def test_checksum_list_changed_after_signing_is_refused(site: Site) -> None:
    [package] = site.release.glob("*.deb")
    package.write_bytes(package.read_bytes() + b"x")
    site.resign()
    done = site.install("--yes")
    assert "SHA256SUMS is invalid." in done.err
    assert (done.ok, site.command.exists()) == (False, False)


def test_release_signed_by_another_key_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Signer(tmp_path / "gpg")
    other.make()
    monkeypatch.setenv("GNUPGHOME", str(other.home))
    foreign = publish(tmp_path / "foreign", "1.2.3", other.name)
    other.stop()
    done = site.install("--yes", base=f"file://{foreign}")
    assert "SHA256SUMS is invalid." in done.err
    assert (done.ok, site.command.exists()) == (False, False)


def test_release_without_signature_is_refused(site: Site) -> None:
    (site.release / "SHA256SUMS.asc").unlink()
    done = site.install("--yes")
    assert "SHA256SUMS.asc could not be downloaded." in done.err
    assert not site.command.exists()


def test_own_release_is_verified_with_key_option(site: Site, tmp_path: Path) -> None:
    unfilled = site.sh("--base-url", f"file://{site.release}", "--yes", script=INSTALLER)
    assert "contains no key" in unfilled.err
    run("gpg", "--batch", "--output", tmp_path / "key.gpg", "--export")
    words = ("--base-url", f"file://{site.release}", "--yes", "--key", str(tmp_path / "key.gpg"))
    assert site.sh(*words, script=INSTALLER).ok
    assert site.command.exists()


def test_armored_key_is_refused_with_explanation(site: Site, tmp_path: Path) -> None:
    run("gpg", "--batch", "--armor", "--output", tmp_path / "key.asc", "--export")
    done = site.install("--yes", "--key", str(tmp_path / "key.asc"))
    assert f"The key {tmp_path}/key.asc is ASCII-armored." in done.err
    assert (done.ok, site.command.exists()) == (False, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--version", "1.2.4"), "Found version 1.2.3, expected 1.2.4."),
        (("--version", "v1.2.3"), "v1.2.3 is not a valid version."),
        (("--version", "1.2/../3"), "1.2/../3 is not a valid version."),
        (("--version",), "--version requires a value."),
        (("--purge",), "--purge requires --uninstall."),
        (("--install",), "Unknown option --install."),
    ],
)
def test_invalid_option_is_refused_with_explanation(site: Site, words: tuple[str, ...], said: str) -> None:
    done = site.install("--yes", *words)
    assert said in done.err
    assert (done.ok, site.command.exists()) == (False, False)


@pytest.mark.parametrize("base", ["http://127.0.0.1:9", "/srv/release", "ftp://127.0.0.1"])
def test_base_url_without_https_or_file_scheme_is_refused(site: Site, base: str) -> None:
    done = site.install("--yes", base=base)
    assert f"{base} must begin with https:// or file:///." in done.err


def test_release_with_two_packages_for_one_machine_is_refused(site: Site, signer: Signer) -> None:
    deb(site.release, "1.2.4")
    site.resign()
    run("gpg", "--batch", "--yes", "--armor", "--detach-sign", site.release / "SHA256SUMS")
    assert "more than one package" in site.install("--yes").err


def test_truncated_install_script_does_nothing(site: Site, tmp_path: Path) -> None:
    text = (site.release / "install.sh").read_text()
    half = tmp_path / "half.sh"
    half.write_text(text[: text.rindex("main ")])
    done = site.sh("--base-url", f"file://{site.release}", "--yes", script=half)
    assert (done.out, site.command.exists()) == ("", False)


def test_install_script_passes_shellcheck() -> None:
    assert shutil.which("shellcheck"), "shellcheck is not installed; `make test` installs it."
    assert run("shellcheck", "--shell=sh", HOME / "packaging" / "install" / "install.sh", check=False).out == ""
