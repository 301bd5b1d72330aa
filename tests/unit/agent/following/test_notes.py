"""What the agent that stays writes down about itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aks_flex_node.agent.following import notes
from aks_flex_node.agent.following.notes import Notes
from aks_flex_node.agent.following.verdicts import Standing
from aks_flex_node.host.dry import RecordedHost

FILE = "/var/lib/aks-flex-node/following.json"
FULL = Notes("Throttled", "wait", "since", "asked", "7", "applied", "refused", 3, "drifted", ("a", "b"), {"x": 1})


def test_what_is_written_is_read_again_and_is_for_root_alone() -> None:
    host = RecordedHost()
    notes.write(host, FILE, FULL)
    assert notes.read(host, FILE) == FULL
    entry = host.look(FILE)
    assert entry
    assert entry.mode == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '{"drift": 5}', '"text"'])
def test_a_damaged_file_says_nothing(text: str) -> None:
    assert notes.read(RecordedHost({FILE: text}), FILE) == Notes()


@pytest.mark.parametrize(
    "wrong",
    [{"drifts": "many"}, {"drifts": None}, {"standing": 5}, {"message": ["x"]}, {"fights": []}, {"later": "key"}],
    ids=str,
)
def test_of_a_file_with_odd_values_the_rest_is_good(wrong: dict[str, object]) -> None:
    document = {"seen": "7", "drift": ["a"], **wrong}
    assert notes.read(RecordedHost({FILE: json.dumps(document)}), FILE) == Notes(seen="7", drift=("a",))


def test_the_moment_is_of_the_last_change_of_standing() -> None:
    before = replace(Notes(), standing="Following", since="2020-01-01T00:00:00Z")
    assert before.standing_at(Standing.FOLLOWING, "again").since == "2020-01-01T00:00:00Z"
    changed = before.standing_at(Standing.THROTTLED, "slow down")
    assert (changed.standing, changed.message) == ("Throttled", "slow down")
    assert changed.since > "2020-01-01T00:00:00Z"
