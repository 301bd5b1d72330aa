"""Tests of encryption at rest: keys from file or environment, rotation, and binding to a record."""

from __future__ import annotations

import base64
import stat
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.crypto.encryption import KEYS_VARIABLE, Sealer, create_key, open_sealer_keys

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = b"o" * 32, b"n" * 32
SECRET = b"canary-of-a-client-secret"
SEALER = Sealer([NEW], "a test")


def text(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode()


def private(file: Path, *lines: str) -> Path:
    file.touch(0o600)
    file.write_text("\n".join(lines))
    return file


def test_sealed_secret_can_be_opened_and_is_not_plaintext() -> None:
    sealed = SEALER.seal(SECRET, "node a")
    assert SEALER.open(sealed, "node a") == SECRET
    assert SECRET not in sealed


def test_sealing_same_secret_twice_gives_different_ciphertexts() -> None:
    assert SEALER.seal(SECRET, "node a") != SEALER.seal(SECRET, "node a")


def test_secret_sealed_for_another_record_is_not_opened() -> None:
    with pytest.raises(ConfigError, match="belongs to another record") as caught:
        SEALER.open(SEALER.seal(SECRET, "node a"), "node b")
    assert caught.value.name == "decryption-failed"


@pytest.mark.parametrize("place", [0, 1, 4, 9, 12, 20, 30, -1])
def test_modified_or_truncated_ciphertext_is_refused(place: int) -> None:
    sealed = SEALER.seal(SECRET, "node a")
    modified = bytearray(sealed)
    modified[place] ^= 1
    for damaged in (bytes(modified), sealed[:place]):
        with pytest.raises(ConfigError, match="Cannot decrypt"):
            SEALER.open(damaged, "node a")


def test_secret_sealed_with_old_key_is_opened_but_not_current() -> None:
    before, after = Sealer([OLD], "a test"), Sealer([NEW, OLD], "a test")
    sealed = before.seal(SECRET, "node a")
    assert after.open(sealed, "node a") == SECRET
    assert not after.is_current(sealed)
    assert after.is_current(after.seal(SECRET, "node a"))


def test_missing_key_error_names_file_without_showing_keys(tmp_path: Path) -> None:
    file = private(tmp_path / "keys", text(NEW))
    sealed = Sealer([OLD], "a test").seal(SECRET, "node a")
    with pytest.raises(ConfigError, match="a key that is not available") as caught:
        open_sealer_keys(file, {}).open(sealed, "node a")
    assert str(file) in str(caught.value)
    assert text(NEW) not in str(caught.value)


def test_first_start_creates_private_key_file(tmp_path: Path) -> None:
    file = tmp_path / "state" / "keys"
    sealed = open_sealer_keys(file, {}).seal(SECRET, "node a")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert open_sealer_keys(file, {}).open(sealed, "node a") == SECRET
    assert [each.name for each in file.parent.iterdir()] == ["keys"]


def test_prepended_key_is_current_and_old_key_still_opens(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    sealed = open_sealer_keys(file, {}).seal(SECRET, "node a")
    create_key(file, {})
    rotated = open_sealer_keys(file, {})
    assert rotated.open(sealed, "node a") == SECRET
    assert not rotated.is_current(sealed)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("line", ["not base64!", text(b"short"), text(NEW)[:-3]])
def test_invalid_key_error_shows_line_number_but_not_content(tmp_path: Path, line: str) -> None:
    file = private(tmp_path / "keys", "# first the newest", text(NEW), line)
    with pytest.raises(ConfigError, match=f"Line 3 of {file}") as caught:
        open_sealer_keys(file, {})
    assert line not in str(caught.value)


def test_key_from_environment_takes_precedence_over_file(tmp_path: Path) -> None:
    file = private(tmp_path / "keys", text(OLD))
    both = open_sealer_keys(file, {KEYS_VARIABLE: text(NEW)})
    assert both.open(Sealer([OLD], "a test").seal(SECRET, "node a"), "node a") == SECRET
    assert both.is_current(Sealer([NEW], "a test").seal(SECRET, "node a"))


def test_keys_from_environment_need_no_file(tmp_path: Path) -> None:
    sealer = open_sealer_keys(tmp_path / "keys", {KEYS_VARIABLE: f"{text(NEW)},{text(OLD)}"})
    assert sealer.open(Sealer([OLD], "a test").seal(SECRET, "node a"), "node a") == SECRET
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("blank", [" ", ",", "# none"])
def test_variable_without_a_key_counts_as_not_set(tmp_path: Path, blank: str) -> None:
    open_sealer_keys(tmp_path / "keys", {KEYS_VARIABLE: blank})
    assert (tmp_path / "keys").exists()


def test_sealer_repr_hides_keys() -> None:
    assert "nnn" not in repr(Sealer([NEW], "a test"))
