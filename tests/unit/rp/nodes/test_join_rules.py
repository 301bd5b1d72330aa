"""What is noted of a node's access to its cluster, and when it stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aks_flex_rp.join_state import AccessMethod, ClusterAccess, JoinPhase, JoinState
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.store.model import Node

OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
EXEC, CERTIFICATE = ClusterAccess(OID, AccessMethod.EXEC), ClusterAccess(OID, AccessMethod.CERTIFICATE)


def node(access: ClusterAccess | None = None, identity: str = "client@tenant", **auth: Any) -> Node:
    join = JoinState(JoinPhase.CREATED, access=access)
    said = {"kubernetesAuth": auth or {"useAzureAuth": True}}
    return Node("/c", "edge", "edge", 17, '"17"', said, {}, join=join, identity=identity)


def test_a_node_that_joins_by_a_token_is_owed_nothing() -> None:
    assert join_rules.granted_identity(node(method="bootstrapToken")) is None
    assert join_rules.granted_identity(Node("/c", "edge", "edge", 17, '"17"', {}, {})) is None


def test_a_node_is_owed_what_its_way_to_join_needs() -> None:
    assert join_rules.granted_identity(node()) == ""
    assert join_rules.granted_identity(node(EXEC)) == OID
    assert join_rules.granted_identity(node(EXEC, method="certificate")) == ""


def test_a_node_that_is_written_anew_keeps_its_access_while_it_is_the_same() -> None:
    before = node(EXEC)

    assert join_rules.keep_access(node(), before).join.access == EXEC
    assert join_rules.keep_access(node(), None).join.access is None


def test_who_is_to_join_in_the_other_way_works_on_until_it_comes() -> None:
    assert join_rules.keep_access(node(method="certificate"), node(EXEC)).join.access == EXEC


def test_who_is_somebody_else_has_none() -> None:
    assert join_rules.keep_access(node(identity="another"), node(EXEC)).join.access is None


def applied(version: int, access: ClusterAccess, **auth: Any) -> Node:
    return replace(node(access, **auth), status={"appliedConfigVersion": str(version)})


def test_a_node_gets_more_at_once_and_less_when_it_has_what_it_needs_instead() -> None:
    def way(one: Node, *, introduction: bool = False) -> str | None:
        return join_rules.next_method(one, OID, introduction=introduction)

    assert way(applied(16, CERTIFICATE, method="exec")) == "exec"
    assert way(applied(16, EXEC, method="certificate")) == "exec"
    assert way(applied(17, EXEC, method="certificate")) == "certificate"
    assert way(applied(16, EXEC, method="certificate"), introduction=True) == "certificate"
    assert join_rules.next_method(applied(16, EXEC, method="certificate"), OTHER, introduction=False) == "certificate"


def test_what_a_node_was_given_is_over_when_it_has_come_by_a_token() -> None:
    assert not join_rules.is_access_obsolete(applied(16, EXEC, method="bootstrapToken"))
    assert join_rules.is_access_obsolete(applied(17, EXEC, method="bootstrapToken"))
    assert not join_rules.is_access_obsolete(applied(17, EXEC, method="exec"))


def test_only_a_node_that_is_its_identity_takes_its_leave_with_it() -> None:
    def joined(one: Node) -> Node:
        return replace(one, join=one.join.joined())

    assert join_rules.needs_access_to_leave(joined(node(EXEC)))
    assert not join_rules.needs_access_to_leave(node(EXEC))
    assert not join_rules.needs_access_to_leave(joined(node(CERTIFICATE)))
