"""Tests of requests to the API server and the handling of its responses."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest
from urllib3.connection import HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, ProtocolError, SSLError

from aks_flex_node.agent.cluster import nodes
from aks_flex_node.agent.cluster.client import ApiStatusError, explain_connection_error
from aks_flex_node.agent.cluster.nodes import ClusterNode, NodeRemoval
from aks_flex_node.api.contract import CORDONED_ANNOTATION, LEFT_ANNOTATION, MACHINE_ANNOTATION
from aks_flex_node.api.machine_identity import hash_machine_id
from aks_flex_node.errors import ClusterError
from tests.unit.agent.builders import Answers

NODE = "/api/v1/nodes/edge-1"
PODS = "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1"
EVICTION = "/api/v1/namespaces/default/pods/web/eviction"
DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "edge-1"},
    "spec": {"podCIDR": "10.244.3.0/24", "unschedulable": True},
    "status": {
        "conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "well"},
        ],
        "nodeInfo": {"kubeletVersion": "v1.34.4"},
    },
}
OFFLINE = ClusterError("api-server-unreachable", "It cannot be reached.", "Check it.", retryable=True)
BUDGET = ApiStatusError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")


def pod(name: str = "web", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", **metadata}}


def api_of(**answers: Any) -> Answers:
    """Returns an API server with a node, its pods and other responses."""
    listed = answers.get("pods", [[]])
    return Answers(
        {
            ("GET", NODE): answers.get("nodes") or [answers.get("node", DOCUMENT)],
            ("PATCH", NODE): [answers.get("patch", {})],
            ("DELETE", NODE): [answers.get("delete", {})],
            ("GET", PODS): [{"items": items} for items in listed],
            ("POST", EVICTION): answers.get("evict", [{}]),
        }
    )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def drained(api: Answers, seconds: float = 1.0) -> list[str]:
    clock = Clock()
    server = api.client
    nodes.cordon(server, "edge-1")
    return list(nodes.drain_pods(server, "edge-1", seconds, lambda _: None, clock=clock, sleep=clock.sleep))


def test_cluster_node_is_parsed_from_the_api_document() -> None:
    node = ClusterNode.read(DOCUMENT)
    assert (node.name, node.ready, node.message) == ("edge-1", True, "well")
    assert (node.pod_cidr, node.cordoned, node.version) == ("10.244.3.0/24", True, "v1.34.4")
    assert node.conditions == (("MemoryPressure", "False"), ("Ready", "True"))


def test_runtime_that_the_kubelet_does_not_reach_has_no_version() -> None:
    """Otherwise an update that begins at this moment could never be rolled back to the version of before."""
    reported = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://Unknown"}}}
    assert ClusterNode.read({**DOCUMENT, **reported}).runtime == ""
    reported["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://2.4.2"
    assert ClusterNode.read({**DOCUMENT, **reported}).runtime == "containerd://2.4.2"


@pytest.mark.parametrize("status", [403, 404])
def test_missing_node_is_not_found(status: int) -> None:
    assert nodes.find(api_of(node=ApiStatusError(status, "", "")).client, "edge-1") is None


def test_unauthorized_response_is_not_taken_for_a_missing_node() -> None:
    with pytest.raises(ApiStatusError):
        nodes.find(api_of(node=ApiStatusError(401, "Unauthorized", "")).client, "edge-1")


@pytest.mark.parametrize(
    ("metadata", "moves"),
    [
        ({}, True),
        ({"ownerReferences": [{"kind": "ReplicaSet"}]}, True),
        ({"ownerReferences": [{"kind": "DaemonSet"}]}, False),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, False),
        ({"annotations": {"other": "x"}}, True),
    ],
    ids=str,
)
def test_daemonset_and_static_pods_are_not_evictable(metadata: dict[str, Any], moves: bool) -> None:
    api = api_of(pods=[[pod(**metadata)]])
    assert [nodes.is_evictable(one) for one in nodes.pods(api.client, "edge-1")] == [moves]


def test_drain_cordons_before_it_evicts() -> None:
    api = api_of(pods=[[pod()], []])
    assert drained(api) == []
    assert api.asked == [("PATCH", NODE), ("GET", PODS), ("POST", EVICTION), ("GET", PODS)]
    assert api.bodies[0] == {"spec": {"unschedulable": True}}
    assert api.bodies[2]["kind"] == "Eviction"


@pytest.mark.parametrize(
    ("then", "evict", "requests"),
    [(pod(), [BUDGET, {}], 2), (pod(deletionTimestamp="now"), [{}], 1)],
    ids=["blocked by a disruption budget", "terminating"],
)
def test_drain_repeats_only_an_eviction_that_was_blocked(
    then: dict[str, Any], evict: list[Any], requests: int
) -> None:
    api = api_of(pods=[[pod()], [then], []], evict=evict)
    assert drained(api) == []
    assert api.asked.count(("POST", EVICTION)) == requests


def test_drain_returns_the_reason_for_each_remaining_pod() -> None:
    api = api_of(pods=[[pod(), pod("old", deletionTimestamp="now")]], evict=[BUDGET])
    clock = Clock()
    stayed = nodes.drain_pods(api.client, "edge-1", 1.0, lambda _: None, clock=clock, sleep=clock.sleep)
    assert stayed == {"default/web": BUDGET.message, "default/old": "still terminating"}
    assert ("PATCH", NODE) not in api.asked


@pytest.mark.parametrize("ours", [True, False])
def test_uncordon_only_applies_to_nodes_cordoned_by_the_agent(ours: bool) -> None:
    metadata = {"name": "edge-1", "annotations": {CORDONED_ANNOTATION: "now"} if ours else {}}
    api = api_of(node={**DOCUMENT, "metadata": metadata})
    assert nodes.uncordon(api.client, "edge-1") is ours
    wanted = {"metadata": {"annotations": {CORDONED_ANNOTATION: None}}, "spec": {"unschedulable": None}}
    assert api.bodies[1:] == ([wanted] if ours else [])


@pytest.mark.parametrize(
    ("there", "wanted", "earlier", "changes"),
    [
        ({"a": "1"}, {"a": "1"}, "", None),
        ({"a": "1"}, {"a": "2", "b": "3"}, "", {"a": "2", "b": "3"}),
        ({"a": "1", "foreign": "x"}, {}, "a", {"a": None}),
        ({"foreign": "x"}, {}, "a", None),
    ],
    ids=str,
)
def test_label_sync_keeps_labels_of_others(
    there: dict[str, str], wanted: dict[str, str], earlier: str, changes: dict[str, str | None] | None
) -> None:
    api, node = api_of(), ClusterNode.read({"metadata": {"name": "edge-1", "labels": there}})
    changed = nodes.sync_labels(api.client, node, wanted, frozenset(earlier.split()))
    assert changed == sorted(changes or {})
    assert api.bodies == ([{"metadata": {"labels": changes}}] if changes else [])


@pytest.mark.parametrize(
    ("answer", "why_not"), [({}, ""), (BUDGET, BUDGET.message), (ApiStatusError(404, "NotFound", ""), "")], ids=str
)
def test_eviction_returns_the_reason_when_it_is_blocked(answer: Any, why_not: str) -> None:
    assert nodes.evict(api_of(evict=[answer]).client, pod()) == why_not


def test_forbidden_eviction_raises() -> None:
    with pytest.raises(ApiStatusError):
        nodes.evict(api_of(evict=[ApiStatusError(403, "Forbidden", "")]).client, pod())


@pytest.mark.parametrize(
    ("answers", "to_type", "notes"),
    [
        ({}, [], ["node edge-1 deleted from the cluster"]),
        ({"delete": ApiStatusError(404, "", "")}, [], ["node edge-1 deleted from the cluster"]),
        (
            {"delete": ApiStatusError(403, "Forbidden", "")},
            ["kubectl delete node edge-1 --ignore-not-found"],
            ["this machine is not allowed to delete node edge-1; it is cordoned and marked as left"],
        ),
        ({"node": ApiStatusError(404, "", "")}, [], ["node edge-1 does not exist in the cluster"]),
        (
            {"node": OFFLINE},
            ["kubectl delete node edge-1 --ignore-not-found"],
            ["the node was not removed from the cluster: It cannot be reached. Check it."],
        ),
        (
            {"node": ApiStatusError(401, "Unauthorized", "Unauthorized")},
            ["kubectl delete node edge-1 --ignore-not-found"],
            ["the node was not removed from the cluster: Unauthorized"],
        ),
        (
            {"patch": OFFLINE},
            ["kubectl delete node edge-1 --ignore-not-found"],
            ["the node was not removed from the cluster: It cannot be reached. Check it."],
        ),
    ],
    ids=str,
)
def test_node_removal_returns_the_commands_left_for_the_operator(
    answers: dict[str, Any], to_type: list[str], notes: list[str]
) -> None:
    told: list[str] = []
    assert NodeRemoval(api_of(**answers).client, "edge-1", 0.0).run(told.append) == to_type
    assert told == notes


def test_node_removal_needs_no_commands_when_the_provider_deletes_the_node() -> None:
    told: list[str] = []
    api = api_of(nodes=[DOCUMENT, ApiStatusError(404, "", "")], delete=ApiStatusError(403, "Forbidden", ""))
    assert NodeRemoval(api.client, "edge-1", 0.0, delete_seconds=5.0).run(told.append) == []
    assert told == ["the resource provider deleted node edge-1 from the cluster"]


MACHINE_ID = "0123456789abcdef0123456789abcdef"
OTHER_ID = "f" * 32


@pytest.mark.parametrize(
    ("reported", "marked", "own", "kept"),
    [
        (MACHINE_ID, "", hash_machine_id(MACHINE_ID), False),
        (MACHINE_ID, "", hash_machine_id(OTHER_ID), True),
        (MACHINE_ID, hash_machine_id(MACHINE_ID), hash_machine_id(MACHINE_ID), False),
        (MACHINE_ID, hash_machine_id(OTHER_ID), hash_machine_id(MACHINE_ID), True),
        (MACHINE_ID, "", "", False),
        ("", "", hash_machine_id(MACHINE_ID), False),
    ],
)
def test_node_that_lives_on_another_machine_is_not_removed(reported: str, marked: str, own: str, kept: bool) -> None:
    status = {**DOCUMENT["status"], "nodeInfo": {"machineID": reported}}
    status["addresses"] = [{"type": "InternalIP", "address": "10.0.0.2"}]
    metadata = {"name": "edge-1", "annotations": {MACHINE_ANNOTATION: marked} if marked else {}}
    api, told = api_of(node={**DOCUMENT, "metadata": metadata, "status": status}), list[str]()

    assert NodeRemoval(api.client, "edge-1", 0.0, machine_id=own).run(told.append) == []

    assert ("node edge-1 lives on another machine (10.0.0.2) and is kept" in told) is kept
    assert (list(filter(None, api.bodies)) == []) is kept


def test_node_removal_names_pods_that_were_not_drained() -> None:
    told: list[str] = []
    NodeRemoval(api_of(pods=[[pod()]]).client, "edge-1", 0.0).run(told.append)
    assert told[:2] == ["draining 1 pod", "pods not evicted within 0 s: default/web"]


def test_mark_left_sets_an_annotation() -> None:
    api = api_of()
    nodes.mark_left(api.client, "edge-1")
    assert list(api.bodies[0]["metadata"]["annotations"]) == [LEFT_ANNOTATION]


def certificate_error(message: str) -> SSLError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = message
    return SSLError(error)


HERE = HTTPSConnection("c")


@pytest.mark.parametrize(
    ("cause", "name", "words"),
    [
        (certificate_error("unable to get local issuer certificate"), "api-server-untrusted", "caCertData"),
        (certificate_error("certificate is not yet valid"), "api-server-untrusted", "clock"),
        (certificate_error("certificate has expired"), "api-server-untrusted", "clock"),
        (NameResolutionError("c", HERE, socket.gaierror(-2, "x")), "api-server-name-not-resolved", "serverURL"),
        (socket.gaierror(-2, "Name or service not known"), "api-server-name-not-resolved", "resolv.conf"),
        (ConnectionRefusedError(111, "x"), "api-server-unreachable", "cannot be reached: c refused the connection."),
        (ConnectTimeoutError(HERE, "x"), "api-server-unreachable", "timed out"),
        (OSError(113, "No route to host"), "api-server-unreachable", "No route to host"),
        (ProtocolError("x", ConnectionResetError(104, "x")), "api-server-unreachable", "interrupted"),
        (OSError("odd"), "api-server-unreachable", "the connection to c failed (OSError)."),
    ],
    ids=repr,
)
def test_api_server_connection_error_is_explained(cause: HTTPError | OSError, name: str, words: str) -> None:
    error = explain_connection_error("https://c", cause)
    assert error.name == name
    assert words in str(error)
    assert error.retryable is (name != "api-server-untrusted")
