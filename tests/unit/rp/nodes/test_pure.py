"""What is done with nodes, as far as it needs neither store nor cluster."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.nodes import reading, reporting
from aks_flex_node.rp.nodes.around import changed
from aks_flex_node.rp.nodes.writing import Guard, identity, none_match
from aks_flex_node.rp.resource.models import Properties
from aks_flex_node.rp.store.store import Node

NODE = Node("/c", "edge", "edge", 17, '"17"', {}, {})
G = "11111111-2222-3333-4444-55555555555A"
T = "aaaaaaaa-2222-3333-4444-55555555555a"


@pytest.mark.parametrize(
    ("guard", "exists", "absent"),
    [
        (Guard(), True, True),
        (Guard(match='"17"'), True, False),
        (Guard(match='"1", "17"'), True, False),
        (Guard(match='W/"17"'), False, False),
        (Guard(match='"1"'), False, False),
        (Guard(match="*"), True, False),
        (Guard(none_match="*"), False, True),
        (Guard(none_match='"17"'), False, True),
        (Guard(none_match='"1"'), True, True),
    ],
)
def test_a_guard_lets_through_what_it_says(guard: Guard, exists: bool, absent: bool) -> None:
    for node, passes in ((NODE, exists), (None, absent)):
        with nullcontext() if passes else pytest.raises(ArmError, match="If-Match"):
            guard.check(node, "edge")


def test_an_etag_is_found_in_a_list_weak_or_not() -> None:
    assert none_match('"1", W/"17"', '"17"')
    assert none_match(" * ", '"17"')
    assert not none_match("", '"17"')


def test_only_what_differs_is_told() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    after = {"a": 1, "b": {"c": 2}, "e": [1, 2], "f": None}

    assert changed(before, after) == {"b.c": [1, 2], "b.d": [2, None], "e": [[1], [1, 2]]}


@pytest.mark.parametrize(
    ("auth", "who"),
    [
        ({}, ""),
        ({"method": "servicePrincipal", "servicePrincipal": {"clientId": G, "clientTenant": "x.example"}}, G.lower()),
        (
            {"method": "servicePrincipal", "servicePrincipal": {"clientId": G, "clientTenant": T.upper()}},
            f"{G}@{T}".lower(),
        ),
        ({"method": "servicePrincipal", "servicePrincipal": {"clientId": G}}, G.lower()),
        ({"method": "managedIdentity", "managedIdentity": {"clientId": G, "principalId": G[:-1] + "B"}}, G.lower()),
        ({"method": "managedIdentity", "managedIdentity": {"principalId": G}}, G.lower()),
        ({"method": "managedIdentity"}, ""),
        ({"method": "arc", "arc": {"principalId": G}}, G.lower()),
    ],
)
def test_a_nodes_word_is_that_of_its_identity(auth: dict[str, Any], who: str) -> None:
    assert identity(Properties.model_validate({"azureAuth": auth}), "") == who


def test_where_the_clusters_tenant_is_known_only_its_identities_count() -> None:
    auth = {"method": "arc", "arc": {"principalId": G}}
    assert identity(Properties.model_validate({"azureAuth": auth}), T) == f"{G}@{T}".lower()


def test_a_list_goes_on_where_it_ended() -> None:
    assert reading.asked(None, None, reading.skip_token("edge-1")).after == "edge-1"
    assert reading.asked(None, "1000", None).top == 1000


@pytest.mark.parametrize("token", ["%", "AAAA", "ä", "=", "a"])
def test_a_place_that_was_made_up_is_refused(token: str) -> None:
    with pytest.raises(ArmError) as caught:
        reading.asked(None, None, token)
    assert caught.value.target == "$skipToken"


READY = {"type": "Ready", "status": "True"}


def test_reports_are_merged() -> None:
    first = reporting.merged(reporting.read({"conditions": [READY], "agentVersion": "1"}), {}, 0.0)
    second = reporting.merged(
        reporting.read({"conditions": [{"type": "Other", "status": "False"}], "driftCount": 1}), first, 60.0
    )
    third = reporting.merged(reporting.read({"conditions": [{"type": "Ready", "status": "False"}]}), second, 120.0)

    assert [each["lastTransitionTime"] for each in second["conditions"]] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:01:00Z",
    ]
    assert third["conditions"][-1] == {
        "type": "Ready",
        "status": "False",
        "lastTransitionTime": "1970-01-01T00:02:00Z",
    }
    assert (third["agentVersion"], third["driftCount"]) == ("1", 1)
    assert reporting.merged(reporting.read({}), third, 180.0) == third


def test_a_time_keeps_its_zone() -> None:
    told = reporting.merged(reporting.read({"lastConfigApplied": "2024-02-26T15:30:45.5+01:00"}), {}, 0.0)

    assert told == {"lastConfigApplied": "2024-02-26T15:30:45.500000+01:00"}
