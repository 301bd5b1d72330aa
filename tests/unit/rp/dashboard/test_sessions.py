"""Tests of the validity of sessions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_rp.auth.admin_key import ADMIN_CALLER
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.dashboard.sessions import SessionManager, SignedInUser
from aks_flex_rp.settings import DashboardSettings

if TYPE_CHECKING:
    from aks_flex_rp.store.model import UserSession
    from aks_flex_rp.store.protocol import Store

ID = "12345678-1234-1234-1234-123456789abc"
ENTRA = {"tenantId": ID, "clientId": ID, "clientSecretFile": "secret"}
PERSON = Caller(
    "an id", "ann@example.com", CallerKind.USER, "a tenant", frozenset({"an id", "a group"}), frozenset({"an id"})
)


@dataclass
class KeptSessions:
    kept: dict[str, UserSession] = field(default_factory=dict)

    async def put_session(self, session: UserSession) -> None:
        self.kept[session.id] = session

    async def session(self, id: str, now: float) -> UserSession | None:  # noqa: A002
        found = self.kept.get(id)
        return found if found and found.expires > now else None

    async def use_session(self, id: str, used: float) -> None:  # noqa: A002
        self.kept[id] = replace(self.kept[id], used=used)

    async def end_session(self, id: str) -> None:  # noqa: A002
        self.kept.pop(id, None)


@dataclass
class World:
    now: float = 1_000_000.0
    key: str = "first key"
    settings: dict[str, Any] = field(default_factory=lambda: {"entra": ENTRA})
    store: KeptSessions = field(default_factory=KeptSessions)

    @property
    def sessions(self) -> SessionManager:
        settings = DashboardSettings.model_validate(self.settings)
        return SessionManager(cast("Store", self.store), settings, lambda: self.key, lambda: self.now)

    def begin(self, caller: Caller = PERSON) -> SignedInUser:
        begun: SignedInUser = self.run(self.sessions.begin(caller))
        return begun

    def find(self, secret: str, *, by_hand: bool = True) -> SignedInUser | None:
        found: SignedInUser | None = self.run(self.sessions.find(secret, by_hand=by_hand))
        return found

    def run(self, work: Any) -> Any:
        return asyncio.run(work)


def test_session_is_found_by_its_secret() -> None:
    world = World()
    session = world.begin()
    found = world.find(session.secret)
    assert found == session
    assert found is not None
    assert found.caller == PERSON


def test_session_secret_is_not_stored_or_in_repr() -> None:
    world = World()
    session = world.begin()
    assert session.secret not in repr(world.store.kept)
    assert session.secret not in repr(session)


def test_every_session_has_its_own_secret() -> None:
    world = World()
    assert world.begin().secret != world.begin().secret


def test_unknown_session_secret_finds_no_session() -> None:
    world = World()
    world.begin()
    for secret in ("", "x", "x" * 100_000, "ü"):
        assert world.find(secret) is None


def test_session_expires_after_idle_hour_or_eight_hours() -> None:
    world = World()
    session = world.begin()
    for _ in range(9):
        world.now += 50 * 60
        assert world.find(session.secret)
    world.now += 31 * 60
    assert world.find(session.secret) is None
    idle = world.begin()
    world.now += 3601
    assert world.find(idle.secret) is None


def test_automatic_refresh_does_not_prevent_idle_expiry() -> None:
    world = World()
    session = world.begin()
    for _ in range(3):
        world.now += 19 * 60
        assert world.find(session.secret, by_hand=False)
    world.now += 19 * 60
    assert world.find(session.secret, by_hand=False) is None
    assert world.find(session.secret) is None


@pytest.mark.parametrize(
    ("settings", "by_key", "by_entra"),
    [
        ({"entra": ENTRA}, True, True),
        ({"entra": ENTRA, "adminKey": False}, False, True),
        ({}, True, False),
        ({"entra": {**ENTRA, "tenantId": ID.replace("a", "b")}}, True, False),
    ],
)
def test_disabling_sign_in_method_ends_its_sessions(settings: dict[str, Any], by_key: bool, by_entra: bool) -> None:
    world = World()
    admin, person = world.begin(ADMIN_CALLER), world.begin()
    world.settings = settings
    assert bool(world.find(admin.secret)) == by_key
    assert bool(world.find(person.secret)) == by_entra


def test_admin_key_rotation_ends_only_admin_key_sessions() -> None:
    world = World()
    by_key, by_entra = world.begin(ADMIN_CALLER), world.begin()
    assert world.find(by_key.secret)
    world.key = "second key"
    assert world.find(by_key.secret) is None
    assert world.find(by_entra.secret)
    world.key = ""
    assert world.find(world.begin(ADMIN_CALLER).secret) is None  # no session exists


def test_signed_out_session_is_not_found() -> None:
    world = World()
    session = world.begin()
    world.run(world.sessions.end(session.secret))
    assert world.find(session.secret) is None


def test_form_token_is_valid_only_for_its_own_session() -> None:
    world = World()
    mine, other = world.begin(), world.begin()
    assert mine.sent(mine.form_token)
    for token in (other.form_token, "", mine.secret, "ü"):
        assert not mine.sent(token)
