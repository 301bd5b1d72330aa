"""The command line of apt for downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.apt import download_command

if TYPE_CHECKING:
    from pathlib import Path


def test_download_ignores_packages_that_are_installed_on_host(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Package: bash\n")

    words = download_command(status, {"Dir::Cache::Archives": tmp_path / "archives"})

    assert words == (
        "apt-get",
        *("-o", f"Dir::State::Status={status}"),
        *("-o", f"Dir::Cache::Archives={tmp_path / 'archives'}"),
    )
    assert not status.read_text()
