"""Tests of nodes that share an Azure identity, which could act as each other."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import SECRET, principal
from tests.service.rp.api.fake_clusters import NEIGHBOUR, PLANT
from tests.service.rp.api.test_arm import assert_refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant

numbers = count(1)


@pytest.fixture
def identity() -> str:
    """Returns the client ID of an identity that no other test uses."""
    return f"5a5a5a5a-0000-4000-8000-{next(numbers):011d}1"


def object_id(identity: str) -> str:
    return identity[:-1] + "0"


def managed(**ids: str) -> dict[str, Any]:
    auth = {"method": "managedIdentity", "managedIdentity": ids}
    return {"properties": {"continuousMonitoring": True, "azureAuth": auth}}


def acts(api: Api, name: str) -> set[int]:
    """Returns the results of what only the node itself may do."""
    return {api.credentials(name).status, api.regenerate(name).status, api.report(name, {}).status}


def share(service: Running, name: str, other: str) -> None:
    """Gives a node the identity of another, as an earlier release allowed."""
    store = service.service.store
    found, owner = service.call(store.node(PLANT.key, other)), service.call(store.node(PLANT.key, name))
    assert found
    assert owner
    service.call(store.put_node(replace(found, identity=owner.identity), found.etag))


def test_identity_of_another_node_is_refused(service: Running, tenant: Tenant, identity: str, name: str) -> None:
    """With one service principal for two nodes, root on one reads the secret and the token of the other."""
    service.admin.put(name, principal(identity))
    refused = service.admin.put(f"{name}-2", principal(identity))
    assert_refused(refused, 409, "IdentityInUse")
    assert f"node {name} of cluster plant" in refused.text
    assert service.admin.put(f"{name}-2", principal(callers.OTHER_NODE)).status == 201
    assert_refused(service.admin.put(f"{name}-2", principal(identity)), 409, "IdentityInUse")
    assert service.admin.put(name, principal(identity)).status == 200


def test_shared_identity_acts_only_as_first_node(service: Running, tenant: Tenant, identity: str, name: str) -> None:
    """The nodes were given one identity with an earlier release."""
    service.admin.put(name, principal(identity))
    service.admin.put(f"{name}-2", principal(object_id(identity)[:-1] + "2"))
    share(service, name, f"{name}-2")
    node = service.admin.as_somebody(tenant.application(identity))

    assert acts(node, name) == {200}
    for _ in range(2):
        assert acts(node, f"{name}-2") == {403}
        assert_refused(node.get(f"{name}-2"), 403, "IdentityInUse")
        assert SECRET not in node.credentials(f"{name}-2").text
    etag = service.admin.get(f"{name}-2").headers["etag"]
    assert node.get(f"{name}-2", if_none_match=etag).status == 403
    assert acts(node, name) == {200}


def test_node_with_shared_identity_is_shown_and_costs_no_reads(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    """Each poll of such a node made a warning and several reads of the database, without limit."""
    other, store = f"{name}-2", service.service.store
    service.admin.put(name, principal(identity))
    service.admin.put(other, principal(object_id(identity)[:-1] + "2"))
    share(service, name, other)
    node = service.admin.as_somebody(tenant.application(identity))
    assert acts(node, name) == {200}
    etag, before = service.admin.get(other).headers["etag"], len(service.log)
    assert node.get(other, if_none_match=etag).status == 403

    with counted_reads(store) as reads:
        for _ in range(5):
            assert_refused(node.get(other, if_none_match=etag), 403, "IdentityInUse")
    assert reads == []
    assert service.log[before:].count(f"may not act as node {other}") == 1
    shown = service.admin.get(other).properties["status"]["conditions"]
    condition = next(each for each in shown if each["type"] == "IdentityShared")
    assert (condition["status"], condition["reason"]) == ("True", "SignedInAsAnotherNode")
    assert f"signed in as node {name}" in condition["message"]
    assert service.call(store.repair_fleet()) == 0

    service.admin.delete(name)
    assert node.report(other, {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}]}).status == 200
    shown = service.admin.get(other).properties["status"]["conditions"]
    assert "IdentityShared" not in [each["type"] for each in shown]


@contextmanager
def counted_reads(store: Any) -> Iterator[list[str]]:
    """Yields the queries of the nodes and owners that the store makes meanwhile."""
    reads: list[str] = []
    read = store._read

    async def counted(text: str, *values: object) -> Any:
        if "FROM nodes" in text or "identity_owners" in text:
            reads.append(text)
        return await read(text, *values)

    store._read = counted
    try:
        yield reads
    finally:
        del store._read


def test_identity_under_its_other_id_gives_no_rights(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    """A write cannot see that a client ID and an object ID belong to the same identity."""
    service.admin.put(name, managed(clientId=identity))
    assert service.admin.put(f"{name}-2", managed(principalId=object_id(identity))).status == 201
    node = service.admin.as_somebody(tenant.application(identity))

    assert acts(node, name) == {200}
    assert acts(node, f"{name}-2") == {403}


def test_writing_a_foreign_identity_cuts_off_no_node(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    """An owner of another cluster writes the identity of a node into a node of their own."""
    victim = service.admin.as_somebody(tenant.application(identity))
    service.admin.put(name, managed(clientId=identity))
    assert acts(victim, name) == {200}
    attacker = service.admin.as_somebody(tenant.application(callers.GROUP_OWNER)).at(NEIGHBOUR)

    refused = attacker.put(f"{name}-a", managed(clientId=identity))
    assert_refused(refused, 409, "IdentityInUse")
    assert attacker.put(f"{name}-b", managed(principalId=object_id(identity))).status == 201
    assert acts(victim, name) == {200}
    assert acts(victim.at(NEIGHBOUR), f"{name}-b") == {403}


def test_name_of_other_node_is_hidden_from_those_who_may_not_see_it(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    service.admin.at(NEIGHBOUR).put(f"{name}-hidden", managed(clientId=identity))
    assert acts(service.admin.as_somebody(tenant.application(identity)).at(NEIGHBOUR), f"{name}-hidden") == {200}
    owner = service.admin.as_somebody(tenant.application(callers.OWNER))

    refused = owner.put(name, managed(clientId=identity))
    assert_refused(refused, 409, "IdentityInUse")
    assert "already belongs to another node" in refused.text
    assert f"{name}-hidden" not in refused.text


def test_reserving_a_foreign_identity_blocks_no_node(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    """A contributor elsewhere writes the identity before the node exists, so that it cannot be created."""
    service.admin.at(NEIGHBOUR).put(f"{name}-squat", managed(clientId=identity))
    owner = service.admin.as_somebody(tenant.application(callers.OWNER))

    assert owner.put(name, managed(clientId=identity)).status == 201
    node = service.admin.as_somebody(tenant.application(identity))
    assert acts(node, name) == {200}
    assert acts(node.at(NEIGHBOUR), f"{name}-squat") == {403}


def test_foreign_identity_in_a_node_that_signed_in_blocks_no_node(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    """A contributor elsewhere signs in with their own identity, and then writes that of the victim into the node."""
    own, squat = f"6b6b6b6b{identity[8:]}", f"{name}-squat"
    service.admin.at(NEIGHBOUR).put(squat, managed(clientId=own))
    assert acts(service.admin.as_somebody(tenant.application(own)).at(NEIGHBOUR), squat) == {200}
    assert service.admin.at(NEIGHBOUR).put(squat, managed(clientId=identity)).status == 200
    owner = service.admin.as_somebody(tenant.application(callers.OWNER))

    assert owner.put(name, managed(clientId=identity)).status == 201
    node = service.admin.as_somebody(tenant.application(identity))
    assert acts(node, name) == {200}
    assert acts(node.at(NEIGHBOUR), squat) == {403}


def test_identity_counts_under_the_id_that_the_node_has_now(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    """The node signs in with its client ID, and later with the object ID of the same identity."""
    hidden = f"{name}-hidden"
    node = service.admin.as_somebody(tenant.application(identity)).at(NEIGHBOUR)
    for ids in ({"clientId": identity}, {"principalId": object_id(identity)}):
        service.admin.at(NEIGHBOUR).put(hidden, managed(**ids))
        assert acts(node, hidden) == {200}
    owner = service.admin.as_somebody(tenant.application(callers.OWNER))

    assert_refused(owner.put(name, managed(principalId=object_id(identity))), 409, "IdentityInUse")


@pytest.mark.parametrize("ending", ["deleted", "changed"])
def test_identity_can_be_used_again(service: Running, tenant: Tenant, identity: str, name: str, ending: str) -> None:
    service.admin.put(name, principal(identity))
    node = service.admin.as_somebody(tenant.application(identity))
    assert acts(node, name) == {200}
    if ending == "deleted":
        service.admin.delete(name)
    else:
        service.admin.put(name, principal(callers.OTHER_NODE))

    assert service.admin.put(f"{name}-2", principal(identity)).status == 201
    assert acts(node, f"{name}-2") == {200}
    assert node.get(name).status == (404 if ending == "deleted" else 403)  # a deleted node learns that it is


def test_two_replicas_give_an_identity_to_one_node(
    service: Running, tenant: Tenant, identity: str, name: str
) -> None:
    store = service.service.store
    who = f"{object_id(identity)}@tenant"
    assert service.call(store.own_identity(who, PLANT.key, name, who)) is True
    assert service.call(store.own_identity(who, PLANT.key, f"{name}-2", who)) is False
    assert service.call(store.own_identity(who, PLANT.key, f"{name}-2", who, (PLANT.key, "another"))) is False
    assert service.call(store.identity_owner(who)) == (PLANT.key, name)
    assert service.call(store.owned_identities(PLANT.key, name, who)) == {who}
    assert service.call(store.owned_identities(PLANT.key, name, "another")) == frozenset()
