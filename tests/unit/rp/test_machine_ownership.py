"""Tests of the rules that decide which machine a node lives on."""

from __future__ import annotations

import pytest

from aks_flex_node.api.machine_identity import MachineIdentity, hash_machine_id, parse_machine_header
from aks_flex_rp.join_state import JoinPhase, JoinState
from aks_flex_rp.machine_ownership import (
    ALIVE_SECONDS,
    CONFLICT_SECONDS,
    SECOND_FETCH_SECONDS,
    Claim,
    FetchClient,
    MachineOwnership,
    SecondFetch,
)

NOW = 1_000_000.0
ONE = MachineIdentity("1" * 32, "one", "10.0.0.1", "Ubuntu 22.04")
TWO = MachineIdentity("2" * 32, "two", "10.0.0.2", "Ubuntu 22.04")
OWNED = MachineOwnership().promoted(ONE, NOW)
MOVED = OWNED.begin_attempt(replacing_until=NOW + 60).promoted(TWO, NOW + 1)


@pytest.mark.parametrize(
    ("known", "machine", "expected"),
    [
        (MachineOwnership(), ONE, Claim.FREE),
        (OWNED, ONE, Claim.OWNER),
        (OWNED, TWO, Claim.CONFLICT),
        (OWNED.begin_attempt(replacing_until=NOW - 1), TWO, Claim.CONFLICT),
        (OWNED.begin_attempt(replacing_until=NOW + 60).fetched(ONE, NOW), TWO, Claim.CONFLICT),
        (OWNED.begin_attempt(replacing_until=NOW + 60), TWO, Claim.FREE),
        (OWNED.begin_attempt(replacing_until=NOW + 60).fetched(TWO, NOW), TWO, Claim.FREE),
        (MOVED, ONE, Claim.REPLACED),
        (MOVED, TWO, Claim.OWNER),
        (MOVED.begin_attempt(replacing_until=NOW + 60).fetched(ONE, NOW), ONE, Claim.FREE),
        (MOVED.left(), ONE, Claim.REPLACED),
        (MOVED.left().begin_attempt(replacing_until=0.0).fetched(ONE, NOW), ONE, Claim.FREE),
        (MOVED.left().begin_attempt(replacing_until=NOW + 60), ONE, Claim.FREE),
    ],
)
def test_claim_depends_on_owner(known: MachineOwnership, machine: MachineIdentity, expected: Claim) -> None:
    assert known.claim(machine, NOW) is expected


def test_client_without_machine_counts_as_another_machine() -> None:
    """Attack: a client that omits its machine fetches the configuration of a living node."""
    assert OWNED.fetch_conflict(None, NOW, owner_alive=True, joining=False) == OWNED.owner
    assert OWNED.fetch_conflict(None, NOW, owner_alive=False, joining=False) is None
    replacing = OWNED.begin_attempt(replacing_until=NOW + 60)
    assert replacing.fetch_conflict(None, NOW, owner_alive=True, joining=False) is None


@pytest.mark.parametrize(
    ("known", "machine", "alive", "joining", "refused_for"),
    [
        (MachineOwnership(), ONE, False, False, None),
        (OWNED, ONE, True, False, "one"),
        (OWNED, TWO, True, False, "one"),
        (OWNED, TWO, False, False, None),
        (OWNED.begin_attempt(replacing_until=NOW + 60), TWO, True, False, None),
        (MachineOwnership().fetched(ONE, NOW), TWO, False, True, "one"),
        (MachineOwnership().fetched(ONE, NOW), TWO, False, False, None),
        (MachineOwnership().fetched(ONE, NOW - ALIVE_SECONDS), TWO, False, True, None),
    ],
)
def test_second_machine_may_not_fetch_configuration(
    known: MachineOwnership, machine: MachineIdentity, alive: bool, joining: bool, refused_for: str | None
) -> None:
    found = known.fetch_conflict(machine, NOW, owner_alive=alive, joining=joining)

    same = known.owner is not None and known.owner.id == machine.id
    assert (found.identity.host_name if found else None) == (None if same else refused_for)


def test_node_that_alternates_between_two_machines_is_a_conflict() -> None:
    known = OWNED.observed(TWO, NOW + 5)
    assert known.conflict is None

    known = known.observed(ONE, NOW + 10).observed(TWO, NOW + 15)

    assert known.conflict is not None
    assert known.conflict.machine == TWO
    assert known.owner == OWNED.owner


def test_conflict_ends_when_other_machine_is_silent() -> None:
    known = OWNED.observed(TWO, NOW).observed(ONE, NOW + 5)

    assert known.observed(ONE, NOW + CONFLICT_SECONDS + 1).conflict is None


def test_node_that_stays_on_another_machine_has_moved() -> None:
    known = OWNED.observed(TWO, NOW)

    known = known.observed(TWO, NOW + ALIVE_SECONDS + 1)

    assert known.owner is not None
    assert known.owner.identity == TWO
    assert known.replaced == (), "nobody moved it on purpose, so a returning machine is a conflict"


def test_replacement_moves_node_at_first_observation() -> None:
    known = (
        OWNED.begin_attempt(replacing_until=NOW + 60).fetched(TWO, NOW).observed(ONE, NOW + 1).observed(TWO, NOW + 2)
    )

    assert known == MachineOwnership(known.owner, replaced=(ONE.id,))
    assert known.owner is not None
    assert known.owner.identity == TWO


def test_machines_survive_storage_and_new_attempts() -> None:
    state = JoinState(JoinPhase.JOINED, machines=MOVED.observed(ONE, NOW))

    assert JoinState.from_document(state.to_document()) == state
    assert state.begin_attempt(NOW, url_expires=NOW + 1).machines.owner == MOVED.owner
    assert JoinState.from_document({"state": "Joined"}).machines == MachineOwnership()


def test_machine_header_is_parsed_and_invalid_ones_are_ignored() -> None:
    assert parse_machine_header(ONE.to_header()) == ONE
    assert parse_machine_header("") is None
    assert parse_machine_header("id=nonsense&hostName=a") is None
    assert parse_machine_header("id=" + "1" * 32 + "&hostName=a%0Ab%60") == MachineIdentity("1" * 32, "ab")
    assert parse_machine_header("id=" + "1" * 4000) is None


@pytest.mark.parametrize("text", ["", "uninitialized", "zz" * 16])
def test_machine_without_id_has_no_hash(text: str) -> None:
    assert hash_machine_id(text) == ""
    assert hash_machine_id("0123456789abcdef0123456789abcdef\n") == hash_machine_id(
        "0123456789ABCDEF0123456789abcdef"
    )


def test_url_is_bound_to_its_first_client() -> None:
    """Attack: another client waits until the first one counts as dead, and then uses the URL."""
    free = MachineOwnership()
    bound = free.first_fetched(ONE, "192.0.2.1")
    unnamed = free.first_fetched(None, "192.0.2.1")

    assert free.fetch_client(ONE, "192.0.2.1") is FetchClient.FIRST
    assert bound.fetch_client(ONE, "198.51.100.9") is FetchClient.SAME, "after a crash, from another address"
    assert bound.fetch_client(ONE, "192.0.2.1", "key") is FetchClient.NEW_KEY, "or a thief who knows the ID"
    assert bound.fetch_client(TWO, "192.0.2.1") is FetchClient.OTHER
    assert bound.fetch_client(None, "198.51.100.9") is FetchClient.OTHER
    assert bound.fetch_client(None, "192.0.2.1") is FetchClient.OTHER, "many may have the address"
    assert unnamed.fetch_client(ONE, "192.0.2.1") is FetchClient.UNKNOWN
    assert unnamed.fetch_client(ONE, "198.51.100.9") is FetchClient.OTHER
    for after in (bound.begin_attempt(replacing_until=0.0), bound.end_attempt()):
        assert after.fetch_client(TWO, "198.51.100.9") is FetchClient.FIRST


def test_second_client_is_recorded_rarely_and_stored() -> None:
    bound = MachineOwnership().first_fetched(ONE, "192.0.2.1")
    once = bound.fetched_again("other", NOW, refused=False)

    assert once.fetched_again("other", NOW + 1, refused=False) is once
    worse = once.fetched_again("other", NOW + 1, refused=True)
    assert worse.second_fetch == SecondFetch("other", NOW + 1, refused=True)
    assert worse.fetched_again("other", NOW + SECOND_FETCH_SECONDS + 2, refused=True) != worse
    assert MachineOwnership.from_document(worse.to_document() or {}) == worse
    assert worse.promoted(ONE, NOW).second_fetch == worse.second_fetch, "shown until the next attempt"
