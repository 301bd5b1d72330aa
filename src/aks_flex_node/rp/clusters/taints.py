"""Taints of Nodes: a kubelet registers with them, and may not change them after. So the service does.

It does so when what is wanted has changed, and when a Node is new; what others do to a Node's taints meanwhile is
theirs to do. Which taints it has brought stands on the Node. A node can write that itself, so it counts only for
taints that the resource once had: no node gets rid of somebody else's taint by claiming that it was ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.clients import Refused
from aks_flex_node.rp.clusters.nodes import NODES, is_ours
from aks_flex_node.rp.clusters.watches import each

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.rp.clusters.clients import Client, Object
    from aks_flex_node.rp.clusters.listener import Listener

    Place = tuple[str, str]  # a Node has one taint of a key and an effect

BROUGHT = "flex.aks.azure.com/taints"  # on a Node
THE_CLUSTERS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")  # are put there and taken by the cluster
ATTEMPTS = 5  # at a Node that others are writing, too

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taints:
    """What a node should have, and what it once should have had."""

    wanted: tuple[Object, ...] = ()
    former: frozenset[Place] = frozenset()

    def by_place(self) -> dict[Place, Object]:
        """The wanted ones that are ours to bring."""
        return {place(one): one for one in self.wanted if not one["key"].startswith(THE_CLUSTERS)}


def place(taint: Object) -> Place:
    return taint["key"], taint["effect"]


def patch(node: Object, taints: Taints) -> Object | None:
    """What brings a Node's taints in line; None when there is nothing to do."""
    wanted = taints.by_place()
    brought, mark = _brought(node), _mark(wanted.values())
    if _note(node) == mark:
        return None
    # Without a mark it is a new Node, and may have registered with what was wanted earlier.
    removable = taints.former if brought is None else taints.former & brought
    before: list[Object] = node.get("spec", {}).get("taints") or []
    after = [one for one in before if _stays(one, wanted, removable)]
    there = {place(one) for one in after}
    after += [one for where, one in wanted.items() if where not in there]
    if brought is None and not wanted and after == before:
        return None
    version = node["metadata"]["resourceVersion"]
    return {
        "metadata": {"resourceVersion": version, "annotations": {BROUGHT: mark}},
        "spec": {"taints": after},
    }


def _stays(taint: Object, wanted: dict[Place, Object], removable: frozenset[Place]) -> bool:
    """One that is wanted with another value goes, and comes back with it."""
    if taint["key"].startswith(THE_CLUSTERS):
        return True
    new = wanted.get(place(taint))
    return place(taint) not in removable if new is None else new.get("value", "") == taint.get("value", "")


def _mark(taints: Iterable[Object]) -> str:
    return json.dumps(sorted(taints, key=place), separators=(",", ":"), sort_keys=True)


def _note(node: Object) -> str | None:
    note: str | None = (node["metadata"].get("annotations") or {}).get(BROUGHT)
    return note


def _brought(node: Object) -> frozenset[Place] | None:
    """None when nothing stands there, or nothing that we have written: a machine may write on its own Node."""
    try:
        return frozenset(place(one) for one in json.loads(_note(node) or ""))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class Tainting:
    """Of one cluster. It is told of Nodes by the watch, and of what is wanted by the store."""

    def __init__(self, cluster: str, client: Client, listener: Listener) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._seen: dict[str, tuple[str, str | None]] = {}  # of every flex node, which Node it is and its mark
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()

    def saw(self, node: Object) -> None:
        name, seen = node["metadata"]["name"], (node["metadata"]["uid"], _note(node))
        if is_ours(node) and self._seen.get(name) != seen:
            self._seen[name] = seen
            self.look_at(name)

    def gone(self, name: str) -> None:
        self._seen.pop(name, None)

    def look_at(self, name: str) -> None:
        """What is wanted of this node may have changed; with no name, of any."""
        self._due |= dict.fromkeys([name] if name else self._seen)
        self._wake.set()

    async def keep(self) -> None:
        """Bring those that are due, as soon as there are any, until something fails."""
        while True:
            await self._wake.wait()
            await self.bring_due()

    async def bring_due(self) -> None:
        """What fails is due again."""
        self._wake.clear()
        due, self._due = self._due, {}
        await each(due, self._try)

    async def _try(self, name: str) -> None:
        try:
            await self._bring(name)
        except Exception:
            self.look_at(name)
            raise

    async def _bring(self, name: str) -> None:
        if name not in self._seen:
            return  # when it comes into the cluster, the watch tells
        taints = await self._listener.taints(self._cluster, name)
        if taints is None or not self._may_differ(name, taints):
            return
        for _ in range(ATTEMPTS):
            node = await self._client.find(f"{NODES}/{name}")
            change = patch(node, taints) if node and is_ours(node) else None
            if node is None or change is None:
                return
            try:
                self.saw(await self._client.merge(f"{NODES}/{name}", change))
            except Refused as refusal:
                if refusal.status == 409:
                    continue
                if refusal.status in {403, 422}:  # for a person to put right; trying again does not help
                    log.warning("%s: taints of %s cannot be changed: %s", self._cluster, name, refusal.message)
                    return
                raise
            log.info("%s: %s has the taints that are wanted.", self._cluster, name)
            return
        self.look_at(name)

    def _may_differ(self, name: str, taints: Taints) -> bool:
        """By what was last seen of the Node: most nodes have no taints, and need not be asked for."""
        mark = self._seen[name][1]
        return bool(taints.wanted or taints.former) if mark is None else mark != _mark(taints.by_place().values())
