"""A cluster in memory, with one node that can join it."""

from __future__ import annotations

import ipaddress
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from cryptography import x509

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.clusters import bootstrap_tokens
from aks_flex_rp.clusters.csr_approver import ISSUE_GRACE_SECONDS, CsrApprover
from aks_flex_rp.clusters.csr_policy import REQUESTS, SERVING_SIGNER
from aks_flex_rp.clusters.facts import KUBERNETES, ClusterFacts
from aks_flex_rp.clusters.node_controller import NODES
from tests.unit.rp.clusters.builders import Heard, request_for
from tests.unit.rp.clusters.fakes import FakeApi

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

APPROVED, DENIED = [("Approved", "FlexNodeApproved")], [("Denied", "FlexNodeDenied")]
FACTS = ClusterFacts("1.34.4", "https://nodes.example.com:443", "", "10.0.0.10")


@asynccontextmanager
async def scene_with_token() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.mint()
    yield scene


class Scene:
    """One token for one node, one approver, and a cluster in memory."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.client = self.api.client()
        self.heard = Heard()
        self.approver = self.replica()
        self.token = ""
        self.caller: tuple[str, list[str]] | None = None  # user and groups, unless it is the bootstrap token
        self.api.put(KUBERNETES, {"spec": {"clusterIP": "10.0.0.1"}})

    def replica(self, grace: float = ISSUE_GRACE_SECONDS, *, shared_addresses: bool = False) -> CsrApprover:
        async def facts() -> ClusterFacts:
            return FACTS

        return CsrApprover("lab", self.client, self.heard, facts, grace, shared_addresses=shared_addresses)

    async def mint(self, lifetime: timedelta = timedelta(hours=24)) -> None:
        later = datetime.now(timezone.utc) + lifetime
        self.token = (await bootstrap_tokens.mint_token(self.client, "edge-1", later)).id
        self.heard.tokens["edge-1"] = self.token

    async def has_token(self) -> bool:
        return await bootstrap_tokens.find_token(self.client, self.token) is not None

    def ask(self, name: str = "csr-1", **odd: Any) -> dict[str, Any]:
        document = request_for("edge-1", **odd)
        document["metadata"] = {"name": name, "creationTimestamp": format_utc()}
        user, groups = self.caller or (f"system:bootstrap:{self.token}", [bootstrap_tokens.TOKEN_GROUP])
        document["spec"] |= {"username": user, "groups": groups}
        return self.api.put(f"{REQUESTS}/{name}", document)

    def ask_for_serving(self) -> dict[str, Any]:
        own = (x509.DNSName("edge-1"), x509.IPAddress(ipaddress.ip_address("192.0.2.1")))
        return self.ask(names=own, signer=SERVING_SIGNER, usages=("digital signature", "server auth"))

    def put_node(self, name: str, address: str, **metadata: Any) -> None:
        """Lets a Node list an address."""
        addresses = [{"type": "InternalIP", "address": address}]
        self.api.put(f"{NODES}/{name}", {"metadata": metadata, "status": {"addresses": addresses}})

    async def send(self, name: str = "csr-1", **odd: Any) -> None:
        """Lets the approver see a request."""
        await self.approver.changed("ADDED", self.ask(name, **odd))

    def now(self, name: str = "csr-1") -> dict[str, Any]:
        return self.api.objects[f"{REQUESTS}/{name}"]

    def has(self, name: str, *conditions: str, certificate: str = "", **more: str) -> dict[str, Any]:
        """Sets conditions or a certificate, as another approver or signer does."""
        listed = [{"type": one, "status": "True", "reason": "AutoApproved", **more} for one in conditions]
        old = self.now(name).get("status", {}).get("conditions", [])
        status = {"conditions": [*old, *listed]} | ({"certificate": certificate} if certificate else {})
        return self.api.put(f"{REQUESTS}/{name}", {**self.now(name), "status": status})

    def decisions(self, name: str = "csr-1") -> list[tuple[str, str]]:
        return [(one["type"], one["reason"]) for one in self.now(name).get("status", {}).get("conditions", [])]
