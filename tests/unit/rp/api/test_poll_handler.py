"""Tests of poll detection, the path cache and request IDs."""

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


def test_poll_path_is_case_insensitive() -> None:
    polls = [parse_poll(scope(path), PathCache()) for path in (PATH, PATH.upper(), f"{PATH}/")]

    assert [poll.node_ref for poll in polls if poll] == [PLACE] * 3


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
def test_parse_poll_ignores_requests_that_are_not_polls(asked: dict[str, Any]) -> None:
    assert parse_poll(asked, PathCache()) is None


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [("", 0), ("wait=10", 10), ("respond-async, wait=10", 10), ('Wait="7"', 7), ("wait=999999", LONGEST_WAIT)],
)
def test_poll_wait_is_read_from_prefer_header_and_bounded(prefer: str, seconds: float) -> None:
    poll = parse_poll(scope(prefer=prefer), PathCache())

    assert poll is not None
    assert poll.seconds == seconds


def test_path_cache_returns_remembered_node() -> None:
    paths = PathCache()
    paths.remember(PATH, PLACE)

    assert paths.node_ref(PATH) == PLACE


def test_path_cache_evicts_oldest_path_when_full() -> None:
    paths = PathCache(max_size=2)
    for number in range(3):
        paths.remember(f"not a path {number}", PLACE)

    assert [paths.node_ref(f"not a path {number}") for number in range(3)] == [None, PLACE, PLACE]


def test_request_ids_are_formatted_as_guids_and_unique() -> None:
    ids = [one.fresh().decode() for one in (RequestIds(), RequestIds()) for _ in range(1000)]

    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", each) for each in ids)
    assert len(set(ids)) == len(ids)


def test_nodes_share_the_key_of_their_cluster() -> None:
    cache = PathCache()
    first = cache.node_ref(PATH)
    assert first
    cache.remember(PATH, first)
    second = cache.node_ref(f"{CLUSTER}/flexNodeConfig/edge-2")
    assert second
    assert second[0] is first[0]


def test_invented_clusters_are_not_kept_in_memory() -> None:
    """A stranger polls for nodes of clusters that do not exist. An interned string may stay for ever."""
    paths = [f"{CLUSTER}-invented-{number}/flexNodeConfig/edge-1" for number in range(50)]
    cache = PathCache()
    again = [(cache.node_ref(path), cache.node_ref(path)) for path in paths]
    assert all(one == two and one and two and one[0] is not two[0] for one, two in again)
