"""The admin key: made once, only its owner's, checked as a whole, replaced at will."""

from __future__ import annotations

import asyncio
import stat
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.auth.keys import ADMIN, PREFIX, AdminKey, new_key
from aks_flex_node.rp.auth.refusals import Unauthenticated
from aks_flex_node.rp.auth.settings import AuthSettings
from aks_flex_node.rp.auth.tokens import Tokens

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


def test_it_is_made_once_and_is_only_its_owners(file: Path) -> None:
    assert AdminKey(file).ensure()
    key = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key.startswith(PREFIX.encode())
    assert not AdminKey(file).ensure()
    assert file.read_bytes() == key
    assert [path.name for path in file.parent.iterdir()] == ["admin.key"]


def test_the_key_and_nothing_else_opens(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    right = file.read_bytes().strip()
    assert key.opens(right)
    for wrong in (b"", right[:-1], right + b"x", right.lower(), PREFIX.encode(), new_key()):
        assert not key.opens(wrong)


def test_replacing_the_file_rotates_the_key_at_once(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    old, new = file.read_bytes().strip(), new_key()
    assert key.opens(old)
    replace(file, new + b"\n")
    assert key.opens(new)
    assert not key.opens(old)


@pytest.mark.parametrize("content", [b"", b"\n", PREFIX.encode(), b"x" * 80, new_key() + b"\n" + new_key()])
def test_a_file_without_a_key_opens_nothing_and_is_refused_at_the_start(file: Path, content: bytes) -> None:
    AdminKey(file).ensure()
    replace(file, content)
    assert not AdminKey(file).opens(content)
    assert not AdminKey(file).opens(content.strip())
    with pytest.raises(ConfigError) as caught:
        AdminKey(file).ensure()
    assert caught.value.name == "admin-key-unusable"


def test_a_key_that_everybody_can_read_opens_nothing(file: Path) -> None:
    key, text = AdminKey(file), new_key()
    key.ensure()
    replace(file, text, 0o644)
    assert not key.opens(text)
    with pytest.raises(ConfigError, match="holds a secret"):
        key.ensure()
    file.chmod(0o640)
    assert key.opens(text)


def test_a_key_that_was_taken_away_opens_nothing(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    right = file.read_bytes().strip()
    assert key.opens(right)
    file.unlink()
    assert not key.opens(right)


def test_a_request_with_the_key_is_the_admins(file: Path) -> None:
    key = AdminKey(file)
    key.ensure()
    tokens, shown = Tokens(AuthSettings(), key), f"Bearer {file.read_text().strip()}"
    assert tokens.known(shown) is ADMIN
    assert tokens.known(shown.encode()) is ADMIN
    assert asyncio.run(tokens.caller(shown)) is ADMIN
    replace(file, new_key())
    assert tokens.known(shown) is None
    with pytest.raises(Unauthenticated, match="admin key is not valid"):
        asyncio.run(tokens.caller(shown))


def test_where_there_is_no_key_none_is_right() -> None:
    with pytest.raises(Unauthenticated):
        asyncio.run(Tokens(AuthSettings()).caller(f"Bearer {new_key().decode()}"))
