"""What is said to the API server, and what its answers mean."""

from __future__ import annotations

from typing import Any, cast

import pytest

from aks_flex_node.agent.cluster import nodes
from aks_flex_node.agent.cluster.api import Api, Refused, explained
from aks_flex_node.agent.cluster.farewell import Farewell
from aks_flex_node.agent.cluster.nodes import Node
from aks_flex_node.api.node_marks import LEFT
from aks_flex_node.errors import ClusterError
from tests.unit.agent.given import Answers

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
OFFLINE = ClusterError("api-server-unreachable", "It cannot be reached.", "Check it.", again=True)
BUDGET = Refused(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")


def pod(name: str = "web", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", **metadata}}


def api_of(**answers: Any) -> Answers:
    """The node, its pods and what else may be asked."""
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
    return nodes.drain(cast("Api", api), "edge-1", seconds, lambda _: None, clock=clock, sleep=clock.sleep)


def test_a_node_is_read_from_what_the_server_says() -> None:
    node = Node.read(DOCUMENT)
    assert (node.name, node.ready, node.message) == ("edge-1", True, "well")
    assert (node.pod_cidr, node.cordoned, node.version) == ("10.244.3.0/24", True, "v1.34.4")
    assert node.conditions == (("MemoryPressure", "False"), ("Ready", "True"))


def test_a_node_that_has_just_been_registered_says_little() -> None:
    node = Node.read({"metadata": {"name": "edge-1"}})
    assert (node.ready, node.pod_cidr, node.cordoned, node.conditions) == (False, "", False, ())


@pytest.mark.parametrize("status", [403, 404])
def test_a_node_that_is_not_there_is_not_found(status: int) -> None:
    assert nodes.find(cast("Api", api_of(node=Refused(status, "", ""))), "edge-1") is None


def test_another_refusal_is_not_taken_for_a_missing_node() -> None:
    with pytest.raises(Refused):
        nodes.find(cast("Api", api_of(node=Refused(401, "Unauthorized", ""))), "edge-1")


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
def test_pods_of_daemon_sets_and_pods_that_are_files_stay(metadata: dict[str, Any], moves: bool) -> None:
    api = api_of(pods=[[pod(**metadata)]])
    assert bool(nodes.pods(cast("Api", api), "edge-1")) is moves


def test_a_drain_lets_no_new_pods_come_before_it_moves_the_old() -> None:
    api = api_of(pods=[[pod()], []])
    assert drained(api) == []
    assert api.asked == [("PATCH", NODE), ("GET", PODS), ("POST", EVICTION), ("GET", PODS)]
    assert api.bodies[0] == {"spec": {"unschedulable": True}}
    assert api.bodies[2]["kind"] == "Eviction"


def test_a_pod_that_its_budget_holds_back_is_asked_again() -> None:
    api = api_of(pods=[[pod()], [pod()], []], evict=[BUDGET, {}])
    assert drained(api) == []
    assert api.asked.count(("POST", EVICTION)) == 2


def test_a_pod_that_is_going_already_is_not_asked_again() -> None:
    api = api_of(pods=[[pod()], [pod(deletionTimestamp="now")], []])
    assert drained(api) == []
    assert api.asked.count(("POST", EVICTION)) == 1


def test_a_drain_ends_in_time_and_names_who_stayed() -> None:
    assert drained(api_of(pods=[[pod()]], evict=[BUDGET])) == ["default/web"]


@pytest.mark.parametrize(
    ("answer", "gone"), [({}, True), (BUDGET, False), (Refused(404, "NotFound", ""), True)], ids=str
)
def test_an_eviction_is_asked_for(answer: Any, gone: bool) -> None:
    assert nodes.evict(cast("Api", api_of(evict=[answer])), pod()) is gone


def test_an_eviction_that_is_refused_for_good_is_told() -> None:
    with pytest.raises(Refused):
        nodes.evict(cast("Api", api_of(evict=[Refused(403, "Forbidden", "")])), pod())


@pytest.mark.parametrize(
    ("answers", "to_type", "notes"),
    [
        ({}, [], ["node edge-1 is out of the cluster"]),
        ({"delete": Refused(404, "", "")}, [], ["node edge-1 is out of the cluster"]),
        (
            {"delete": Refused(403, "Forbidden", "")},
            ["kubectl delete node edge-1"],
            ["a node's own certificate may not delete node edge-1; it is cordoned and marked as left"],
        ),
        ({"node": Refused(404, "", "")}, [], ["the cluster has no node edge-1"]),
        (
            {"node": OFFLINE},
            ["kubectl delete node edge-1"],
            ["the cluster was not told: It cannot be reached. Check it."],
        ),
        (
            {"node": Refused(401, "Unauthorized", "Unauthorized")},
            ["kubectl delete node edge-1"],
            ["the cluster was not told: Unauthorized"],
        ),
        (
            {"patch": OFFLINE},
            ["kubectl delete node edge-1"],
            ["the cluster was not told: It cannot be reached. Check it."],
        ),
    ],
    ids=str,
)
def test_a_farewell_says_what_is_left_for_a_person_to_type(
    answers: dict[str, Any], to_type: list[str], notes: list[str]
) -> None:
    told: list[str] = []
    assert Farewell(cast("Api", api_of(**answers)), "edge-1", 0.0).say(told.append) == to_type
    assert told == notes


def test_a_farewell_leaves_nothing_to_type_where_a_provider_takes_the_node_away() -> None:
    told: list[str] = []
    api = api_of(nodes=[DOCUMENT, Refused(404, "", "")], delete=Refused(403, "Forbidden", ""))
    assert Farewell(cast("Api", api), "edge-1", 0.0, patience=5.0).say(told.append) == []
    assert told == ["the resource provider took node edge-1 out of the cluster"]


def test_a_farewell_names_pods_that_did_not_go() -> None:
    told: list[str] = []
    Farewell(cast("Api", api_of(pods=[[pod()]])), "edge-1", 0.0).say(told.append)
    assert told[:2] == ["draining 1 pod", "these pods did not go within 0 s: default/web"]


def test_the_last_word_is_an_annotation() -> None:
    api = api_of()
    nodes.say_left(cast("Api", api), "edge-1")
    assert list(api.bodies[0]["metadata"]["annotations"]) == [LEFT]


@pytest.mark.parametrize(
    ("cause", "name", "words"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate",
            "api-server-untrusted",
            "caCertData",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid (_ssl.c:1006)",
            "api-server-untrusted",
            "clock",
        ),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", "api-server-untrusted", "clock"),
        ("NameResolutionError(\"Failed to resolve 'c'\")", "api-server-unknown", "serverURL"),
        ("[Errno -2] Name or service not known", "api-server-unknown", "resolv.conf"),
        ("[Errno 111] Connection refused", "api-server-unreachable", "cannot be reached: connection refused."),
        ("Connection to c timed out. (connect timeout=5.0)", "api-server-unreachable", "timed out"),
        ("[Errno 113] No route to host", "api-server-unreachable", "no route to host"),
        (
            "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
            "api-server-unreachable",
            "reset",
        ),
        ("something: odd", "api-server-unreachable", "cannot be reached: odd."),
        ("", "api-server-unreachable", "unknown cause"),
    ],
)
def test_an_api_server_that_cannot_be_asked_is_explained(cause: str, name: str, words: str) -> None:
    error = explained("https://c", OSError(cause))
    assert error.name == name
    assert words in str(error)
    assert error.again is (name != "api-server-untrusted")
