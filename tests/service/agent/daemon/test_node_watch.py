"""Tests of the watch of the Node, with a small server in place of the API server."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.cluster.client import ApiClient
from aks_flex_node.agent.cluster.node_watch import MAX_DELAY_SECONDS, REFUSED_SECONDS, NodeSnapshot, NodeWatch
from tests.service.agent.daemon.harness import eventually
from tests.service.http_servers import Handler, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair


def node(uid: str = "u1", version: str = "5", name: str = "edge-1", **metadata: Any) -> dict[str, Any]:
    known = {"name": name, "uid": uid, "resourceVersion": version, **metadata}
    return {"kind": "Node", "apiVersion": "v1", "metadata": known, "spec": {}}


def event(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


EXPIRED = {"kind": "Status", "code": 410, "metadata": {}}


@dataclass
class Cluster:
    """An API server with one Node, which sends these events to each watch and then waits or ends."""

    items: list[dict[str, Any]] = field(default_factory=lambda: [node()])
    watches: list[list[bytes]] = field(default_factory=list)
    status: int = 200
    html: bool = False
    asked: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def serve(self, pair: CertificatePair) -> Iterator[str]:
        cluster = self

        class Serve(Handler):
            def do_GET(self) -> None:  # noqa: N802
                cluster.asked.append(self.path)
                self.send_response(cluster.status)
                self.end_headers()
                if cluster.html:
                    self.wfile.write(b"<html>Sign in</html>")
                elif cluster.status != 200:
                    self.wfile.write(json.dumps({"kind": "Status", "code": cluster.status}).encode())
                elif "watch=1" in self.path:
                    for line in cluster.watches.pop(0) if cluster.watches else []:
                        self.wfile.write(line)
                        self.wfile.flush()
                    if not cluster.watches:
                        cluster.over.wait(20)
                else:
                    listed = {"kind": "NodeList", "metadata": {"resourceVersion": "4"}, "items": cluster.items}
                    self.wfile.write(json.dumps(listed).encode())

        with listening(Serve, pair) as url:
            try:
                yield url
            finally:
                self.over.set()


@dataclass
class Watching:
    cluster: Cluster
    watch: NodeWatch
    seen: list[NodeSnapshot]


@pytest.fixture
def watching(pair: CertificatePair, authority: CertificateAuthority) -> Iterator[Watching]:
    cluster, seen = Cluster(), []  # type: tuple[Cluster, list[NodeSnapshot]]
    with cluster.serve(pair) as url:
        watch = NodeWatch(lambda: ApiClient(url, str(authority.certificate)), "edge-1", seen.append)
        yield Watching(cluster, watch, seen)
        watch.stop()


def test_watch_reports_deletion_and_taints_but_not_annotations(watching: Watching) -> None:
    annotated = node(version="6", annotations={"a": "1"}, labels={"b": "2"})
    changed = {**node(version="7"), "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    back = node("u2", "9")
    events = [event("MODIFIED", annotated), event("MODIFIED", changed), event("DELETED", changed)]
    watching.cluster.watches = [[*events, event("ADDED", back), event("BOOKMARK", node(version="12"))]]
    watching.watch.start()
    eventually(lambda: len(watching.seen) == 3)
    assert [one.uid for one in watching.seen] == ["u1", "", "u2"]
    assert "fieldSelector=metadata.name%3Dedge-1" in watching.cluster.asked[1]


def test_watch_reports_a_node_that_is_missing_at_the_start(watching: Watching) -> None:
    watching.cluster.items = []
    watching.watch.start()
    eventually(lambda: watching.seen == [NodeSnapshot()])


def test_watch_continues_and_reads_the_node_again_when_expired(watching: Watching) -> None:
    watching.cluster.watches = [[event("BOOKMARK", node(version="12"))], [event("ERROR", EXPIRED)], []]
    watching.watch.start()
    eventually(lambda: len(watching.cluster.asked) >= 5)
    assert "resourceVersion=12" in watching.cluster.asked[2]
    assert "watch=1" not in watching.cluster.asked[3]  # the Node is read again
    assert watching.seen == []


@pytest.mark.parametrize(
    "line", [b"<html>\n", event("DELETED", node(name="other")), event("DELETED", {"kind": "Pod"})]
)
def test_watch_believes_only_its_own_node(watching: Watching, line: bytes) -> None:
    watching.cluster.watches = [[line], []]
    assert watching.watch.watch_once() > 0
    assert watching.seen == []


def test_watch_backs_off_and_never_loops_without_a_delay(watching: Watching) -> None:
    watching.cluster.html = True
    delays = [watching.watch.watch_once() for _ in range(9)]
    assert all(delay >= 1.0 for delay in delays)
    assert MAX_DELAY_SECONDS * 0.75 <= delays[-1] <= MAX_DELAY_SECONDS * 1.25
    watching.cluster.status = 403
    assert watching.watch.watch_once() < REFUSED_SECONDS * 0.75  # a page is no refusal of the API server
    watching.cluster.html = False
    assert watching.watch.watch_once() >= REFUSED_SECONDS * 0.75


def test_stopped_watch_ends_its_thread(watching: Watching) -> None:
    before = threading.active_count()
    watching.watch.start()
    eventually(lambda: len(watching.cluster.asked) == 2)
    watching.watch.stop()
    eventually(lambda: not [each for each in threading.enumerate() if each.name == "node-watch"])
    assert threading.active_count() <= before + 2  # those of the server
