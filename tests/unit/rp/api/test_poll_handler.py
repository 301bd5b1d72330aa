"""Which requests are polls, what is remembered of them, and the ids they are answered with."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aks_flex_node.api.contract import API_VERSION
from aks_flex_rp.api.poll_handler import LONGEST_WAIT, PathCache, RequestIds, parse_poll

CLUSTER = (
    "/subscriptions/12345678-1234-1234-1234-123456789abc/resourceGroups/Edge"
    "/providers/Microsoft.ContainerService/managedClusters/Plant"
)
PATH = f"{CLUSTER}/flexNodeConfig/Edge-1"
PLACE = (CLUSTER.lower(), "edge-1")


def scope(path: str = PATH, query: str = f"api-version={API_VERSION}", **headers: str) -> dict[str, Any]:
    shown = {"if-none-match": '"1"', **{name.replace("_", "-"): value for name, value in headers.items()}}
    encoded = [(name.encode(), value.encode()) for name, value in shown.items() if value]
    return {"path": path, "query_string": query.encode(), "headers": encoded}


def test_a_poll_names_its_node_in_any_case() -> None:
    polls = [parse_poll(scope(path), PathCache()) for path in (PATH, PATH.upper(), f"{PATH}/")]

    assert [poll.node_key for poll in polls if poll] == [PLACE] * 3


@pytest.mark.parametrize(
    "asked",
    [
        scope(if_none_match=""),
        scope(query=""),
        scope(query="api-version=2020-01-01"),
        scope(f"{CLUSTER}/flexNodeConfig"),
        scope(f"{PATH}/reportStatus"),
        scope("/healthz"),
    ],
)
def test_what_is_no_poll_is_left_to_others(asked: dict[str, Any]) -> None:
    assert parse_poll(asked, PathCache()) is None


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [("", 0), ("wait=10", 10), ("respond-async, wait=10", 10), ('Wait="7"', 7), ("wait=999999", LONGEST_WAIT)],
)
def test_how_long_a_poll_waits_is_what_it_prefers_within_bounds(prefer: str, seconds: float) -> None:
    poll = parse_poll(scope(prefer=prefer), PathCache())

    assert poll is not None
    assert poll.seconds == seconds


def test_a_remembered_path_stands_for_the_same_node() -> None:
    paths = PathCache()
    paths.remember(PATH, PLACE)

    assert paths.node_key(PATH) == PLACE


def test_no_more_paths_are_remembered_than_there_is_room_for() -> None:
    paths = PathCache(max_size=2)
    for number in range(3):
        paths.remember(f"not a path {number}", PLACE)

    assert [paths.node_key(f"not a path {number}") for number in range(3)] == [None, PLACE, PLACE]


def test_ids_of_requests_look_like_guids_and_never_repeat() -> None:
    ids = [one.fresh().decode() for one in (RequestIds(), RequestIds()) for _ in range(1000)]

    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", each) for each in ids)
    assert len(set(ids)) == len(ids)
