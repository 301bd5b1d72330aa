"""Tests of queries over all nodes, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.join_state import JoinState
from aks_flex_rp.store.fleet import FleetCount, FleetEntry, FleetQuery, FleetState
from aks_flex_rp.store.model import UserSession
from tests.service.rp.store.builders import node, write

if TYPE_CHECKING:
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Node
    from tests.service.rp.store.conftest import Place


NOW = 5000.0


def member(key: str, state: str = "Joined", *, cluster: str = "/c", **more: Any) -> Node:
    labels = more.pop("labels", {"Site": "Oslo"})
    properties = {"nodeConfig": {"labels": labels}, "continuousMonitoring": True}
    join = JoinState.from_document({"state": state, **more.pop("join", {})})
    config = {"kubernetes": {"version": "1.34.4"}}
    return node(key, cluster=cluster, properties=properties, config=config, join=join, **more)


def told(ready: str = "True", **more: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "reason": "Because", "message": more.pop("message", "")}]
    conditions += [{"type": kind, "status": "True", "message": f"{kind}!"} for kind in more.pop("trouble", ())]
    return {"conditions": conditions, "kubeletVersion": "v1.34.4", "appliedConfigVersion": "1", **more}


async def everywhere(store: Store, **wanted: Any) -> FleetQuery:
    return FleetQuery(tuple((await store.cluster_numbers()).values()), **wanted)


async def asked(store: Store, **wanted: Any) -> tuple[FleetEntry, ...]:
    return await store.fleet(await everywhere(store, **wanted), NOW)


async def names(store: Store, **wanted: Any) -> list[str]:
    return [each.key for each in await asked(store, **wanted)]


async def test_fleet_contains_node_from_creation_to_deletion(store: Store) -> None:
    await store.put_node(member("edge-1", "Created"), None)
    (found,) = await asked(store)
    assert (found.name, found.state, found.desired_version, found.kubelet) == ("Edge-1", "Created", "1.34.4", "")
    await store.report("/c", "edge-1", told(), 4990.0)
    (found,) = await asked(store)
    assert (found.state, found.kubelet, found.applied, found.last_seen) == ("Ready", "1.34.4", 1, 4990.0)
    await store.delete_node("/c", "edge-1", None)
    assert await asked(store) == ()


async def test_fleet_keeps_reported_status_when_node_is_rewritten(store: Store) -> None:
    await store.put_node(member("edge-1"), None)
    await store.report("/c", "edge-1", told("False", message="The runtime is down."), 4990.0)
    await store.put_node(member("edge-1", version=2), "edge-1-1")
    (found,) = await asked(store)
    assert (found.state, found.cause, found.version, found.applied) == ("NotReady", "The runtime is down.", 2, 1)
    assert found.last_seen == 4990.0


@pytest.mark.parametrize(
    ("state", "ready", "join", "expected"),
    [
        ("Joined", "True", {}, "Ready"),
        ("Joined", "False", {}, "NotReady"),
        ("Joined", "Unknown", {}, "Unknown"),
        ("BootstrapAttempted", "True", {}, "Ready"),  # the agent reports it before the cluster
        ("BootstrapAttempted", "False", {}, "Joining"),
        ("Created", "", {"urlExpires": NOW + 1}, "Created"),
        ("Created", "", {}, "Created"),
        ("ConfigFetched", "", {"urlExpires": NOW + 1}, "Joining"),
        ("Left", "", {}, "Left"),
        ("Left", "True", {}, "Left"),  # its last report
        ("Created", "", {"urlExpires": NOW - 1}, "Failed"),
        ("Failed", "", {"failure": "The disk is full."}, "Failed"),
    ],
)
async def test_fleet_state_is_derived_from_join_state_and_readiness(
    store: Store, state: str, ready: str, join: Any, expected: str
) -> None:
    await store.put_node(member("edge-1", state, join=join), None)
    if ready:
        await store.report("/c", "edge-1", told(ready), 4990.0)
    (found,) = await asked(store)
    assert found.state == expected
    assert [each.state for each in await store.fleet_counts(NOW)] == [expected]


async def test_fleet_search_matches_names_and_labels_literally(store: Store) -> None:
    for key, site in (("oslo-1", "Oslo"), ("rome-1", "Rome"), ("rome_2", "Rome"), ("rome-3", "50%")):
        await store.put_node(member(key, labels={"site": site}), None)
    assert await names(store, search="ROME") == ["rome-1", "rome-3", "rome_2"]
    assert await names(store, search="site=rome 1") == ["rome-1"]
    assert await names(store, search="rome_") == ["rome_2"]
    assert await names(store, search="%") == ["rome-3"]
    assert await names(store, search="' OR 1=1 --") == []
    assert await store.count_fleet(await everywhere(store, search="rome"), NOW) == 3


async def test_fleet_query_filters_sorts_and_pages_nodes(store: Store) -> None:
    for number, ready in enumerate(("True", "False", "True", "Unknown")):
        key = f"edge-{number}"
        await store.put_node(member(key, version=1 + number % 2), None)
        trouble = ("Drifted",) if number == 2 else ()
        await store.report("/c", key, told(ready, trouble=trouble, kubeletVersion=f"v1.3{number}"), 4000.0 - number)
    assert await names(store, state="Ready") == ["edge-0", "edge-2"]
    assert await names(store, trouble=True) == ["edge-2"]
    assert await names(store, behind=True) == ["edge-1", "edge-3"]
    assert await names(store, version="1.31") == ["edge-1"]
    assert await names(store, sort="seen") == ["edge-3", "edge-2", "edge-1", "edge-0"]
    assert await names(store, sort="version", descending=True) == ["edge-3", "edge-2", "edge-1", "edge-0"]
    assert await names(store, sort="state") == ["edge-1", "edge-0", "edge-2", "edge-3"]
    assert await names(store, offset=1, limit=2) == ["edge-1", "edge-2"]
    (found,) = await asked(store, trouble=True)
    assert (found.trouble, found.cause) == (("Drifted",), "Drifted!")


async def test_fleet_query_returns_only_requested_clusters(store: Store) -> None:
    await store.put_node(member("edge-1"), None)
    await store.put_node(member("edge-1", cluster="/d"), None)
    places = await store.cluster_numbers()
    found = await store.fleet(FleetQuery((places["/d"],)), NOW)
    assert [each.cluster_number for each in found] == [places["/d"]]
    assert await store.fleet(FleetQuery(()), NOW) == ()


async def test_fleet_counts_group_nodes_with_equal_attributes(store: Store) -> None:
    for number in range(3):
        await store.put_node(member(f"edge-{number}"), None)
        await store.report("/c", f"edge-{number}", told(), 4990.0)
    await store.put_node(member("edge-9", "Created"), None)
    place = (await store.cluster_numbers())["/c"]
    found = sorted(await store.fleet_counts(NOW), key=lambda each: each.nodes)
    joining = FleetCount(place, FleetState.CREATED, "", behind=False, trouble=False, nodes=1)
    assert found == [joining, FleetCount(place, FleetState.READY, "1.34.4", behind=False, trouble=False, nodes=3)]


async def test_fleet_state_is_silent_until_node_is_noted_as_heard(store: Store) -> None:
    await store.put_node(member("edge-1"), None)
    await store.report("/c", "edge-1", told(), 3000.0)
    (fallen,) = await store.unnoted_silences(4000.0, 10, silent=True)
    await store.note_silence(fallen, 4000.0)
    assert await names(store, state="NotReporting") == ["edge-1"]
    await store.seen([("/c", "edge-1", 4500.0)])
    (heard,) = await store.unnoted_silences(4000.0, 10, silent=False)
    await store.note_silence(heard, 4000.0)
    assert await names(store, state="Ready") == ["edge-1"]


async def test_sessions_expire_and_can_be_ended(store: Store) -> None:
    for number in range(3):
        await store.put_session(UserSession(f"s{number}", {"id": "me"}, "", 6000.0, 5000.0))
    await store.use_session("s1", 5500.0)
    await store.end_session("s0")
    assert await store.session("s0", NOW) is None
    kept = await store.session("s1", NOW)
    assert kept is not None
    assert (kept.caller, kept.used) == ({"id": "me"}, 5500.0)
    assert await store.session("s1", 6001.0) is None
    assert await store.sweep_sessions(5600.0, 5200.0) == 1  # s2 was idle
    assert await store.session("s1", NOW) is not None


async def test_rows_that_were_changed_added_or_deleted_are_repaired(store: Store, place: Place) -> None:
    for key in ("edge-0", "edge-1", "edge-3"):
        await store.put_node(member(key, "Created"), None)
        await store.seen([("/c", key, 4000.0)])
    before = await asked(store)
    await write(
        place,
        "UPDATE fleet SET join_state = 'Failed', pool = 'other', pool_revision = 9 WHERE key = 'edge-1'",
        "INSERT INTO fleet SELECT cluster_number, 'edge-2', name, version, created, labels, join_state, failure,"
        " url_expires, monitored, desired_version, pool, pool_revision, ready, cause, problems, kubelet, applied,"
        " silent, last_seen FROM fleet WHERE key = 'edge-0'",
        "DELETE FROM fleet WHERE key = 'edge-3'",
    )
    assert [each.key for each in await asked(store)] == ["edge-0", "edge-1", "edge-2"]
    await store.repair_fleet()  # raises the alarm for edge-2, whose node is missing
    assert [each.key for each in await asked(store)] == ["edge-0", "edge-1", "edge-3"]
    assert (await asked(store))[:2] == before[:2], "also the times of the last polls"
    assert await store.repair_fleet() == 0


async def test_fleet_repair_does_not_change_consistent_fleet(store: Store) -> None:
    for number in range(250):
        key = f"edge-{number}"
        await store.put_node(member(key, cluster=f"/c{number % 3}"), None)
        await store.report(f"/c{number % 3}", key, told("False", message="odd \x00 \ud800 ü"), 4990.0)
    await store.delete_node("/c0", "edge-0", None)
    before = await asked(store, limit=1000)
    assert await store.repair_fleet() == 0
    assert await asked(store, limit=1000) == before
    assert await store.count_fleet(await everywhere(store), NOW) == 249
