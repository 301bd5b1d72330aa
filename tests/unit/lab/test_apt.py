"""The command lines of apt for downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.apt import download_command

if TYPE_CHECKING:
    from pathlib import Path


def test_download_ignores_packages_that_are_installed_on_host(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Package: bash\n")

    words = download_command(status, {"Dir::Cache::Archives": tmp_path / "archives"})

    assert words[0] == "apt-get"
    assert f"Dir::State::Status={status}" in words
    assert f"Dir::Cache::Archives={tmp_path / 'archives'}" in words
    assert not status.read_text()


def test_settings_of_the_host_cannot_allow_unsigned_packages(tmp_path: Path) -> None:
    words = download_command(tmp_path / "status", {})

    assert "APT::Get::AllowUnauthenticated=false" in words
    assert "Acquire::AllowInsecureRepositories=false" in words
    assert "Acquire::AllowDowngradeToInsecureRepositories=false" in words
