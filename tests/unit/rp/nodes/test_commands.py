"""Tests of node commands without a store or a cluster."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.nodes import queries, reports
from aks_flex_rp.nodes.context import property_changes
from aks_flex_rp.nodes.identity_ownership import node_identity
from aks_flex_rp.nodes.join_rules import desired_taints, record_former_taints
from aks_flex_rp.nodes.preconditions import Preconditions, if_none_match_matches
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.store.model import Node

NODE = Node("/c", "edge", "edge", 17, '"17"', {}, {})
G = "11111111-2222-3333-4444-55555555555A"
T = "aaaaaaaa-2222-3333-4444-55555555555a"
CLUSTER = ClusterId(T, "Edge", "Plant")
MACHINES = "providers/microsoft.hybridcompute/machines"


@pytest.mark.parametrize(
    ("guard", "exists", "absent"),
    [
        (Preconditions(), True, True),
        (Preconditions(if_match='"17"'), True, False),
        (Preconditions(if_match='"1", "17"'), True, False),
        (Preconditions(if_match='W/"17"'), False, False),
        (Preconditions(if_match='"1"'), False, False),
        (Preconditions(if_match="*"), True, False),
        (Preconditions(if_none_match="*"), False, True),
        (Preconditions(if_none_match='"17"'), False, True),
        (Preconditions(if_none_match='"1"'), True, True),
    ],
)
def test_preconditions_allow_only_matching_requests(guard: Preconditions, exists: bool, absent: bool) -> None:
    for node, passes in ((NODE, exists), (None, absent)):
        with nullcontext() if passes else pytest.raises(ArmError, match="If-Match"):
            guard.check(node, "edge")


def test_if_none_match_matches_etag_in_list_weak_or_strong() -> None:
    assert if_none_match_matches('"1", W/"17"', '"17"')
    assert if_none_match_matches(" * ", '"17"')
    assert not if_none_match_matches("", '"17"')


def test_property_changes_contain_only_differences() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    after = {"a": 1, "b": {"c": 2}, "e": [1, 2], "f": None}

    assert property_changes(before, after) == {"b.c": [1, 2], "b.d": [2, None], "e": [[1], [1, 2]]}


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
        ({"method": "arc", "arc": {"machineName": "m", "principalId": G}}, G.lower()),
        ({"method": "arc"}, f"/subscriptions/{T}/resourcegroups/edge/{MACHINES}/edge-1"),
        (
            {"method": "arc", "arc": {"machineName": "Robot", "resourceGroup": "Hall"}},
            f"/subscriptions/{T}/resourcegroups/hall/{MACHINES}/robot",
        ),
    ],
)
def test_node_identity_is_derived_from_azure_auth(auth: dict[str, Any], who: str) -> None:
    assert node_identity(Properties({"azureAuth": auth}), CLUSTER, "", "edge-1") == who


def test_node_identity_includes_known_tenant_of_cluster() -> None:
    auth = {"method": "arc", "arc": {"principalId": G}}
    assert node_identity(Properties({"azureAuth": auth}), CLUSTER, T, "edge-1") == f"{G}@{T}".lower()


@pytest.mark.parametrize("token", ["%", "AAAA", "ä", "=", "a"])
def test_invalid_skip_token_is_refused(token: str) -> None:
    with pytest.raises(ArmError) as caught:
        queries.parse_list_query(None, None, token)
    assert caught.value.target == "$skipToken"


READY = {"type": "Ready", "status": "True"}


OTHER = {"type": "Other", "status": "False"}


def told(earlier: dict[str, Any], now: float, *, monitored: bool = True, **report: Any) -> dict[str, Any]:
    return reports.merge_report(reports.StatusReport.read(report), earlier, now, monitored=monitored)


def test_report_keeps_omitted_fields_and_replaces_conditions() -> None:
    first = told({}, 0.0, conditions=[READY, OTHER], agentVersion="1")
    second = told(first, 60.0, driftCount=1)
    third = told(second, 120.0, conditions=[READY])

    assert second == {**first, "driftCount": 1}
    assert third["conditions"] == [{**READY, "lastTransitionTime": "1970-01-01T00:00:00Z"}]
    assert (third["agentVersion"], third["driftCount"]) == ("1", 1)
    assert told(third, 180.0, conditions=[])["conditions"] == []


def test_staged_revision_and_failed_version_end_with_the_next_whole_report() -> None:
    first = told({}, 0.0, conditions=[READY], stagedPoolRevision=5, failedConfigVersion="7")
    assert (first["stagedPoolRevision"], first["failedConfigVersion"]) == (5, "7")
    assert told(first, 60.0, driftCount=1) == {**first, "driftCount": 1}
    assert not {"stagedPoolRevision", "failedConfigVersion"} & told(first, 60.0, conditions=[READY]).keys()
    assert told(first, 60.0, conditions=[], stagedPoolRevision=6)["stagedPoolRevision"] == 6


@pytest.mark.parametrize(
    "wrong",
    [{"stagedPoolRevision": value} for value in (0, -1, True, "5", 5.0, 1 << 40)]
    + [{"failedConfigVersion": value} for value in ("", "soon", 7, "1" * 20)],
    ids=str,
)
def test_invalid_staged_revision_or_failed_version_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArmError):
        reports.StatusReport.read(wrong)


def test_names_in_a_refused_report_are_not_kept() -> None:
    """Attack: reports of long invented names, each of them another one, fill the memory of the provider."""
    tracemalloc.start()
    try:
        for number in range(20):
            with pytest.raises(ArmError):
                reports.StatusReport.read({f"{number}" + "n" * 100_000: True})
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_changed_condition_gets_current_transition_time() -> None:
    before = told({}, 0.0, conditions=[READY])
    [after] = told(before, 120.0, conditions=[{**READY, "status": "False"}])["conditions"]

    assert after["lastTransitionTime"] == "1970-01-01T00:02:00Z"


def test_report_of_unmonitored_node_keeps_ready_condition_of_cluster() -> None:
    before = told({}, 0.0, conditions=[READY])

    kept = told(before, 60.0, monitored=False, conditions=[OTHER])["conditions"]

    assert [each["type"] for each in kept] == ["Ready", "Other"]


def tainted(*keys: str, before: Node | None = None) -> Node:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    return record_former_taints(replace(NODE, config={"node": {"taints": taints}}), before)


def test_former_taints_of_node_are_remembered() -> None:
    first = tainted("a", "b")
    third = tainted("c", before=tainted("b", before=first))

    assert desired_taints(first).former == set()
    assert desired_taints(third).former == {("a", "NoSchedule"), ("b", "NoSchedule")}
    assert desired_taints(tainted("a", before=third)).former == {("b", "NoSchedule"), ("c", "NoSchedule")}


def test_number_of_remembered_former_taints_is_bounded() -> None:
    node = tainted(*map(str, range(90)))
    for start in (90, 180):
        node = tainted(*map(str, range(start, start + 90)), before=node)

    assert len(desired_taints(node).former) == 100


def test_reported_time_keeps_its_time_zone() -> None:
    assert told({}, 0.0, lastConfigApplied="2024-02-26T15:30:45.5+01:00") == {
        "lastConfigApplied": "2024-02-26T15:30:45.500000+01:00"
    }
