"""Tests of lists: order, pages, filters."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api.bodies import token
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import NEIGHBOUR

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer

NAMES = [f"list-{number}" for number in range(7)]


@pytest.fixture(scope="module")
def nodes(service: Running) -> Api:
    """Creates seven nodes in a separate cluster: every third is ready, every second in Berlin, the last is older."""
    api = service.admin.at(NEIGHBOUR)
    for number, name in enumerate(NAMES):
        body = token(labels={"site": "berlin" if number % 2 == 0 else "ohare"})
        body["properties"]["versions"] = {"kubernetes": "1.33.1" if number == 6 else "1.34.4"}
        api.put(name, body)
        if number % 3 == 0:
            api.report(name, {"conditions": [{"type": "Ready", "status": "True"}]})
    api.report(NAMES[1], {"joinState": "Failed", "joinFailure": "No network."})
    return api


def named(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.text
    return [each["name"] for each in answer.json["value"]]


def test_list_returns_all_nodes_of_cluster_in_order(nodes: Api) -> None:
    listed = nodes.list()

    assert named(listed) == NAMES
    assert "nextLink" not in listed.json
    assert listed.json["value"][0].keys() == {"id", "name", "type", "etag", "systemData", "properties"}


@pytest.mark.parametrize("top", [1, 2, 3, 6, 7, 8])
@pytest.mark.parametrize(("query", "expected"), [({}, NAMES), ({"filter": "labels/site eq 'berlin'"}, NAMES[::2])])
def test_list_pages_add_up_to_whole_list(nodes: Api, top: int, query: dict[str, str], expected: list[str]) -> None:
    found = [named(page) for page in nodes.pages(nodes.list(top=str(top), **query))]

    assert list(chain(*found)) == expected
    assert all(0 < len(page) <= top for page in found)
    assert query or all(len(page) == top for page in found[:-1])


def test_list_paging_skips_no_node_when_another_is_deleted(nodes: Api) -> None:
    nodes.put("list-25")
    first = nodes.list(top="3", filter="version eq '1.34.4'")
    assert named(first) == NAMES[:3]
    nodes.delete("list-25")

    assert list(chain(*map(named, nodes.pages(first)))) == NAMES[:6]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ("ready eq 'True'", [0, 3, 6]),
        ("ready ne 'True'", [1, 2, 4, 5]),
        ("version eq '1.33.1'", [6]),
        ("joinState eq 'Failed'", [1]),
        ("labels/site eq 'berlin'", [0, 2, 4, 6]),
        ("labels/other ne 'berlin'", [0, 1, 2, 3, 4, 5, 6]),
        ("ready eq 'True' and labels/site eq 'berlin' and version eq '1.33.1'", [6]),
    ],
)
def test_list_filter_returns_matching_nodes(nodes: Api, wanted: str, numbers: list[int]) -> None:
    assert named(nodes.list(filter=wanted)) == [NAMES[number] for number in numbers]


@pytest.mark.parametrize(
    ("query", "target"),
    [
        ({"filter": "name eq 'x'"}, "$filter"),
        ({"top": "0"}, "$top"),
        ({"top": "1001"}, "$top"),
        ({"top": "many"}, "$top"),
        ({"skipToken": "%%%"}, "$skipToken"),
    ],
)
def test_invalid_list_query_is_refused_with_target(nodes: Api, query: dict[str, str], target: str) -> None:
    nodes.list(**query).assert_refused(400, "InvalidRequestContent", target)


def test_all_errors_of_list_query_are_reported_together(nodes: Api) -> None:
    refused = nodes.list(top="0", filter="x")

    assert {each["target"] for each in refused.error["details"]} == {"$top", "$filter"}


def test_next_link_uses_address_from_referer_header(nodes: Api) -> None:
    query = {"api-version": API_VERSION, "$top": "2"}
    front = f"https://arm.example{nodes.path()}?api-version={API_VERSION}"

    listed = nodes.ask("GET", nodes.path(), query=query, headers={"Referer": front})

    assert listed.json["nextLink"].startswith(f"https://arm.example{nodes.path()}?api-version={API_VERSION}&$top=2&")


def test_next_link_ignores_unrelated_referer(nodes: Api) -> None:
    query = {"api-version": API_VERSION, "$top": "2"}

    listed = nodes.ask("GET", nodes.path(), query=query, headers={"Referer": "https://evil.example/other"})

    assert listed.json["nextLink"].startswith(nodes.connection.url)


def test_list_shows_the_name_of_a_refused_record_and_why(service: Running, nodes: Api) -> None:
    """Attack: someone changes the row of a node in the database, and the node disappears from lists."""
    store: Any = service.store
    attack = 'UPDATE nodes SET properties = \'{"nodeConfig":{"labels":{"site":"evil"}}}\' WHERE key = $1'
    nodes.put("list-2b", token())
    try:
        service.call(store._write_many(attack, [("list-2b",)]))

        listed = nodes.list()
        assert named(listed) == sorted([*NAMES, "list-2b"])
        [refused] = [each for each in listed.json["value"] if each["name"] == "list-2b"]
        assert refused["properties"].keys() == {"status"}, "nothing of the record"
        ready, condition = refused["properties"]["status"]["conditions"]
        assert (ready["status"], condition["type"], condition["reason"]) == (
            "Unknown",
            "RecordRefused",
            "RecordChanged",
        )
        assert "`aks-flex-rp records accept list-2b --digest DIGEST`" in condition["message"]
        assert "evil" not in listed.text
        nodes.get("list-2b").assert_refused(500, "InternalServerError")
        assert list(chain(*map(named, nodes.pages(nodes.list(top="1"))))) == sorted([*NAMES, "list-2b"])
        assert named(nodes.list(filter="labels/site eq 'evil'")) == []
    finally:
        service.call(store.delete_node(NEIGHBOUR.key, "list-2b", None))
