"""Tests of taints: applied to Nodes after a change; taints of other owners are kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.contract import MANAGED_LABEL
from aks_flex_rp.clusters.node_controller import NODES
from aks_flex_rp.clusters.taint_controller import TaintController
from aks_flex_rp.clusters.taints import TAINTS_ANNOTATION, DesiredTaints, taint_patch
from tests.unit.rp.clusters.builders import Heard
from tests.unit.rp.clusters.fakes import FakeApi, refusal

if TYPE_CHECKING:
    import httpx2

UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
OPERATORS = {"key": "operator", "value": "1", "effect": "NoSchedule"}
EDGE = f"{NODES}/edge-1"


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> dict[str, Any]:
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def node(*taints: dict[str, Any], brought: list[dict[str, Any]] | str | None = None) -> dict[str, Any]:
    note = brought if isinstance(brought, str) else json.dumps(brought, separators=(",", ":"), sort_keys=True)
    metadata = {"name": "edge-1", "uid": "u", "resourceVersion": "7", "labels": MANAGED_LABEL}
    marks = {} if brought is None else {"annotations": {TAINTS_ANNOTATION: note}}
    return {"metadata": {**metadata, **marks}, "spec": {"taints": list(taints)}}


def wanted(*taints: dict[str, Any], former: tuple[str, ...] = ()) -> DesiredTaints:
    return DesiredTaints(taints, frozenset((key, "NoSchedule") for key in former))


def after(before: dict[str, Any], taints: DesiredTaints) -> list[dict[str, Any]]:
    change = taint_patch(before, taints)
    assert change
    assert change["metadata"]["resourceVersion"] == "7"  # so that a concurrent change is not overwritten
    found: list[dict[str, Any]] = change["spec"]["taints"]
    return found


FOREIGN = (UNREACHABLE, OPERATORS)
LIAR = node(*FOREIGN, brought=[*FOREIGN])
GARBAGE = ["", "{", "7", "[7]", '[{"key": 7}]', '{"a": 1}', '[{"key": [], "effect": 1}]', "[" * 100_000]


@pytest.mark.parametrize(
    ("before", "desired", "expected"),
    [
        pytest.param(node(*FOREIGN), wanted(taint("a", "1")), [*FOREIGN, taint("a", "1")], id="added"),
        pytest.param(
            node(*FOREIGN, taint("a"), taint("b"), brought=[taint("a"), taint("b")]),
            wanted(taint("b"), former=("a",)),
            [*FOREIGN, taint("b")],
            id="former one removed",
        ),
        pytest.param(
            node(taint("a", "1"), taint("a", "1", "NoExecute"), brought=[taint("a", "1")]),
            wanted(taint("a", "2")),
            [taint("a", "1", "NoExecute"), taint("a", "2")],
            id="value of the same key and effect",
        ),
        pytest.param(node(OPERATORS, taint("a")), wanted(former=("a",)), [OPERATORS], id="set at registration"),
        pytest.param(LIAR, wanted(), [*FOREIGN], id="forged annotation"),
        *((node(OPERATORS, brought=text), wanted(taint("a")), [OPERATORS, taint("a")]) for text in GARBAGE),
    ],
)
def test_only_own_taints_of_a_node_are_changed(
    before: dict[str, Any], desired: DesiredTaints, expected: list[dict[str, Any]]
) -> None:
    assert after(before, desired) == expected


def test_taints_set_at_registration_are_only_recorded_in_annotation() -> None:
    change = taint_patch(node(taint("a")), wanted(taint("a")))

    assert change
    assert change["spec"]["taints"] == [taint("a")]
    assert json.loads(change["metadata"]["annotations"][TAINTS_ANNOTATION]) == [taint("a")]


@pytest.mark.parametrize(
    ("before", "taints"),
    [
        (node(), wanted()),
        (node(OPERATORS), wanted()),
        (node(OPERATORS), wanted(former=("a",))),
        (node(brought=[taint("a")]), wanted(taint("a"))),
        (node(taint("a"), brought="[]"), wanted(former=("a",))),
    ],
    ids=("no taints", "others'", "nothing left of ours", "a person took it away", "a person put it there again"),
)
def test_taints_are_not_patched_when_applied_taints_match_desired(
    before: dict[str, Any], taints: DesiredTaints
) -> None:
    assert taint_patch(before, taints) is None


def test_taints_of_kubernetes_are_neither_added_nor_removed() -> None:
    own = taint("node.kubernetes.io/unschedulable")

    assert taint_patch(node(), wanted(own)) is None
    assert after(node(own), wanted(taint("a"), former=("node.kubernetes.io/unschedulable",))) == [own, taint("a")]


class Scene:
    """A cluster in memory with one Node, and a resource with a desired taint."""

    def __init__(self) -> None:
        self.api, self.heard = FakeApi(), Heard()
        self.heard.wanted["edge-1"] = wanted(taint("a"))
        self.tainting = TaintController("lab", self.api.client(), self.heard)

    def appears(self, **changes: Any) -> None:
        self.tainting.observe(self.api.put(EDGE, {**node(), **changes}))

    @property
    def taints(self) -> Any:
        return self.api.objects[EDGE]["spec"]["taints"]

    @property
    def patches(self) -> int:
        return self.api.calls.count(f"PATCH {EDGE}")


async def test_taints_are_patched_once_per_change() -> None:
    scene = Scene()
    scene.appears()
    await scene.tainting.reconcile_due()
    await scene.tainting.reconcile_due()  # its own change is also checked
    assert (scene.taints, scene.patches) == ([taint("a")], 1)

    scene.heard.wanted["edge-1"] = wanted(taint("b"), former=("a",))
    for name in ("edge-1", "", "edge-2"):
        scene.tainting.mark_due(name)
        await scene.tainting.reconcile_due()

    assert (scene.taints, scene.patches) == ([taint("b")], 2)


async def test_taints_are_patched_again_when_node_is_recreated() -> None:
    scene = Scene()
    scene.appears()
    await scene.tainting.reconcile_due()
    scene.tainting.gone("edge-1")
    scene.appears(metadata={**node()["metadata"], "uid": "another"})
    await scene.tainting.reconcile_due()

    assert (scene.taints, scene.patches) == ([taint("a")], 2)


async def test_taints_of_foreign_node_are_not_changed() -> None:
    scene = Scene()
    scene.appears(metadata={"name": "edge-1", "uid": "u"})
    scene.tainting.mark_due("edge-1")
    await scene.tainting.reconcile_due()

    assert scene.api.calls == []


async def test_nodes_without_desired_taints_require_no_cluster_requests() -> None:
    scene = Scene()
    scene.heard.wanted, scene.heard.tokens = {}, {"edge-1": ""}
    scene.appears()
    await scene.tainting.reconcile_due()

    assert scene.api.calls == []


async def test_failed_taint_reconcile_is_retried() -> None:
    scene = Scene()
    scene.heard.deaf = True
    scene.appears()
    with pytest.raises(ConnectionError):
        await scene.tainting.reconcile_due()
    scene.heard.deaf = False
    await scene.tainting.reconcile_due()

    assert scene.taints == [taint("a")]


async def test_taint_patch_conflict_is_retried_with_fresh_node() -> None:
    scene = Scene()

    def busy(_: httpx2.Request) -> httpx2.Response:
        del scene.api.answers[f"PATCH {EDGE}"]
        return refusal(409, "Conflict")

    scene.api.answers[f"PATCH {EDGE}"] = busy
    scene.appears()
    await scene.tainting.reconcile_due()

    assert (scene.taints, scene.patches) == ([taint("a")], 2)


async def test_forbidden_taint_patch_is_logged_and_not_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.api.answers[f"PATCH {EDGE}"] = lambda _: refusal(403, "Forbidden", "may not patch nodes")
    scene.appears()
    for _ in range(2):
        await scene.tainting.reconcile_due()

    assert scene.patches == 1
    assert "cannot change the taints of node edge-1: may not patch nodes" in caplog.text
