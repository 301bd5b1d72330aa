"""ARM's paths and filters: understood as they were meant, or refused; however long and odd they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.arm.ids import ClusterId, cluster_id
from aks_flex_node.rp.arm.problems import Problem
from aks_flex_node.rp.resource import filters
from aks_flex_node.rp.serving.doors import target
from tests.fuzz.damaging import damaged
from tests.fuzz.trying import tried

PLANT = ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant")
NODE = PLANT.node("edge-1")
FILTER = "ready eq 'True' and labels/site ne 'hall''s' and version eq '1.34.4'"


def understood(path: str) -> str | None:
    """The id that a path names; None when it is refused as the caller's mistake."""
    found = tried(lambda: target(path), ArmError)
    if isinstance(found, ArmError):
        assert 400 <= found.status < 500
        return None
    return found.id


@given(damaged(NODE.encode()) | st.binary(max_size=100))
def test_a_path_names_itself_or_nothing(content: bytes) -> None:
    path = content.decode("latin-1")
    named = understood(path)
    # An action says what to do with what it names, and is no part of the name.
    assert named is None or path.lower().startswith(named.lower())


@given(st.text(max_size=120))
def test_a_text_is_the_id_that_it_says_or_none(text: str) -> None:
    found = cluster_id(text)
    assert found is None or found.key == text.rstrip("/").lower()


@pytest.mark.parametrize("piece", ["/flexNodeConfig", "/a", "a.", "-", "(", "/resourceGroups/x"])
def test_a_path_of_sixty_thousand_characters_is_judged_at_once(piece: str) -> None:
    long = piece * (60_000 // len(piece))
    assert [understood(f"{start}{long}") for start in ("", str(PLANT), NODE)] == [None] * 3


fields = st.sampled_from(("ready", "version", "joinState")) | st.from_regex(r"labels/[a-z./-]{1,20}", fullmatch=True)
comparisons = st.builds(filters.Comparison, fields, st.text(max_size=20), st.booleans())


@given(st.lists(comparisons, min_size=1, max_size=5))
def test_a_filter_is_understood_as_it_was_written(wanted: list[filters.Comparison]) -> None:
    parts = [f"{one.field} {'eq' if one.equal else 'ne'} '{_quoted(one.value)}'" for one in wanted]

    assert filters.parse(" and ".join(parts)) == wanted


def _quoted(text: str) -> str:
    return text.replace("'", "''")


@given(damaged(FILTER.encode()) | st.binary(max_size=80))
def test_any_filter_is_understood_or_refused_in_words(content: bytes) -> None:
    found = filters.parse(content.decode("latin-1"))
    assert isinstance(found, list) or "is not understood" in found.message


@pytest.mark.parametrize("piece", ["'", "''", " and ", "a eq 'b' and ", "labels/a ", "\t"])
def test_a_filter_of_sixty_thousand_characters_is_judged_at_once(piece: str) -> None:
    for start in ("", "ready eq '", FILTER):
        assert isinstance(filters.parse(start + piece * (60_000 // len(piece)) + "!"), Problem)
