"""Tests of the cluster client: expired credentials and error messages."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx2
import pytest

from aks_flex_node.errors import ClusterError
from aks_flex_rp.clusters import client as client_module
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.facts import FactOverrides, read_facts
from aks_flex_rp.clusters.managed_cluster import ManagedConnection
from tests.unit.rp.clusters.fakes import DIRECT, FakeApi, refusal
from tests.unit.rp.clusters.test_connections import CLUSTER, PEM, kubeconfig

ID = "/subscriptions/sub-1/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/aks"
MANAGED: dict[str, Any] = {
    "id": ID,
    "location": "westeurope",
    "identity": {"tenantId": "tenant-1"},
    "properties": {
        "currentKubernetesVersion": "1.34.2",
        "networkProfile": {
            "dnsServiceIP": "10.0.0.10",
            "podCidr": None,
            "podCidrs": ["10.244.0.0/16", "fd00::/64"],
            "serviceCidr": "10.0.0.0/16",
            "serviceCidrs": ["10.0.0.0/16"],
        },
        "aadProfile": {"managed": True},
    },
}


class Azure:
    """Returns another token each time."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.handed = 0

    def get(self, path: str, api_version: str) -> dict[str, Any]:
        self.calls.append(f"GET {path} {api_version}")
        return MANAGED

    def post(self, path: str, api_version: str) -> dict[str, Any]:
        self.calls.append(f"POST {path} {api_version}")
        self.handed += 1
        text = kubeconfig(CLUSTER, {"token": f"token-{self.handed}"})
        return {"kubeconfigs": [{"name": "admin", "value": base64.b64encode(text.encode()).decode()}]}


def only(token: str) -> Any:
    def answer(request: httpx2.Request) -> httpx2.Response:
        well = request.headers["Authorization"] == f"Bearer {token}"
        return httpx2.Response(200, json={"gitVersion": "v1.34.4"}) if well else refusal(401, "Unauthorized")

    return answer


async def test_new_kubeconfig_is_requested_from_azure_when_old_one_is_refused() -> None:
    azure, api = Azure(), FakeApi()
    async with api.client(ManagedConnection(ID, azure)) as client:
        for token in ("token-1", "token-2"):
            api.answers["GET /version"] = only(token)
            assert (await client.get("/version"))["gitVersion"] == "v1.34.4"

    assert azure.handed == 2
    assert azure.calls[0].startswith(f"POST {ID}/listClusterAdminCredential ")


async def test_kubeconfig_request_to_azure_is_retried_only_once() -> None:
    azure, api = Azure(), FakeApi()
    api.answers["GET /version"] = only("none")
    async with api.client(ManagedConnection(ID, azure)) as client:
        with pytest.raises(ApiRefused) as caught:
            await client.get("/version")

    assert (caught.value.status, azure.handed) == (401, 2)


async def test_refused_static_kubeconfig_is_not_retried() -> None:
    api = FakeApi()
    api.answers["GET /version"] = only("none")
    async with api.client() as client:
        with pytest.raises(ApiRefused):
            await client.get("/version")

    assert api.calls == ["GET /version"]


async def test_azure_cluster_without_local_accounts_is_an_error() -> None:
    class Closed(Azure):
        def post(self, path: str, api_version: str) -> dict[str, Any]:  # noqa: ARG002
            return {"kubeconfigs": []}

    with pytest.raises(ClusterError, match="Enable local accounts"):
        await ManagedConnection(ID, Closed()).connection()


async def test_cluster_facts_merge_api_server_azure_and_overrides() -> None:
    api = FakeApi()
    api.answers["GET /version"] = only("token-1")
    async with api.client(ManagedConnection(ID, Azure())) as client:
        facts = await read_facts(client, FactOverrides(location="home"))

    assert (facts.version, facts.dns_service_ip, facts.aad) == ("1.34.4", "10.0.0.10", True)
    assert (facts.location, facts.tenant_id) == ("home", "tenant-1")
    assert facts.ranges == {"10.244.0.0/16": "pods", "fd00::/64": "pods", "10.0.0.0/16": "services"}
    assert facts.server_url == "https://api.example.com:6443"
    assert type(facts).from_document({**facts.to_document(), "new": 1}) == facts


async def test_cluster_facts_contain_both_ca_certificates_during_rotation() -> None:
    api = FakeApi()
    new = PEM.replace("canary", "newer")
    path = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt"
    api.answers["GET /version"] = only("token-1")
    api.put(path, {"data": {"ca.crt": PEM + new}})
    async with api.client(ManagedConnection(ID, Azure())) as client:
        facts = await read_facts(client)

    assert base64.b64decode(facts.ca_cert_data).decode() == PEM + new


async def test_dns_service_ip_is_read_from_service_or_derived_or_overridden() -> None:
    api = FakeApi()
    api.answers["GET /version"] = only(DIRECT.token)
    api.put("/api/v1/namespaces/default/services/kubernetes", {"spec": {"clusterIP": "10.96.0.1"}})
    async with api.client() as client:
        assert (await read_facts(client)).dns_service_ip == "10.96.0.10"
        api.put("/api/v1/namespaces/kube-system/services/kube-dns", {"spec": {"clusterIP": "10.96.0.53"}})
        assert (await read_facts(client)).dns_service_ip == "10.96.0.53"
        assert (await read_facts(client, FactOverrides(dns_service_ip="10.0.0.2"))).dns_service_ip == "10.0.0.2"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (httpx2.ConnectError("All connection attempts failed"), "cluster-unreachable"),
        (httpx2.ReadTimeout(""), "cluster-unreachable"),
        (httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] unable to get"), "cluster-untrusted"),
    ],
)
async def test_unreachable_or_untrusted_cluster_raises_retriable_error(error: Exception, name: str) -> None:
    def fail(request: httpx2.Request) -> httpx2.Response:
        raise error

    api = FakeApi()
    api.answers["GET /version"] = fail
    async with api.client() as client:
        with pytest.raises(ClusterError) as caught:
            await client.get("/version")

    assert (caught.value.name, caught.value.retryable) == (name, True)
    assert "https://api.example.com" in caught.value.message
    assert DIRECT.token not in str(caught.value)


async def test_closed_client_does_not_reconnect() -> None:
    client = FakeApi().client()
    await client.close()

    with pytest.raises(ClusterError, match="was closed"):
        await client.get("/version")


async def test_list_reads_all_pages() -> None:
    def page(request: httpx2.Request) -> httpx2.Response:
        more = request.url.params.get("continue")
        metadata = {"resourceVersion": "7"} | ({} if more else {"continue": "page-2"})
        return httpx2.Response(200, content=json.dumps({"items": [{"page": more}], "metadata": metadata}))

    api = FakeApi()
    api.answers["GET /api/v1/nodes"] = page
    async with api.client() as client:
        assert await client.list("/api/v1/nodes") == ([{"page": None}, {"page": "page-2"}], "7")


def test_cancellation_is_kept_when_the_request_is_done_at_the_same_time() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def run() -> bool:
        task = asyncio.ensure_future(client_module._in_time(work(), 60))
        for _ in range(20):
            await asyncio.sleep(0)
            if all(each.done() for each in asyncio.all_tasks() - {asyncio.current_task(), task}):
                break
        task.cancel()  # the work is done, and its caller has not run since
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(run())
