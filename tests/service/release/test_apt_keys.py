"""Tests of the apt repository's signing key: it remains the key that machines trust."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[3] / "scripts" / "apt-repo"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Creates two keys of the same owner."""
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    for name in ("first@example.com", "second@example.com"):
        run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "never")
    yield "first@example.com", "second@example.com"
    run("gpgconf", "--kill", "all")


def test_apt_repository_signed_with_another_key_is_refused(tmp_path: Path, keys: tuple[str, str]) -> None:
    folder, (first, second) = tmp_path / "apt", keys
    folder.mkdir()
    (folder / "aks-flex-node.asc").write_text(run("gpg", "--batch", "--armor", "--export", first).out)

    said = subprocess.run([SCRIPT, "--key", second, folder], capture_output=True, text=True, check=False)

    assert said.returncode == 1
    assert f"is signed with another key than {second}" in said.stderr
    assert "--new-key" in said.stderr
    assert [path.name for path in folder.iterdir()] == ["aks-flex-node.asc"]


def test_missing_signing_key_is_reported_before_any_output(tmp_path: Path, keys: tuple[str, str]) -> None:
    assert keys
    folder = tmp_path / "apt"

    said = subprocess.run([SCRIPT, "--key", "lost@example.com", folder], capture_output=True, text=True, check=False)

    assert said.returncode == 1
    assert "no secret key lost@example.com" in said.stderr
    assert not folder.exists()
