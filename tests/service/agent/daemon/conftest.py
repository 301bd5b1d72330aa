"""Fixtures: a real resource provider that trusts the lab's Entra ID, and the resources of its nodes."""

from __future__ import annotations

import base64
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from aks_flex_lab.entra.directory import TENANT_ID
from tests.service.agent.daemon.harness import AUDIENCE
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters
from tests.service.rp.api.service_harness import PLENTY, running, settings
from tests.service.rp.api.traffic_recorder import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.settings import ServiceSettings
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.service_harness import Running

MakeBody: TypeAlias = "Callable[..., dict[str, Any]]"  # of the request that creates a node
OLD, NEW = "canary-old-secret", "canary-new-secret"
numbers = count(1)


@pytest.fixture(scope="module")
def clusters(authority: CertificateAuthority) -> FakeClusters:
    ca = base64.b64encode(authority.certificate.read_bytes()).decode()
    return FakeClusters.of(known_clusters(ca))


@pytest.fixture(scope="module")
def make_settings(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ServiceSettings]:
    tenant = {"tenantId": TENANT_ID, "metadataUrl": cloud.metadata, "caFile": cloud.ca, "audiences": [AUDIENCE]}
    azure = {"resourceManager": cloud.url, "authority": cloud.url, "caFile": cloud.ca}

    def make(**more: Any) -> ServiceSettings:
        words = {
            "auth": {"tenants": [tenant]},
            "azure": azure,
            "limits": PLENTY,
            "nodes": {"allowExec": True},
            **more,
        }
        return settings(tmp_path_factory.mktemp("service") / "state", **words)

    return make


@pytest.fixture(scope="module")
def service(make_settings: Callable[..., ServiceSettings], clusters: FakeClusters) -> Iterator[Running]:
    with running(make_settings(), clusters, Recording()) as service:
        yield service


@pytest.fixture
def identity(cloud: Cloud) -> EntraPrincipal:
    return cloud.directory.service_principal("edge", OLD)


@pytest.fixture
def body(identity: EntraPrincipal) -> MakeBody:
    """Returns a function that creates the request body of a node."""

    def make(secret: str = OLD, **node: Any) -> dict[str, Any]:
        made = principal(identity.client_id, secret, nodeConfig=node)
        made["properties"]["azureAuth"]["servicePrincipal"]["clientTenant"] = TENANT_ID
        return made

    return make


@pytest.fixture
def name() -> str:
    return f"edge-{next(numbers)}"
