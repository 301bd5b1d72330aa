"""Tests of the cluster facts that the controller reports."""

from __future__ import annotations

import pytest

from aks_flex_rp.clusters.controller import ClusterController
from aks_flex_rp.clusters.facts import DNS
from tests.unit.rp.clusters.builders import Heard
from tests.unit.rp.clusters.fakes import DIRECT, FakeApi


async def test_cluster_facts_are_reported_on_refresh_and_retried_after_failure() -> None:
    api, heard = FakeApi(), Heard()
    api.put("/version", {"gitVersion": "v1.34.4"})
    api.put(DNS, {"spec": {"clusterIP": "10.0.0.10"}})
    api.put("/apis/admissionregistration.k8s.io/v1", {})
    watch = ClusterController("lab", DIRECT, heard)
    watch.client = api.client()
    heard.deaf = True
    with pytest.raises(ConnectionError):
        await watch.refresh()
    heard.deaf = False
    for _ in range(2):
        await watch.refresh()
    await watch.stop()

    assert [facts.dns_service_ip for facts in heard.facts] == ["10.0.0.10", "10.0.0.10"]
    assert await watch.facts() == heard.facts[0]
