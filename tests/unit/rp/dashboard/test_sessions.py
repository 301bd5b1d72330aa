"""Tests of the validity of sessions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.admin_key import ADMIN_CALLER
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.crypto.encryption import Sealer
from aks_flex_rp.dashboard.sessions import (
    CHECK_SECONDS,
    SessionManager,
    SignedInUser,
    SignInRefused,
    VerifiedUser,
)
from aks_flex_rp.settings import DashboardSettings

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import AuditEvent, UserSession

ID = "12345678-1234-1234-1234-123456789abc"
ENTRA = {"tenantId": ID, "clientId": ID, "clientSecretFile": "secret"}
PERSON = Caller(
    "an id", "ann@example.com", CallerKind.USER, "a tenant", frozenset({"an id", "a group"}), frozenset({"an id"})
)
SEALER = Sealer([b"k" * 32], "the test")


@dataclass
class KeptSessions:
    kept: dict[str, UserSession] = field(default_factory=dict)
    events: list[AuditEvent] = field(default_factory=list)

    async def put_session(self, session: UserSession) -> None:
        self.kept[session.id] = session

    async def session(self, id: str, now: float) -> UserSession | None:  # noqa: A002
        found = self.kept.get(id)
        return found if found and found.expires > now else None

    async def use_session(self, id: str, used: float) -> None:  # noqa: A002
        self.kept[id] = replace(self.kept[id], used=used)

    async def confirm_session(self, session: UserSession) -> bool:
        if session.id in self.kept:
            self.kept[session.id] = session
        return session.id in self.kept

    async def record(self, *events: AuditEvent) -> None:
        self.events += events

    async def end_session(self, id: str) -> None:  # noqa: A002
        self.kept.pop(id, None)


@dataclass
class World:
    now: float = 1_000_000.0
    key: str = "first key"
    settings: dict[str, Any] = field(default_factory=lambda: {"entra": ENTRA})
    store: KeptSessions = field(default_factory=KeptSessions)
    user: Caller = PERSON  # as Entra ID returns it
    refused: Exception | None = None  # the response of Entra ID, unless it confirms the user
    redeemed: list[str] = field(default_factory=list)

    @property
    def sessions(self) -> SessionManager:
        settings = DashboardSettings.model_validate(self.settings)
        store = cast("Store", self.store)
        return SessionManager(store, settings, lambda: self.key, SEALER, self.confirm, lambda: self.now)

    async def confirm(self, refresh_token: str) -> VerifiedUser:
        await asyncio.sleep(0)
        self.redeemed.append(refresh_token)
        if self.refused:
            raise self.refused
        return VerifiedUser(self.user, f"refresh {len(self.redeemed) + 1}")

    def begin(self, caller: Caller = PERSON, issued: str = "refresh 1") -> Any:
        return self.run(self.sessions.begin(caller, issued))

    def find(self, secret: str, *, by_hand: bool = True) -> Any:
        return self.run(self.sessions.find(secret, by_hand=by_hand))

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


def test_form_token_is_valid_only_for_its_own_session() -> None:
    world = World()
    mine, other = world.begin(), world.begin()
    assert mine.sent(mine.form_token)
    for token in (other.form_token, "", mine.secret, "ü"):
        assert not mine.sent(token)


def test_disabled_user_keeps_no_session_for_longer_than_a_check() -> None:
    """Attack: a user that Entra ID has disabled goes on with an open session."""
    world = World()
    session = world.begin()
    world.refused = SignInRefused("The user is disabled.")
    world.now += CHECK_SECONDS - 1
    assert world.find(session.secret)
    world.now += 1
    with pytest.raises(ArmError, match=r"disabled\. Sign in again") as caught:
        world.find(session.secret, by_hand=False)
    assert (caught.value.status, caught.value.code) == (401, "SessionEnded")
    assert not world.store.kept
    [event] = world.store.events
    assert (event.who_id, event.outcome, event.detail) == ("an id", "denied", {"reason": "The user is disabled."})


def test_confirmed_session_has_the_current_groups_of_the_user() -> None:
    world = World()
    session = world.begin()
    world.user = replace(PERSON, ids=frozenset({"an id"}))
    for _ in range(3):
        world.now += CHECK_SECONDS
        found = world.find(session.secret)
        assert found is not None
        assert found.caller == world.user
    assert world.redeemed == ["refresh 1", "refresh 2", "refresh 3"]
    assert "refresh" not in repr([each.refresh for each in world.store.kept.values()])


def test_session_of_another_user_or_without_refresh_token_ends() -> None:
    world = World(user=replace(PERSON, id="another id"))
    for session in (world.begin(), world.begin(issued="")):
        world.now += CHECK_SECONDS
        with pytest.raises(ArmError, match="Sign in again"):
            world.find(session.secret)
        assert world.find(session.secret) is None


def test_session_waits_while_entra_id_is_unreachable() -> None:
    world = World(refused=ArmError(503, "ServiceUnavailable", "Try again."))
    session = world.begin()
    world.now += CHECK_SECONDS
    with pytest.raises(ArmError, match="Try again"):
        world.find(session.secret)
    assert world.run(world.sessions.find(session.secret, check=False)) is None
    world.refused = None
    assert world.find(session.secret)


def test_concurrent_requests_check_a_session_once() -> None:
    world = World()
    session = world.begin()
    world.now += CHECK_SECONDS
    sessions = world.sessions

    async def find() -> list[SignedInUser | None]:
        return await asyncio.gather(*(sessions.find(session.secret) for _ in range(5)))

    assert all(world.run(find()))
    assert len(world.redeemed) == 1


def test_signed_out_session_is_not_confirmed() -> None:
    world = World()
    session = world.begin()
    world.now += CHECK_SECONDS
    [kept] = world.store.kept.values()
    sessions = world.sessions

    async def find() -> SignedInUser | None:
        found, _ = await asyncio.gather(sessions.find(session.secret), sessions.end(session.secret))
        return found

    assert world.run(find()) is None
    assert kept.id not in world.store.kept


def test_admin_key_session_is_not_checked_with_entra_id() -> None:
    world = World(refused=SignInRefused("The user is disabled."))
    session = world.begin(ADMIN_CALLER, "")
    world.now += CHECK_SECONDS
    assert world.find(session.secret)
