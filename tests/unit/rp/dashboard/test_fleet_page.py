"""What an address of the fleet's page asks for, and how its bars are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.dashboard.fleet_page import FleetLinks, newest_first, parse_fleet_query, segments
from aks_flex_rp.dashboard.page_request import local_path
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.store.fleet import FleetQuery, FleetState

if TYPE_CHECKING:
    from collections.abc import Mapping

SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
OSLO = ShownCluster(ClusterId(SUBSCRIPTION, "edge", "oslo"), 1, "oslo")
ROME = ShownCluster(ClusterId(SUBSCRIPTION, "edge", "rome"), 2, "rome")
NEW = ShownCluster(ClusterId(SUBSCRIPTION, "edge", "new"), 0, "new")


def test_an_address_without_words_asks_for_the_first_page_of_all() -> None:
    assert parse_fleet_query({}, [OSLO, ROME, NEW]) == FleetQuery((1, 2))


def test_every_word_of_an_address_is_understood() -> None:
    words = {"cluster": OSLO.id.key.upper(), "search": "hall", "state": "NotReady", "version": "1.34.4"}
    words |= {"behind": "yes", "trouble": "yes", "sort": "seen", "order": "desc", "page": "3"}
    assert parse_fleet_query(words, [OSLO, ROME]) == FleetQuery(
        (1,),
        "hall",
        FleetState.NOT_READY,
        "1.34.4",
        trouble=True,
        behind=True,
        sort="seen",
        descending=True,
        offset=100,
    )


@pytest.mark.parametrize(
    "words",
    [{"state": "Fine"}, {"sort": "key; DROP TABLE fleet"}, {"page": "-1"}, {"page": "0"}, {"page": "9" * 40}],
)
def test_words_that_mean_nothing_are_left_out(words: Mapping[str, str]) -> None:
    assert parse_fleet_query(words, [OSLO, ROME]) == FleetQuery((1, 2))


def test_a_cluster_that_one_may_not_see_shows_nothing() -> None:
    assert parse_fleet_query({"cluster": ROME.id.key}, [OSLO]).cluster_numbers == ()


def test_a_link_keeps_what_is_asked_for_and_begins_at_the_first_page() -> None:
    link = FleetLinks({"search": "a b&c", "page": "4", "state": "Ready"})
    assert link(state="NotReporting") == "/?search=a+b%26c&state=NotReporting"
    assert link(page=2) == "/?search=a+b%26c&state=Ready&page=2"
    assert FleetLinks({})(state="") == "/"


def test_sorting_by_the_same_column_turns_it_round() -> None:
    assert FleetLinks({}).sort("name") == "/?sort=name&order=desc"
    assert FleetLinks({"sort": "seen", "order": "desc"}).sort("seen") == "/?sort=seen"
    assert FleetLinks({"sort": "seen"}).sort("state") == "/?sort=state"


def test_a_bar_is_full_and_its_smallest_part_can_be_seen() -> None:
    parts = segments([("a", "A", 99_999), ("b", "B", 0), ("c", "C", 1)])
    assert [each.name for each in parts] == ["a", "c"]
    assert parts[-1].width >= 0.9
    assert parts[-1].start + parts[-1].width == pytest.approx(100, abs=0.01)
    assert segments([]) == []


@pytest.mark.parametrize("path", ["/", "/?search=a", "/ui/nodes/a/b/c/d", "/ui/audit?who=//x"])
def test_a_page_of_ours_may_follow_a_sign_in(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/ui//evil.example",
        "/ui/\\\\evil.example",
        "/ui/\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "ui/audit",
        "/metrics",
        "",
        "/ui/" + "a" * 3000,
    ],
)
def test_nothing_else_does(path: str) -> None:
    assert local_path(path) == "/"


def test_a_node_that_says_something_odd_about_its_version_keeps_nobody_from_the_page() -> None:
    odd = ["1.34.4", "1.35.0", "\u00b2.1", "\u0661.2", "", "x" * 256, "9" * 256, "-1.+2"]
    assert newest_first(odd)[:3] == ["9" * 256, "1.35.0", "1.34.4"]
