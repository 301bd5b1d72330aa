"""Tests of the token cache for the API server."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - pytest looks at it

import pytest

from aks_flex_node.agent.identity.token_cache import TOKEN_CACHE_FILE, CachedToken, get_cached_token, read_cache
from aks_flex_node.errors import FlexError

HOUR = 3600.0


@dataclass
class Entra:
    """Issues a new token each time, valid for an hour, or fails."""

    now: float = 1000.0
    life: float = HOUR
    refuses: bool = False
    asked: list[str] = field(default_factory=list)

    def sign_in(self, text: str) -> tuple[str, float]:
        self.asked.append(text)
        if self.refuses:
            raise FlexError("azure-sign-in-failed", "The secret is wrong.")
        return f"token-{len(self.asked)}", self.now + self.life

    def hand(self, identity: Path) -> str:
        return get_cached_token(identity, self.sign_in, lambda: self.now).value


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    file = tmp_path / "identity.json"
    file.write_text('{"config": {}}')
    return file


@pytest.mark.parametrize(("life", "used"), [(HOUR, HOUR - 300), (60, 30)])
def test_token_is_cached_until_its_margin_or_half_its_lifetime(identity: Path, life: float, used: float) -> None:
    entra = Entra(life=life)
    assert [entra.hand(identity), entra.hand(identity)] == ["token-1", "token-1"]
    entra.now += used - 1
    assert entra.hand(identity) == "token-1"
    entra.now += 2
    assert entra.hand(identity) == "token-2"


def test_changed_identity_gets_a_new_token(identity: Path) -> None:
    entra = Entra()
    entra.hand(identity)
    identity.write_text('{"config": {"azure": {}}}')
    assert entra.hand(identity) == "token-2"


def test_cached_token_is_used_until_expiry_when_sign_in_fails(identity: Path) -> None:
    entra = Entra()
    entra.hand(identity)
    entra.now, entra.refuses = entra.now + HOUR - 10, True
    assert entra.hand(identity) == "token-1"
    entra.now += 11
    with pytest.raises(FlexError, match="The secret is wrong"):
        entra.hand(identity)


def test_clock_set_to_an_earlier_time_invalidates_the_cached_token(identity: Path) -> None:
    entra = Entra()
    entra.hand(identity)
    entra.now -= 500
    assert entra.hand(identity) == "token-2"


def test_token_cache_is_mode_0600_and_no_temporary_file_remains(identity: Path) -> None:
    Entra().hand(identity)
    kept = identity.with_name(TOKEN_CACHE_FILE)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert sorted(path.name for path in identity.parent.iterdir()) == [TOKEN_CACHE_FILE, "identity.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"token": "x"}', '{"token": "x", "begun": "y", "ends": 1}', "\x00"]
)
def test_unreadable_token_cache_is_replaced(identity: Path, text: str) -> None:
    identity.with_name(TOKEN_CACHE_FILE).write_text(text)
    assert read_cache(identity.with_name(TOKEN_CACHE_FILE)) is None
    assert Entra().hand(identity) == "token-1"


def test_unwritable_token_cache_does_not_prevent_a_token(identity: Path) -> None:
    identity.with_name(TOKEN_CACHE_FILE).mkdir()
    assert Entra().hand(identity) == "token-1"
    assert [path.name for path in identity.parent.iterdir() if path.is_file()] == ["identity.json"]


def test_exec_credential_contains_token_and_expiry() -> None:
    told = CachedToken("secret-token", 0.0, 1770000000.0).exec_credential()
    assert told["apiVersion"] == "client.authentication.k8s.io/v1"
    assert told["status"] == {"token": "secret-token", "expirationTimestamp": "2026-02-02T02:40:00Z"}
    assert json.dumps(told)
    assert "secret-token" not in repr(CachedToken("secret-token", 0.0, 1.0))
