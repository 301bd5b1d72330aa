"""Tests of what a storage account gets of a bundle: never a client secret."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from aks_flex_node.api.config_urls import KEY_URL
from aks_flex_rp.delivery.config_url import SplitDelivery

SECRET = "canary-secret"
PRINCIPAL = {"clientId": "c", "clientSecret": SECRET}
TOKEN = {"bootstrapToken": {"token": "a.b"}}


@dataclass
class FakeDelivery:
    name: str
    bundles: dict[tuple[str, str], bytes] = field(default_factory=dict)

    async def start(self) -> None: ...

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:  # noqa: ARG002
        self.bundles[cluster_key, node_key] = bundle
        return f"https://{self.name}/x"

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        return self.bundles.pop((cluster_key, node_key), None) is not None

    async def sweep(self, now: float) -> int:  # noqa: ARG002
        return 0


def put(config: dict[str, Any]) -> tuple[SplitDelivery, FakeDelivery, FakeDelivery]:
    storage, service = FakeDelivery("storage"), FakeDelivery("service")
    split = SplitDelivery(storage, service)
    bundle = json.dumps({"configVersion": "7", "config": config}).encode()
    assert asyncio.run(split.put("c", "n", bundle, 0.0)) == "https://storage/x"
    return split, storage, service


@pytest.mark.parametrize("monitored", [True, False])
def test_client_secret_is_only_at_the_service(monitored: bool) -> None:
    _, storage, service = put({"continuousMonitoring": monitored, "azure": {"servicePrincipal": PRINCIPAL, **TOKEN}})
    there = storage.bundles["c", "n"].decode()
    assert SECRET not in there
    document = json.loads(there)
    assert document["config"]["azure"] == {"servicePrincipal": {"clientId": "c"}, **TOKEN}
    assert (document[KEY_URL], document["configVersion"]) == ("https://service/x", "7")
    assert SECRET in service.bundles["c", "n"].decode()


def test_managed_node_binds_its_key_at_the_service() -> None:
    _, storage, service = put({"continuousMonitoring": True, "azure": TOKEN})
    assert json.loads(storage.bundles["c", "n"])[KEY_URL] == "https://service/x"
    assert service.bundles


def test_node_that_is_not_managed_joins_without_the_service() -> None:
    _, storage, service = put({"continuousMonitoring": False, "azure": TOKEN})
    assert KEY_URL not in json.loads(storage.bundles["c", "n"])
    assert service.bundles == {}


def test_revocation_ends_both_urls() -> None:
    split, storage, service = put({"continuousMonitoring": True, "azure": TOKEN})
    assert asyncio.run(split.revoke("c", "n"))
    assert (storage.bundles, service.bundles) == ({}, {})
    assert not asyncio.run(split.revoke("c", "n"))
