"""Tests of a node's access to its cluster: granted, kept, removed."""

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


def test_granted_identity_depends_on_join_method() -> None:
    assert join_rules.granted_identity(node()) == ""
    assert join_rules.granted_identity(node(CERTIFICATE)) == OID
    assert join_rules.granted_identity(node(EXEC)) == ""  # certificate is the default
    assert join_rules.granted_identity(node(EXEC, method="exec")) == OID
    assert join_rules.granted_identity(node(EXEC, method="certificate")) == ""


def applied(version: int, access: ClusterAccess, **auth: Any) -> Node:
    return replace(node(access, **auth), status={"appliedConfigVersion": str(version)})


def test_access_is_extended_at_once_and_reduced_only_after_node_switches() -> None:
    def way(one: Node, *, joining: bool = False) -> str | None:
        return join_rules.next_method(one, OID, joining=joining)

    assert way(applied(16, CERTIFICATE, method="exec")) == "exec"
    assert way(applied(16, EXEC, method="certificate")) == "exec"
    assert way(applied(17, EXEC, method="certificate")) == "certificate"
    assert way(applied(16, EXEC, method="certificate"), joining=True) == "certificate"
    assert join_rules.next_method(applied(16, EXEC, method="certificate"), OTHER, joining=False) == "certificate"


def test_only_joined_node_with_exec_auth_needs_access_to_unbootstrap() -> None:
    def joined(one: Node) -> Node:
        return replace(one, join=one.join.joined())

    assert join_rules.needs_access_to_leave(joined(node(EXEC)))
    assert not join_rules.needs_access_to_leave(node(EXEC))
    assert not join_rules.needs_access_to_leave(joined(node(CERTIFICATE)))
