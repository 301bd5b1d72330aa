"""A cluster that the resource provider watches, and clients that request certificates from it."""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from cryptography import x509

from aks_flex_rp.clusters import bootstrap_tokens, prerequisites
from aks_flex_rp.clusters.admission_policies import ADMISSION, SIGNING, SINGLE_USE_POLICY
from aks_flex_rp.clusters.client import ApiRefused, FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import DirectConnection, load_kubeconfig
from aks_flex_rp.clusters.controller import ClusterController, ControllerIntervals
from aks_flex_rp.clusters.csr_policy import REQUESTS
from tests.unit.rp.clusters.builders import Heard, request_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_rp.clusters.taints import DesiredTaints

CLUSTER = "lab"
PACE = ControllerIntervals(refresh=600, clean_up=0.3)
POLICY = f"{ADMISSION}/validatingadmissionpolicies/{SINGLE_USE_POLICY}"
RIVAL = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "rival-approver"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": f"{SIGNING}:nodeclient",
    },
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}],
}


@dataclass
class Site:
    """A watched cluster and its clients."""

    direct: DirectConnection
    client: KubeClient
    heard: Heard
    watches: tuple[ClusterController, ...]

    def wants(self, node: str, taints: DesiredTaints) -> None:
        """Sets the desired taints of a node and notifies every replica."""
        self.heard.wanted[node] = taints
        for watch in self.watches:
            watch.node_changed(node)

    async def mint(self, node: str, lifetime: timedelta = timedelta(hours=24)) -> bootstrap_tokens.MintedToken:
        token = await bootstrap_tokens.mint_token(self.client, node, datetime.now(timezone.utc) + lifetime)
        self.heard.tokens[node] = token.id
        return token

    def bearing(self, token: bootstrap_tokens.MintedToken | str) -> KubeClient:
        """Returns a client that authenticates with a bootstrap token, as a kubelet does."""
        text = token if isinstance(token, str) else token.reveal()
        return KubeClient(FixedConnection(replace(self.direct, certificate="", key="", token=text)))

    async def ask(self, token: bootstrap_tokens.MintedToken | str, node: str, **odd: Any) -> str:
        """Creates a certificate signing request; returns its name."""
        async with self.bearing(token) as client:
            return await send(client, request_for(node, **odd))

    async def csr(self, name: str) -> dict[str, Any]:
        return await self.client.get(f"{REQUESTS}/{name}")

    async def decision(self, name: str) -> dict[str, Any]:
        """Waits for the decision on a certificate signing request; returns its condition."""
        document: dict[str, Any] = {}

        async def decided() -> bool:
            document.update(await self.csr(name))
            return bool(document["status"].get("conditions"))

        await until(decided, f"a decision about {name}")
        (condition,) = document["status"]["conditions"]
        return dict(condition)

    async def certificate(self, name: str) -> x509.Certificate:
        async def issued() -> bool:
            return bool((await self.csr(name))["status"].get("certificate"))

        await until(issued, f"the certificate of {name}")
        pem = base64.b64decode((await self.csr(name))["status"]["certificate"])
        return x509.load_pem_x509_certificate(pem)

    async def secret_gone(self, token: bootstrap_tokens.MintedToken) -> None:
        async def gone() -> bool:
            return await bootstrap_tokens.find_token(self.client, token.id) is None

        await until(gone, f"token {token.id} is gone")

    def told_of(self, node: str) -> list[str]:
        """Returns the distinct events of a node; repeated events are allowed."""
        return list(dict.fromkeys(self.heard.about(node)))

    async def hears(self, *words: str) -> None:
        async def told() -> bool:
            return any(one[: len(words)] == words for one in self.heard.told)

        await until(told, f"{words} in {self.heard.told}")


@asynccontextmanager
async def watched(
    lab: Lab, *, replicas: int = 1, pace: ControllerIntervals = PACE, direct: DirectConnection | None = None
) -> AsyncIterator[Site]:
    direct = direct or load_kubeconfig(lab.admin_kubeconfig)
    heard = Heard()
    watches = tuple(ClusterController(CLUSTER, direct, heard, intervals=pace) for _ in range(replicas))
    try:
        await prerequisites.ensure_objects(watches[0].client)
        await policy_holds(load_kubeconfig(lab.admin_kubeconfig))
        for watch in watches:
            await watch.start()
        yield Site(direct, watches[0].client, heard, watches)
    finally:
        for watch in watches:
            await watch.stop()
    await until(nothing_runs, "nothing is left running")  # the loop closes the iterators of httpx2


async def nothing_runs() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def policy_holds(direct: DirectConnection, *, holds: bool = True) -> None:
    """Waits until an admission policy is, or is no longer, in effect after its creation or removal."""
    client = KubeClient(FixedConnection(direct))
    token = await bootstrap_tokens.mint_token(client, "probe", datetime.now(timezone.utc) + timedelta(hours=24))
    probe = KubeClient(FixedConnection(replace(direct, certificate="", key="", token=token.reveal())))
    other = request_for("probe", signer="kubernetes.io/kube-apiserver-client")

    async def as_expected() -> bool:
        try:
            await probe.request("POST", REQUESTS, other, parameters={"dryRun": "All"})
        except ApiRefused as refusal:
            return holds and "bootstrap token is for the kubelet" in refusal.message
        return not holds

    try:
        await until(as_expected, f"the policy holds: {holds}")
    finally:
        await bootstrap_tokens.revoke_token(client, token.id)
        await probe.close()
        await client.close()


async def until(true: Callable[[], Awaitable[bool]], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not await true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.05)


async def send(client: KubeClient, document: dict[str, Any]) -> str:
    return str((await client.create(REQUESTS, document))["metadata"]["name"])
