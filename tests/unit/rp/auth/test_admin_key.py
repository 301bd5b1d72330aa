"""Tests of the admin key: created once, readable by its owner, compared completely, replaceable."""

from __future__ import annotations

import asyncio
import stat
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.auth.admin_key import ADMIN_CALLER, ADMIN_KEY_PREFIX, AdminKey, generate_key
from aks_flex_rp.auth.auth_errors import Unauthenticated
from aks_flex_rp.auth.auth_settings import AuthSettings
from aks_flex_rp.auth.token_verifier import TokenVerifier

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "admin.key"


def replace(file: Path, content: bytes, mode: int = 0o600) -> None:
    beside = file.with_name("new")
    beside.write_bytes(content)
    beside.chmod(mode)
    beside.replace(file)


def test_admin_key_is_created_once_with_private_permissions(file: Path) -> None:
    assert AdminKey(file).ensure()
    key = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key.startswith(ADMIN_KEY_PREFIX.encode())
    assert not AdminKey(file).ensure()
    assert file.read_bytes() == key
    assert [path.name for path in file.parent.iterdir()] == ["admin.key"]


def test_only_exact_admin_key_matches(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    right = file.read_bytes().strip()
    assert key.matches(right)
    for wrong in (b"", right[:-1], right + b"x", right.lower(), ADMIN_KEY_PREFIX.encode(), generate_key()):
        assert not key.matches(wrong)


def test_replacing_admin_key_file_rotates_key_immediately(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    old, new = file.read_bytes().strip(), generate_key()
    assert key.matches(old)
    replace(file, new + b"\n")
    assert key.matches(new)
    assert not key.matches(old)


@pytest.mark.parametrize(
    "content", [b"", b"\n", ADMIN_KEY_PREFIX.encode(), b"x" * 80, generate_key() + b"\n" + generate_key()]
)
def test_invalid_admin_key_file_matches_nothing_and_is_refused_at_startup(file: Path, content: bytes) -> None:
    AdminKey(file).ensure()
    replace(file, content)
    assert not AdminKey(file).matches(content)
    assert not AdminKey(file).matches(content.strip())
    with pytest.raises(ConfigError) as caught:
        AdminKey(file).ensure()
    assert caught.value.name == "admin-key-invalid"


def test_world_readable_admin_key_matches_nothing(file: Path) -> None:
    key, text = AdminKey(file), generate_key()
    key.ensure()
    replace(file, text, 0o644)
    assert not key.matches(text)
    with pytest.raises(ConfigError, match="contains a secret"):
        key.ensure()
    file.chmod(0o640)
    assert key.matches(text)


def test_deleted_admin_key_matches_nothing(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    right = file.read_bytes().strip()
    assert key.matches(right)
    file.unlink()
    assert not key.matches(right)


def test_request_with_admin_key_is_authenticated_as_admin(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    tokens, shown = TokenVerifier(AuthSettings(), key), f"Bearer {file.read_text().strip()}"
    assert tokens.cached(shown) is ADMIN_CALLER
    assert tokens.cached(shown.encode()) is ADMIN_CALLER
    assert asyncio.run(tokens.caller(shown)) is ADMIN_CALLER
    replace(file, generate_key())
    assert tokens.cached(shown) is None
    with pytest.raises(Unauthenticated, match="admin key is not valid"):
        asyncio.run(tokens.caller(shown))


def test_admin_key_is_refused_when_none_is_configured() -> None:
    with pytest.raises(Unauthenticated):
        asyncio.run(TokenVerifier(AuthSettings()).caller(f"Bearer {generate_key().decode()}"))
