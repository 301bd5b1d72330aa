"""Fixtures: an AKS cluster of the lab's Azure with a flex node pool."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from azure.mgmt.containerservice.models import AgentPool
from azure.mgmt.containerservice.models import AgentPoolManagedClusterAgentPoolProfileProperties as PoolProperties

from tests.service.lab.kubernetes_harness import running_kubernetes
from tests.service.lab.pool_harness import GROUP, register_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.lab.pool_harness import Aks

NAMES = itertools.count(1)


@pytest.fixture
def aks(cloud: Cloud, authority: CertificateAuthority, tmp_path: Path) -> Iterator[Aks]:
    with running_kubernetes(authority, tmp_path) as (kubernetes, kubeconfig):
        aks = register_cluster(cloud, kubernetes, kubeconfig, f"joined{next(NAMES)}")
        settings = PoolProperties(
            type_properties_type="FlexNodes",
            mode="User",
            orchestrator_version="1.35.4",
            max_pods=60,
            node_labels={"site": "a"},
            node_taints=["edge=yes:NoSchedule"],
        )
        aks.owner.agent_pools.begin_create_or_update(GROUP, aks.name, "edge", AgentPool(properties=settings)).result()
        yield aks
