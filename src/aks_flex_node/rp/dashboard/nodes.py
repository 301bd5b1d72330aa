"""The page of one node: how it is and why, what it has of what is wanted, and what happened to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.dashboard import differences, explaining, timelines
from aks_flex_node.rp.dashboard.fleet import WORDS
from aks_flex_node.rp.dashboard.joining_commands import remedy
from aks_flex_node.rp.dashboard.scopes import Shown
from aks_flex_node.rp.dashboard.steps import steps
from aks_flex_node.rp.resource import configs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aks_flex_node.rp.arm.ids import ClusterId
    from aks_flex_node.rp.auth.roles import Operation
    from aks_flex_node.rp.dashboard.differences import Line
    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.scopes import Scopes
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.nodes.reading import Reading
    from aks_flex_node.rp.store.store import Event, Node

Document = dict[str, Any]
FURTHEST = 200  # events that are gone through to find what a machine has applied
ASKED: tuple[Operation, ...] = ("write", "delete", "regenerateToken", "audit")
COMPONENTS = {
    "kubernetes": "Kubernetes",
    "containerd": "containerd",
    "runc": "runc",
    "cni": "CNI plugins",
    "npd": "node-problem-detector",
    "agent": "Agent",
}
METHODS = {
    "none": "none",
    "servicePrincipal": "service principal",
    "managedIdentity": "managed identity of its VM",
    "arc": "identity of its Arc machine",
}
WAYS = {
    None: "a bootstrap token",
    "exec": "its Azure identity",
    "certificate": "its Azure identity, then a certificate",
}


@dataclass(frozen=True)
class Component:
    word: str
    wanted: str
    chosen: bool  # a person has asked for this version
    running: str  # empty when nobody knows

    @property
    def differs(self) -> bool:
        return bool(self.running) and self.running != self.wanted


@dataclass(frozen=True)
class Identity:
    words: str
    id: str = ""
    proof: str = ""


@dataclass(frozen=True)
class Comparison:
    """What is wanted beside what the machine has."""

    wanted: str
    applied: str  # its version; empty when it has not said
    at: float
    lines: tuple[Line, ...] | None  # None when the audit does not reach back
    renewed: bool

    @property
    def is_same(self) -> bool:
        return self.wanted == self.applied


@dataclass(frozen=True)
class Nodes:
    pages: Pages
    scopes: Scopes
    reading: Reading

    async def show(self, visit: Visit) -> Response:
        where, known, _ = await self.scopes.node(visit, "read")
        may = {each for each in ASKED if await self.scopes.may(visit, each, known.id)}
        events = await self._events(known.id.node(where.node), timelines.MOST) if "audit" in may else ()
        try:
            node, shown = await self.reading.get(known, where.node)
        except ArmError as error:
            if error.status != 404 or not was_deleted(events):
                raise
            return self._gone(visit, known.id, where.node, events, may)
        status = shown["properties"]["status"]
        compared = await self._comparison(node, status, shown["id"], events if "audit" in may else None)
        way = steps(node, status, events)
        return self.pages.show(
            "node",
            visit,
            called=node.name,
            cluster=known.id,
            here_is=Shown(known.id, 0, known.id.name).node(node.name),
            standing=explaining.standing(status, remedy(way)),
            steps=way,
            comparison=compared,
            moments=timelines.timeline(events, status),
            may=may,
            words=WORDS,
            **facts(node, shown),
        )

    async def _comparison(
        self, node: Node, status: Document, resource: str, events: Sequence[Event] | None
    ) -> Comparison:
        """`events` are None for those who may not see them."""
        has = str(status.get("appliedConfigVersion", ""))
        at = explaining.seconds(status.get("lastConfigApplied", ""))
        found = differences.applied(node.properties, node.version, has, events or ()) if has else None
        if has and events and found is None:
            further = await self._events(resource, FURTHEST)
            found = differences.applied(node.properties, node.version, has, further)
        differing = differences.changes(found.properties, node.properties) if found else {}
        named = {differences.name_of(path): change for path, change in differing.items()}
        lines = tuple(differences.lines(named)) if found else None
        return Comparison(str(node.version), has, at, lines, bool(found and found.renewed))

    def _gone(
        self, visit: Visit, cluster: ClusterId, name: str, events: Sequence[Event], may: set[Operation]
    ) -> Response:
        """Whoever has just deleted it, or had its page open, is told what became of it."""
        deletion = next(each for each in events if each.what == "delete" and each.outcome == "ok")
        return self.pages.show(
            "node",
            visit,
            node=None,
            called=name,
            id=cluster.node(name),
            cluster=cluster,
            deletion=deletion,
            leaves=leaves(deletion.detail.get("before", {})),
            moments=timelines.timeline(events),
            may=may,
        )

    async def _events(self, resource: str, most: int) -> tuple[Event, ...]:
        return await self.scopes.doors.shop.store.audit(resource=resource, limit=most)


def facts(node: Node, shown: Document) -> Document:
    """What the page says of the node besides how it stands."""
    properties, status = shown["properties"], shown["properties"]["status"]
    conditions = [explaining.condition(each) for each in status["conditions"]]
    return {
        "node": node,
        "id": shown["id"],
        "properties": properties,
        "told": status,
        "conditions": conditions,
        "attention": explaining.attention(conditions),
        "certificate": next((each for each in conditions if each.kind == "CertificateExpiring"), None),
        "components": components(node, status),
        "identity": identity(node.properties.get("azureAuth", {})),
        "way": WAYS[node.config.get("node", {}).get("kubelet", {}).get("auth")],
        "config": json.dumps(node.config, indent=2, ensure_ascii=False),
        "system": system(node.system),
        "last_seen": explaining.seconds(properties.get("lastSeen", "")),
        "last_drift": explaining.seconds(status.get("lastDriftDetected", "")),
    }


def was_deleted(events: Sequence[Event]) -> bool:
    return any(each.what == "delete" and each.outcome == "ok" for each in events)


def leaves(properties: Document) -> bool:
    """Whether the machine itself leaves the cluster when the node is deleted: an agent that stays does so, unless it
    was told not to."""
    told = properties.get("nodeConfig", {}).get("unbootstrapOnDelete", True)
    return bool(properties.get("continuousMonitoring")) and told is not False


def components(node: Node, status: Document) -> list[Component]:
    """Of what only the machine could tell, what it has applied is known as long as that is what is wanted."""
    wanted, asked = configs.versions_in(node.config), node.properties.get("versions", {})
    same = str(status.get("appliedConfigVersion", "")) == str(node.version)
    running = {name: version for name, version in wanted.items() if same}
    running |= {"kubernetes": status.get("kubeletVersion", ""), "agent": status.get("agentVersion", "")}
    return [
        Component(word, wanted.get(name, ""), name in asked, str(running.get(name, "")).removeprefix("v"))
        for name, word in COMPONENTS.items()
    ]


def identity(auth: Document) -> Identity:
    """How the agent signs in to Azure."""
    method = str(auth.get("method", "none"))
    told = auth.get(method) or {}
    known = next((str(told[name]) for name in ("clientId", "principalId", "machineName") if told.get(name)), "")
    proof = ""
    if method == "servicePrincipal":
        proof = "with a certificate on the machine" if told.get("certificateOnMachine") else "with a secret (hidden)"
    return Identity(METHODS.get(method, method), known, proof)


def system(told: Document) -> Document:
    """Who made it and who changed it last, with times to be shown."""
    moments = ("createdAt", "lastModifiedAt")
    return {**told, **{name: explaining.seconds(told.get(name, "")) for name in moments}}
