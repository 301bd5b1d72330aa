"""The join state of a node: its document in the store, and its transitions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from aks_flex_rp.join_state import AccessMethod, ClusterAccess, JoinPhase, JoinState

OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
EXEC, CERTIFICATE = ClusterAccess(OID, AccessMethod.EXEC), ClusterAccess(OID, AccessMethod.CERTIFICATE)
FETCHED = JoinState(JoinPhase.CONFIG_FETCHED, since=5.0, url_expires=9.0)
JOINED = JoinState(JoinPhase.JOINED, since=5.0)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"state": "Created", "since": 5.0, "token": "abcdef", "urlExpires": 9.5},
        {"since": 7},
        {
            "state": "BootstrapAttempted",
            "csr": "csr-1",
            "issued": "csr-1",
            "access": {"identity": OID, "method": "exec"},
        },
        {
            "state": "Failed",
            "failure": "The disk is full.",
            "formerTaints": [["a", "NoSchedule"], ["b", "NoExecute"]],
        },
        {"state": "Joined", "laterKey": {"of": ["another", "release"]}, "laterNull": None},
        {"state": "LaterPhase"},
    ],
)
def test_join_state_document_round_trips_unchanged(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(JoinState.from_document(document).to_document())) == document


def test_missing_join_phase_counts_as_created() -> None:
    state = JoinState.from_document({})
    assert state.phase is JoinPhase.CREATED
    assert state.config_fetched().to_document() == {"state": "ConfigFetched"}


def test_unknown_join_phase_is_preserved() -> None:
    state = JoinState.from_document({"state": "LaterPhase"})
    assert f"{state.phase}" == str(state.phase) == state.phase.value == "LaterPhase"
    assert state == JoinState.from_document({"state": "LaterPhase"})
    assert state.config_fetched() is state
    assert state.left() is state


def test_unknown_join_state_keys_survive_transition() -> None:
    state = JoinState.from_document({"state": "Created", "later": 1})
    assert state.joined().to_document() == {"state": "Joined", "later": 1}


def test_new_attempt_drops_unknown_join_state_keys() -> None:
    state = JoinState.from_document({"state": "Failed", "failure": "No disk.", "later": 1})
    begun = state.begin_attempt(20.0, url_expires=30.0)
    assert begun.to_document() == {"state": "Created", "since": 20.0, "urlExpires": 30.0}
    assert begun.end_attempt(40.0).to_document() == {"state": "Created", "since": 40.0}


def test_unknown_access_method_has_no_role_and_is_stored_unchanged() -> None:
    document = {"access": {"identity": OID, "method": "later"}}
    state = JoinState.from_document(document)
    assert state.access
    assert state.access.role is None
    assert state.to_document() == document
    assert state.access not in (EXEC, CERTIFICATE)


def test_new_join_attempt_resets_state_but_joined_node_remains_joined() -> None:
    failed = replace(FETCHED, token="old", csr="csr-1", issued="csr-1", access=EXEC).failed("No disk.")
    expected = JoinState(JoinPhase.CREATED, 20.0, "new", 30.0)
    assert failed.begin_attempt(20.0, url_expires=30.0, token="new") == expected
    assert JOINED.begin_attempt(20.0, url_expires=30.0).phase is JoinPhase.JOINED


def test_write_without_config_url_ends_attempt_and_keeps_joined_state() -> None:
    assert replace(FETCHED, token="old", access=EXEC).end_attempt(20.0) == JoinState(JoinPhase.CREATED, 20.0)
    joined = replace(JOINED, token="old", url_expires=9.0, csr="csr-1", access=EXEC)
    assert joined.end_attempt(20.0) == replace(JOINED, csr="csr-1")


def test_join_report_with_exec_auth_starts_bootstrap_attempt() -> None:
    attempted = JoinState(JoinPhase.BOOTSTRAP_ATTEMPTED, since=5.0, access=EXEC)
    assert FETCHED.joining(EXEC) == attempted
    assert FETCHED.joining(CERTIFICATE) == replace(FETCHED, access=CERTIFICATE)
    assert JoinState().joining(CERTIFICATE).phase is JoinPhase.CONFIG_FETCHED
    assert JOINED.joining(EXEC).phase is JoinPhase.JOINED


def test_identity_may_request_again_and_earlier_certificate_is_discarded() -> None:
    first = JoinState(access=CERTIFICATE).identity_used(OID, "csr-1")
    assert (first.phase, first.csr) == (JoinPhase.BOOTSTRAP_ATTEMPTED, "csr-1")
    issued = first.identity_issued("csr-1")
    assert issued.issued == "csr-1"

    again = issued.identity_used(OID, "csr-2")
    assert (again.csr, again.issued) == ("csr-2", None)
    assert again.identity_issued("csr-1") is again


def test_csr_of_other_identity_does_not_change_join_state() -> None:
    granted = JoinState(access=CERTIFICATE)
    assert granted.identity_used(OTHER, "csr-1") is granted
    assert JoinState().identity_used(OID, "csr-1") == JoinState()


def test_only_current_token_changes_join_state() -> None:
    waiting = replace(FETCHED, token="abcdef")
    assert waiting.token_used("other", "csr-1") is waiting
    assert waiting.token_issued("other", "csr-1") is waiting
    assert waiting.token_failed("other", "why") is waiting


def test_token_is_used_once_and_cleared_when_certificate_is_issued() -> None:
    used = replace(FETCHED, token="abcdef").token_used("abcdef", "csr-1")
    assert used == JoinState(JoinPhase.BOOTSTRAP_ATTEMPTED, since=5.0, token="abcdef", csr="csr-1")
    assert used.token_used("abcdef", "csr-1") is used
    assert used.token_issued("abcdef", "csr-1") == replace(used, token=None, issued="csr-1")


def test_failed_token_fails_join_unless_node_is_joined() -> None:
    failed = replace(FETCHED, token="abcdef").token_failed("abcdef", "Denied.")
    assert failed == JoinState(JoinPhase.FAILED, since=5.0, failure="Denied.")
    assert replace(JOINED, token="abcdef").token_failed("abcdef", "Denied.") == JOINED


def test_joined_state_clears_failure_and_can_become_left() -> None:
    joined = FETCHED.failed("No disk.").joined()
    assert joined == JOINED
    assert joined.left() == JoinState(JoinPhase.LEFT, since=5.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FETCHED, "Failed"),
        (replace(FETCHED, state=JoinPhase.CREATED), "Failed"),
        (replace(FETCHED, state=JoinPhase.BOOTSTRAP_ATTEMPTED), "BootstrapAttempted"),
        (JOINED, "Joined"),
        (replace(FETCHED, url_expires=None), "ConfigFetched"),
    ],
)
def test_failure_on_the_machine_changes_only_a_join_that_waits(before: JoinState, after: str) -> None:
    assert before.machine_failed("The disk is full.").phase.value == after


def test_fetch_after_a_failure_on_the_machine_begins_another_try() -> None:
    again = FETCHED.machine_failed("The disk is full.").config_fetched()
    assert (again.phase, again.failure) == (JoinPhase.CONFIG_FETCHED, None)
    expired = JoinState(JoinPhase.FAILED, since=5.0, failure="The token expired.")
    assert expired.config_fetched() is expired
