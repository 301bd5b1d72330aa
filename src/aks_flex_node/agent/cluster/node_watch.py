"""Watches this node's own Node object in a separate thread, and reports its deletion and changes of its metadata.

A change of the Node's status is not reported: the kubelet writes it. When the API server is away or refuses the
watch, the thread waits with backoff; the periodic health check finds the same changes later.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError, ApiStream
from aks_flex_node.lean_dataclass import dataclass, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


WATCH_SECONDS = 300  # after which the API server ends a watch
GRACE_SECONDS = 30.0
MIN_WATCH_SECONDS = 10.0  # a watch that ends earlier without an event counts as a failure
MIN_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 60.0
REFUSED_SECONDS = 600.0  # the node may not watch its Node; its roles rarely change


@frozen
class NodeSnapshot:
    """What the watch saw of the Node."""

    uid: str = ""  # empty: the Node does not exist
    digest: str = ""  # of labels, annotations, taints and schedulability


class UnexpectedAnswerError(Exception):
    """Another server than an API server answered, or the watch ended at once."""


class WatchExpiredError(Exception):
    """The API server no longer has the requested resource version, so the Node must be read again."""


@dataclass
class NodeWatch:
    open_api: Callable[[], ApiClient]  # a new client for each connection, because credentials may have changed
    node: str
    on_change: Callable[
        [NodeSnapshot], None
    ]  # called in the watch's thread, at first only for a missing Node, then for each change
    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    _seen: NodeSnapshot | None = None
    _failures: int = 0
    _stream: ApiStream | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="node-watch", daemon=True).start()

    def stop(self) -> None:
        """Stops the watch; does not wait for the thread."""
        self._stopped.set()
        if stream := self._stream:
            stream.stop()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._stopped.wait(self.watch_once())

    def watch_once(self) -> float:
        """Reads the Node and watches it until the watch ends; returns the seconds until the next attempt."""
        try:
            api = self.open_api()
            try:
                # Reports the Node as it is now; returns the resource version to watch from.
                found = api.get(self._path())
                if not isinstance(found, dict) or found.get("kind") != "NodeList":
                    raise UnexpectedAnswerError
                items = found.get("items") or []
                self._report(_snapshot_of(items[0], self.node) if items else NodeSnapshot())
                version = str(found["metadata"]["resourceVersion"])
                while not self._stopped.is_set():
                    version = self._watch(api, version)
                    self._stopped.wait(self._jittered(MIN_DELAY_SECONDS))
            finally:
                api.close()
        except WatchExpiredError:
            return self._jittered(MIN_DELAY_SECONDS)
        except ApiStatusError as refusal:
            return self._jittered(REFUSED_SECONDS) if refusal.status in {403, 405} else self._backoff()
        except Exception:  # no failure and no response may stop the thread
            return self._backoff()
        return 0.0

    def _watch(self, api: ApiClient, version: str) -> str:
        began, heard = self.clock(), False
        options = f"&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={quote(version)}"
        self._stream = stream = api.open_stream(self._path() + options, WATCH_SECONDS + GRACE_SECONDS)
        if self._stopped.is_set():
            stream.stop()  # `stop` did not know the stream yet
        try:
            for line in stream.lines():
                version, heard = self._handle(json.loads(line)) or version, True
                self._failures = 0
        finally:
            self._stream = None
            stream.close()
        if not heard and self.clock() - began < MIN_WATCH_SECONDS and not self._stopped.is_set():
            raise UnexpectedAnswerError
        self._failures = 0
        return version

    def _handle(self, event: Mapping[str, Any]) -> str:
        """Reports one event; returns its resource version."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item.get("kind") == "Status" and item.get("code") == 410:
                raise WatchExpiredError
            raise UnexpectedAnswerError
        if item.get("kind") != "Node":
            raise UnexpectedAnswerError
        if kind == "DELETED":
            _snapshot_of(item, self.node)  # raises for another Node
            self._report(NodeSnapshot())
        elif kind in {"ADDED", "MODIFIED"}:
            self._report(_snapshot_of(item, self.node))
        return str(item["metadata"]["resourceVersion"])

    def _report(self, snapshot: NodeSnapshot) -> None:
        known, self._seen = self._seen, snapshot
        if known != snapshot and (known is not None or not snapshot.uid) and not self._stopped.is_set():
            self.on_change(snapshot)

    def _path(self) -> str:
        return f"/api/v1/nodes?fieldSelector={quote(f'metadata.name={self.node}', safe='')}"

    def _backoff(self) -> float:
        self._failures += 1
        return self._jittered(min(MAX_DELAY_SECONDS, MIN_DELAY_SECONDS * float(2 ** min(self._failures, 10))))

    def _jittered(self, seconds: float) -> float:
        return seconds * self.rng.uniform(0.75, 1.25)


def _snapshot_of(item: Mapping[str, Any], node: str) -> NodeSnapshot:
    metadata, spec = item["metadata"], item.get("spec") or {}
    if metadata["name"] != node:
        raise UnexpectedAnswerError
    watched = [  # not labels and annotations, which controllers may write every few seconds
        spec.get("taints"),
        spec.get("unschedulable"),
        metadata.get("deletionTimestamp"),
    ]
    digest = hashlib.sha256(json.dumps(watched, sort_keys=True).encode()).hexdigest()
    return NodeSnapshot(str(metadata["uid"]), digest)
