"""The lab's AKS with a small Kubernetes behind it, and the Azure SDK as its client."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken
from azure.mgmt.containerservice import ContainerServiceClient

from aks_flex_lab.arm.flex_pools.model import FlexPoolStore, PoolTimings
from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID, ManagedClusters
from aks_flex_lab.entra.tokens import TokenIssuer
from tests.service.lab.cloud_harness import CLUSTER, OWNER
from tests.service.lab.sdk_contract import answer_problems, header_problems

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.lab.cloud_harness import Cloud
    from tests.service.lab.kubernetes_harness import FakeKubernetes

GROUP = "edge"
CONTROL_PLANE = "1.36.3"
# As in the lab, but without waiting.
QUICK = PoolTimings(
    operation_seconds=0.02,
    retry_after=0,
    ready_seconds=15.0,
    drain_seconds=1.0,
    poll_seconds=0.05,
    cleanup_seconds=0.1,
)


@dataclass(frozen=True)
class TokenOf:
    """A credential of azure-core for a principal of the lab's directory."""

    text: str

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(self.text, int(time.time()) + 3600)


@dataclass
class Aks:
    """An AKS cluster of the lab's Azure, and what its answers break of the SDK's contract."""

    cloud: Cloud
    kubernetes: FakeKubernetes
    name: str
    findings: list[str] = field(default_factory=list)
    checked: int = 0  # answers that were compared with the SDK's models
    asked: list[tuple[str, str]] = field(default_factory=list)  # method and path of each request of the SDK
    _owner: Any = None

    @property
    def id(self) -> str:
        return CLUSTER.replace("plant", self.name)

    @property
    def store(self) -> FlexPoolStore:
        return FlexPoolStore(self.cloud.state)

    @property
    def is_idle(self) -> bool:
        """Whether no operation on a pool or a Machine is in progress."""
        state = self.store.read()
        return {each.state for each in (*state.pools.values(), *state.machines.values())} <= {"Succeeded", "Failed"}

    @property
    def owner(self) -> Any:
        self._owner = self._owner or self.client()
        return self._owner

    def client(self, role: str = OWNER, scope: str = "") -> Any:  # every value of its models is optional
        """Returns the SDK's client, signed in as a new principal with this role; none if it is empty."""
        principal = self.cloud.directory.service_principal("somebody", "right")
        if role:
            self.cloud.assignments.put(scope or self.id, role, principal.object_id)
        token = TokenIssuer(self.cloud.directory, self.cloud.keys, self.cloud.url).access_token(
            principal, self.cloud.url
        )
        return ContainerServiceClient(
            TokenOf(token),
            SUBSCRIPTION_ID,
            base_url=self.cloud.url,
            credential_scopes=[f"{self.cloud.url}/.default"],
            connection_verify=self.cloud.ca,
            polling_interval=0,
            retry_total=0,
            raw_response_hook=self._check,
        )

    def _check(self, answer: Any) -> None:
        request, response = answer.http_request, answer.http_response
        self.asked.append((request.method, urlsplit(request.url).path))
        text = response.body()
        found = header_problems(answer)
        if text:
            found += answer_problems(request.method, request.url, response.status_code, json.loads(text))
            self.checked += 1
        self.findings += [f"{request.method} {request.url}: {each}" for each in found]


def register_cluster(cloud: Cloud, kubernetes: FakeKubernetes, kubeconfig: Path, name: str) -> Aks:
    clusters = ManagedClusters(cloud.state)
    known = clusters.find(CLUSTER)
    assert known
    aks = Aks(cloud, kubernetes, name)
    clusters.register(dataclasses.replace(known, id=aks.id, kubeconfig=str(kubeconfig), version=CONTROL_PLANE))
    aks.store.set_timings(QUICK)
    return aks
