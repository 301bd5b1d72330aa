"""ARM paths and filters of any length: parsed correctly or rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aks_flex_rp.api.authorization import parse_target
from aks_flex_rp.arm.errors import ArmError, Problem
from aks_flex_rp.arm.ids import ClusterId, parse_cluster_id
from aks_flex_rp.nodes import queries
from tests.fuzz.attempts import tried
from tests.fuzz.mutations import damaged

PLANT = ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant")
NODE = PLANT.node("edge-1")
FILTER = "ready eq 'True' and labels/site ne 'hall''s' and version eq '1.34.4'"


def parsed_id(path: str) -> str | None:
    """Returns the ID that a path names; None when it is rejected with a 4xx status."""
    found = tried(lambda: parse_target(path), ArmError)
    if isinstance(found, ArmError):
        assert 400 <= found.status < 500
        return None
    return found.id


@given(damaged(NODE.encode()) | st.binary(max_size=100))
def test_parsed_resource_id_is_prefix_of_request_path_or_none(content: bytes) -> None:
    path = content.decode("latin-1")
    named = parsed_id(path)
    # An action follows the name and is not part of it.
    assert named is None or path.lower().startswith(named.lower())


@given(st.text(max_size=120))
def test_parsed_cluster_id_equals_input_text_or_none(text: str) -> None:
    found = parse_cluster_id(text)
    assert found is None or found.key == text.rstrip("/").lower()


@pytest.mark.parametrize("piece", ["/flexNodeConfig", "/a", "a.", "-", "(", "/resourceGroups/x"])
def test_path_of_sixty_thousand_characters_is_refused(piece: str) -> None:
    long = piece * (60_000 // len(piece))
    assert [parsed_id(f"{start}{long}") for start in ("", str(PLANT), NODE)] == [None] * 3


fields = st.sampled_from(("ready", "version", "joinState")) | st.from_regex(r"labels/[a-z./-]{1,20}", fullmatch=True)
comparisons = st.builds(queries.FilterComparison, fields, st.text(max_size=20), st.booleans())


@given(st.lists(comparisons, min_size=1, max_size=5))
def test_filter_round_trips_through_its_text_form(wanted: list[queries.FilterComparison]) -> None:
    parts = [f"{one.field} {'eq' if one.equal else 'ne'} '{_quoted(one.value)}'" for one in wanted]

    assert queries.parse_filter(" and ".join(parts)) == wanted


def _quoted(text: str) -> str:
    return text.replace("'", "''")


@given(damaged(FILTER.encode()) | st.binary(max_size=80))
def test_arbitrary_filter_is_parsed_or_refused_with_message(content: bytes) -> None:
    found = queries.parse_filter(content.decode("latin-1"))
    assert isinstance(found, list) or "is not a valid filter" in found.message


@pytest.mark.parametrize("piece", ["'", "''", " and ", "a eq 'b' and ", "labels/a ", "\t"])
def test_filter_of_sixty_thousand_characters_is_refused(piece: str) -> None:
    for start in ("", "ready eq '", FILTER):
        assert isinstance(queries.parse_filter(start + piece * (60_000 // len(piece)) + "!"), Problem)
