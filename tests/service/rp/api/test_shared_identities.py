"""Tests of nodes that share an Azure identity, which could act as each other."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import NEIGHBOUR, PLANT

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


@pytest.fixture
def node(service: Running, tenant: Tenant, identity: str) -> Api:
    """Returns a client with the identity."""
    return service.admin.by(tenant, identity)


@pytest.fixture
def owner(service: Running, tenant: Tenant) -> Api:
    return service.admin.by(tenant, callers.OWNER)


@pytest.fixture
def neighbour(service: Running) -> Api:
    """Returns a cluster whose nodes the owner of the other one may not see."""
    return service.admin.at(NEIGHBOUR)


def object_id(identity: str) -> str:
    return identity[:-1] + "0"


def managed(**ids: str) -> dict[str, Any]:
    auth = {"method": "managedIdentity", "managedIdentity": ids}
    return {"properties": {"continuousMonitoring": True, "azureAuth": auth}}


def acts(api: Api, name: str) -> set[int]:
    """Returns the results of what only the node itself may do."""
    return {api.credentials(name).status, api.regenerate(name).status, api.report(name, {}).status}


def test_identity_of_another_node_is_refused(admin: Api, identity: str, name: str) -> None:
    """With one service principal for two nodes, root on one reads the secret and the token of the other."""
    other = f"{name}-2"
    admin.put(name, principal(identity))
    refused = admin.put(other, principal(identity))
    refused.assert_refused(409, "IdentityInUse")
    assert f"node {name} of cluster plant" in refused.text
    assert admin.put(other, principal(callers.OTHER_NODE)).status == 201
    admin.put(other, principal(identity)).assert_refused(409, "IdentityInUse")
    assert admin.put(name, principal(identity)).status == 200


def test_identity_under_its_other_id_acts_only_as_the_first_node(
    service: Running, node: Api, identity: str, name: str
) -> None:
    """A write cannot see that a client ID and an object ID belong to the same identity.

    Each poll of such a node made a warning and several reads of the database, without limit.
    """
    admin, other = service.admin, f"{name}-2"
    admin.put(name, managed(clientId=identity))
    assert admin.put(other, managed(principalId=object_id(identity))).status == 201

    assert acts(node, name) == {200}
    assert acts(node, other) == {403}
    etag, before = admin.get(other).headers["etag"], len(service.log)
    with counted_reads(service.store) as reads:
        for _ in range(5):
            node.get(other, if_none_match=etag).assert_refused(403, "IdentityInUse")
    assert reads == []
    assert service.log[before:].count(f"may not act as node {other}") <= 1
    condition = admin.condition(other, "IdentityShared")
    assert (condition["status"], condition["reason"]) == ("True", "SignedInAsAnotherNode")
    assert f"signed in as node {name}" in condition["message"]
    assert service.call(service.store.repair_fleet()) == 0
    assert acts(node, name) == {200}

    admin.delete(name)
    assert node.report(other, {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}]}).status == 200
    assert admin.condition(other, "IdentityShared") is None


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


def test_writing_a_foreign_identity_cuts_off_no_node(
    admin: Api, tenant: Tenant, node: Api, identity: str, name: str
) -> None:
    """An owner of another cluster writes the identity of a node into a node of their own."""
    admin.put(name, managed(clientId=identity))
    assert acts(node, name) == {200}
    attacker = admin.by(tenant, callers.GROUP_OWNER).at(NEIGHBOUR)

    attacker.put(f"{name}-a", managed(clientId=identity)).assert_refused(409, "IdentityInUse")
    assert attacker.put(f"{name}-b", managed(principalId=object_id(identity))).status == 201
    assert acts(node, name) == {200}
    assert acts(node.at(NEIGHBOUR), f"{name}-b") == {403}


@pytest.mark.parametrize("signed_in_by", ["clientId", "principalId"])
def test_name_of_other_node_is_hidden_from_those_who_may_not_see_it(
    neighbour: Api, owner: Api, node: Api, identity: str, name: str, signed_in_by: str
) -> None:
    """The identity counts under the ID that the node has now, of those with which it has signed in."""
    hidden = f"{name}-hidden"
    ids = {"clientId": identity, "principalId": object_id(identity)}
    for kind in ("clientId", signed_in_by):
        neighbour.put(hidden, managed(**{kind: ids[kind]}))
        assert acts(node.at(NEIGHBOUR), hidden) == {200}

    refused = owner.put(name, managed(**{signed_in_by: ids[signed_in_by]}))
    refused.assert_refused(409, "IdentityInUse")
    assert "already belongs to another node" in refused.text
    assert hidden not in refused.text


@pytest.mark.parametrize("signed_in", [False, True])
def test_foreign_identity_in_a_node_elsewhere_blocks_no_node(
    neighbour: Api, tenant: Tenant, owner: Api, node: Api, identity: str, name: str, signed_in: bool
) -> None:
    """A contributor elsewhere writes the identity of the victim before its node exists.

    Also into a node that has signed in with an identity of the contributor.
    """
    squat = f"{name}-squat"
    if signed_in:
        own = f"6b6b6b6b{identity[8:]}"
        neighbour.put(squat, managed(clientId=own))
        assert acts(neighbour.by(tenant, own), squat) == {200}
    assert neighbour.put(squat, managed(clientId=identity)).status in {200, 201}

    assert owner.put(name, managed(clientId=identity)).status == 201
    assert acts(node, name) == {200}
    assert acts(node.at(NEIGHBOUR), squat) == {403}


@pytest.mark.parametrize("ending", ["deleted", "changed"])
def test_identity_can_be_used_again(admin: Api, node: Api, identity: str, name: str, ending: str) -> None:
    admin.put(name, principal(identity))
    assert acts(node, name) == {200}
    if ending == "deleted":
        admin.delete(name)
    else:
        admin.put(name, principal(callers.OTHER_NODE))

    assert admin.put(f"{name}-2", principal(identity)).status == 201
    assert acts(node, f"{name}-2") == {200}
    assert node.get(name).status == (404 if ending == "deleted" else 403)  # a deleted node learns that it is


def test_two_replicas_give_an_identity_to_one_node(service: Running, identity: str, name: str) -> None:
    store = service.store
    who = f"{object_id(identity)}@tenant"
    assert service.call(store.own_identity(who, PLANT.key, name, who)) is True
    assert service.call(store.own_identity(who, PLANT.key, f"{name}-2", who)) is False
    assert service.call(store.own_identity(who, PLANT.key, f"{name}-2", who, (PLANT.key, "another"))) is False
    assert service.call(store.identity_owner(who)) == (PLANT.key, name)
    assert service.call(store.owned_identities(PLANT.key, name, who)) == {who}
    assert service.call(store.owned_identities(PLANT.key, name, "another")) == frozenset()
