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
    MachineOwnership,
    SecondFetch,
)

NOW = 1_000_000.0
ONE = MachineIdentity("1" * 32, "one", "10.0.0.1", "Ubuntu 22.04")
TWO = MachineIdentity("2" * 32, "two", "10.0.0.2", "Ubuntu 22.04")
OWNED = MachineOwnership().promoted(ONE, NOW)
MOVED = OWNED.begin_attempt(replacing_until=NOW + 60).promoted(TWO, NOW + 1)


def stored(machines: MachineOwnership) -> MachineOwnership:
    return JoinState.from_document(JoinState(machines=machines).to_document()).machines


@pytest.mark.parametrize(
    ("known", "machine", "expected"),
    [
        (MachineOwnership(), ONE, Claim.FREE),
        (OWNED, ONE, Claim.OWNER),
        (OWNED, TWO, Claim.CONFLICT),
        (OWNED.begin_attempt(replacing_until=NOW - 1), TWO, Claim.CONFLICT),
        (OWNED.begin_attempt(replacing_until=NOW + 60).fetched("key-1", ONE, NOW), TWO, Claim.CONFLICT),
        (OWNED.begin_attempt(replacing_until=NOW + 60), TWO, Claim.FREE),
        (OWNED.begin_attempt(replacing_until=NOW + 60).fetched("key-2", TWO, NOW), TWO, Claim.FREE),
        (MOVED, ONE, Claim.REPLACED),
        (MOVED, TWO, Claim.OWNER),
        (MOVED.begin_attempt(replacing_until=NOW + 60).fetched("key-1", ONE, NOW), ONE, Claim.FREE),
        (MOVED.left(), ONE, Claim.REPLACED),
        (MOVED.left().begin_attempt(replacing_until=0.0).fetched("key-1", ONE, NOW), ONE, Claim.FREE),
        (MOVED.left().begin_attempt(replacing_until=NOW + 60), ONE, Claim.FREE),
    ],
)
def test_claim_depends_on_owner(known: MachineOwnership, machine: MachineIdentity, expected: Claim) -> None:
    assert known.claim(machine, NOW) is expected


def test_node_that_alternates_between_two_machines_is_a_conflict() -> None:
    known = OWNED.observed(TWO, NOW + 5)
    assert known.conflict is None

    known = known.observed(ONE, NOW + 10).observed(TWO, NOW + 15)

    assert known.conflict is not None
    assert known.conflict.identity == TWO
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
        OWNED.begin_attempt(replacing_until=NOW + 60)
        .fetched("key-2", TWO, NOW)
        .observed(ONE, NOW + 1)
        .observed(TWO, NOW + 2)
    )

    assert known == MachineOwnership(known.owner, replaced=(ONE.id,), fetch_key="key-2", fetch_machine=TWO.id)
    assert known.owner is not None
    assert known.owner.identity == TWO


def test_machines_survive_storage_and_new_attempts() -> None:
    state = JoinState(JoinPhase.JOINED, machines=MOVED.observed(ONE, NOW))

    assert JoinState.from_document(state.to_document()) == state
    assert state.begin_attempt(NOW, url_expires=NOW + 1).machines.owner == MOVED.owner
    assert JoinState.from_document({"state": "Joined"}).machines == MachineOwnership()


def test_machine_header_is_parsed_and_invalid_ones_are_ignored() -> None:
    assert parse_machine_header(ONE.header) == ONE
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


def test_url_is_bound_to_the_key_and_machine_of_its_first_client() -> None:
    """Attack: another client waits until the first one counts as dead, and then uses the URL."""
    bound = MachineOwnership().fetched("key-1", ONE, NOW)

    for known in (bound, bound.promoted(ONE, NOW), bound.promoted(ONE, NOW).left()):
        assert known.was_fetched_by("key-1", ONE)
        assert not known.was_fetched_by("key-1", None), "a copy that hides its machine"
        assert not known.was_fetched_by("key-1", TWO), "the disk was copied"
        assert not known.was_fetched_by("key-2", ONE), "a machine ID is no secret"
        assert stored(known) == known
    assert bound.fetched("key-1", None, NOW + 1) == bound
    for after in (bound.begin_attempt(replacing_until=0.0), bound.end_attempt()):
        assert (after.fetch_key, after.fetch_machine) == ("", "")


def test_second_client_is_recorded_rarely_and_stored() -> None:
    once = MachineOwnership().fetched("key-1", ONE, NOW).fetch_refused("other", NOW)

    assert once.second_fetch == SecondFetch("other", NOW)
    assert once.fetch_refused("another", NOW + 1) is once
    assert once.fetch_refused("other", NOW + SECOND_FETCH_SECONDS + 2) != once
    assert stored(once) == once
    assert once.promoted(ONE, NOW).second_fetch == once.second_fetch, "shown until the next attempt"
