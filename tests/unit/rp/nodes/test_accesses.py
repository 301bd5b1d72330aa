"""What is noted of a node's access to its cluster, and when it stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aks_flex_node.rp.clusters.access import Access
from aks_flex_node.rp.nodes import accesses
from aks_flex_node.rp.store.store import Node

OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
EXEC, CERTIFICATE = Access(OID, "exec"), Access(OID, "certificate")


def node(access: Access | None = None, identity: str = "client@tenant", **auth: Any) -> Node:
    join = {"state": "Created", **({accesses.ACCESS: access.to_document()} if access else {})}
    said = {"kubernetesAuth": auth or {"useAzureAuth": True}}
    return Node("/c", "edge", "edge", 17, '"17"', said, {}, join=join, identity=identity)


def test_a_node_that_joins_by_a_token_is_owed_nothing() -> None:
    assert accesses.owed(node(method="bootstrapToken")) is None
    assert accesses.owed(Node("/c", "edge", "edge", 17, '"17"', {}, {})) is None


def test_a_node_is_owed_what_its_way_to_join_needs() -> None:
    assert accesses.owed(node()) == ""
    assert accesses.owed(node(EXEC)) == OID
    assert accesses.owed(node(EXEC, method="certificate")) == ""


def test_a_node_that_is_written_anew_keeps_its_access_while_it_is_the_same() -> None:
    before = node(EXEC)

    assert accesses.access_of(accesses.with_access(node(), before)) == EXEC
    assert accesses.access_of(accesses.with_access(node(), None)) is None


def test_who_is_to_join_in_the_other_way_works_on_until_it_comes() -> None:
    assert accesses.access_of(accesses.with_access(node(method="certificate"), node(EXEC))) == EXEC


def test_who_is_somebody_else_has_none() -> None:
    assert accesses.access_of(accesses.with_access(node(identity="another"), node(EXEC))) is None


def applied(version: int, access: Access, **auth: Any) -> Node:
    return replace(node(access, **auth), status={"appliedConfigVersion": str(version)})


def test_a_node_gets_more_at_once_and_less_when_it_has_what_it_needs_instead() -> None:
    def way(one: Node, *, introduction: bool = False) -> str | None:
        return accesses.next_way(one, OID, introduction=introduction)

    assert way(applied(16, CERTIFICATE, method="exec")) == "exec"
    assert way(applied(16, EXEC, method="certificate")) == "exec"
    assert way(applied(17, EXEC, method="certificate")) == "certificate"
    assert way(applied(16, EXEC, method="certificate"), introduction=True) == "certificate"
    assert accesses.next_way(applied(16, EXEC, method="certificate"), OTHER, introduction=False) == "certificate"


def test_what_a_node_was_given_is_over_when_it_has_come_by_a_token() -> None:
    assert not accesses.is_over(applied(16, EXEC, method="bootstrapToken"))
    assert accesses.is_over(applied(17, EXEC, method="bootstrapToken"))
    assert not accesses.is_over(applied(17, EXEC, method="exec"))


def test_only_a_node_that_is_its_identity_takes_its_leave_with_it() -> None:
    joined = {"state": "Joined"}
    assert accesses.takes_leave(replace(node(EXEC), join={**node(EXEC).join, **joined}))
    assert not accesses.takes_leave(node(EXEC))
    assert not accesses.takes_leave(replace(node(CERTIFICATE), join={**node(CERTIFICATE).join, **joined}))


def test_a_node_that_says_who_it_is_has_begun_to_join() -> None:
    fetched = {"state": "ConfigFetched", "urlExpires": 1.0, "since": 5.0}

    assert accesses.introduced(fetched, EXEC) == {
        "state": "BootstrapAttempted",
        "since": 5.0,
        "access": EXEC.to_document(),
    }
    assert accesses.introduced(fetched, CERTIFICATE) == {**fetched, "access": CERTIFICATE.to_document()}
    assert accesses.introduced({}, CERTIFICATE)["state"] == "ConfigFetched"
    assert accesses.introduced({"state": "Joined"}, EXEC)["state"] == "Joined"


def test_an_identity_may_ask_again_and_what_it_got_earlier_no_longer_counts() -> None:
    first = accesses.attempted(node(CERTIFICATE).join, OID, "csr-1")
    assert (first["state"], first["csr"]) == ("BootstrapAttempted", "csr-1")
    issued = accesses.certified(first, "csr-1")
    assert issued["issued"] == "csr-1"

    again = accesses.attempted(issued, OID, "csr-2")
    assert again["csr"] == "csr-2"
    assert "issued" not in again
    assert accesses.certified(again, "csr-1") == again


def test_nobody_else_asks_for_a_node() -> None:
    join = replace(node(CERTIFICATE)).join

    assert accesses.attempted(join, OTHER, "csr-1") == join
    assert accesses.attempted(node().join, OID, "csr-1") == node().join
