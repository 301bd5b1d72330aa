"""Tests of cluster discovery from Azure."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.cluster import discovery
from aks_flex_node.agent.paths import CLUSTER_FACTS
from aks_flex_node.azure.arm import ArmClient, refused_error
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.host.actions import MakeDirectory, WriteFile
from tests.unit.agent.builders import config_of, empty_host
from tests.unit.agent.config.builders import CA, CLUSTER_ID, Settings

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig

LEFT_OUT = ("node.kubelet.serverURL", "node.kubelet.caCertData", "kubernetes.version", "azure.bootstrapToken.token")
NAMED: Settings = {"azure.targetCluster.resourceId": CLUSTER_ID, "azure.managedIdentity.clientId": "x"}
INCOMPLETE = config_of(NAMED, without=LEFT_OUT)
KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://c.example:443", "certificate-authority-data": CA}}],
    "users": [{"name": "admin", "user": {"token": "canary-of-an-admin"}}],
}


class Azure(ArmClient):
    def __init__(self, kubeconfig: Any = KUBECONFIG) -> None:
        self.value = base64.b64encode(json.dumps(kubeconfig).encode()).decode()

    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]:  # noqa: ARG002
        assert path == discovery.cluster_id(INCOMPLETE)
        network = {"dnsServiceIP": "10.0.0.10"}
        return {"properties": {"currentKubernetesVersion": "1.34.4", "networkProfile": network}}

    def post(self, path: str, api_version: str, body: Any = None) -> dict[str, Any]:  # noqa: ARG002
        assert path.endswith("/listClusterAdminCredential")
        return {"kubeconfigs": [{"name": "clusterAdmin", "value": self.value}]}


def test_discovery_stores_address_and_ca_without_the_credential() -> None:
    host = empty_host()
    assert discovery.needs_discovery(INCOMPLETE)
    host.apply(MakeDirectory(CLUSTER_FACTS.rpartition("/")[0]))
    discovery.FACTS_FILE.write(host, discovery.discover(INCOMPLETE, Azure()))
    assert b"canary" not in (host.read(CLUSTER_FACTS) or b"")
    assert host.mode_of(CLUSTER_FACTS) == 0o600
    complete = discovery.with_facts(INCOMPLETE, discovery.FACTS_FILE.read(host))
    assert not discovery.needs_discovery(complete)
    assert complete.node.kubelet.server_url == "https://c.example:443"
    assert (complete.kubernetes.version, complete.node.kubelet.dns_service_ip) == ("1.34.4", "10.0.0.10")


class Limited(Azure):
    """Refuses some of the two credentials."""

    def __init__(self, *refused: str, status: int = 403) -> None:
        super().__init__()
        self.refused, self.status = refused, status

    def post(self, path: str, api_version: str, body: Any = None) -> dict[str, Any]:
        which = path.rpartition("/")[2]
        if which in self.refused:
            raise refused_error(self.status, json.dumps({"error": {"code": "No", "message": f"No {which}."}}))
        return super().post(path.replace("listClusterUser", "listClusterAdmin"), api_version, body)


@pytest.mark.parametrize("status", [400, 403])
def test_discovery_uses_the_user_credential_without_the_admin_role(status: int) -> None:
    found = discovery.discover(INCOMPLETE, Limited("listClusterAdminCredential", status=status))
    assert found.server == "https://c.example:443"


def test_discovery_reports_the_missing_admin_role_if_both_are_refused() -> None:
    azure = Limited("listClusterAdminCredential", "listClusterUserCredential")
    with pytest.raises(FlexError, match="listClusterAdminCredential"):
        discovery.discover(INCOMPLETE, azure)


def test_configured_version_takes_precedence_over_discovered_version() -> None:
    config = config_of({**NAMED, "kubernetes.version": "1.33.13"}, without=LEFT_OUT)
    assert discovery.with_facts(config, discovery.discover(config, Azure())).kubernetes.version == "1.33.13"


def test_discovered_facts_of_another_cluster_are_not_used() -> None:
    found = discovery.discover(INCOMPLETE, Azure())
    other = config_of({**NAMED, "azure.targetCluster.resourceId": f"{CLUSTER_ID}2"}, without=LEFT_OUT)
    assert discovery.with_facts(other, found) == other


def test_discovery_is_not_needed_without_cluster_id_or_with_full_config() -> None:
    assert not discovery.needs_discovery(config_of(without=LEFT_OUT))
    assert not discovery.needs_discovery(config_of(NAMED))


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"cluster": 1}', b"\xff"])
def test_unreadable_stored_cluster_facts_are_ignored(text: bytes) -> None:
    host = empty_host()
    host.apply(MakeDirectory(CLUSTER_FACTS.rpartition("/")[0]))
    host.apply(WriteFile(CLUSTER_FACTS, text, 0o600))
    assert discovery.FACTS_FILE.read(host) is None


@pytest.mark.parametrize("kubeconfig", [{}, [], {"clusters": []}, {"clusters": [{"cluster": {"server": "x"}}]}])
def test_discovery_reports_a_credential_without_an_api_server(kubeconfig: Any) -> None:
    with pytest.raises(ClusterError, match="does not contain an API server"):
        discovery.discover(INCOMPLETE, Azure(kubeconfig))


OLD = discovery.ClusterFacts(CLUSTER_ID, "https://old.example:443", CA, "1.33.1")


def selected_server(
    config: NodeConfig, before: discovery.ClusterFacts | None, *, joined: bool, azure: Any = None
) -> str:
    """Returns the URL of the selected API server."""

    def ask() -> discovery.ClusterFacts:
        if azure is None:
            raise FlexError("arm-unreachable", "It cannot be reached.", "", retryable=True)
        return discovery.discover(config, azure)

    found, _ = discovery.complete_from_azure(config, before, ask, lambda _: None, joined=joined)
    return found.node.kubelet.server_url or ""


def test_unjoined_machine_repeats_discovery_or_uses_stored_facts() -> None:
    assert selected_server(INCOMPLETE, OLD, joined=False, azure=Azure()) == "https://c.example:443"
    assert selected_server(INCOMPLETE, OLD, joined=False) == "https://old.example:443"  # better than none
    with pytest.raises(FlexError, match="cannot be reached"):
        selected_server(INCOMPLETE, None, joined=False)


def test_joined_node_keeps_the_cluster_facts_it_joined_with() -> None:
    assert selected_server(INCOMPLETE, OLD, joined=True, azure=Azure()) == "https://old.example:443"


def test_complete_config_is_used_without_discovery() -> None:
    assert selected_server(config_of(NAMED), None, joined=False) == config_of(NAMED).node.kubelet.server_url


POOL = {"azure.targetCluster.resourceId": CLUSTER_ID, "azure.targetAgentPoolName": "edge"}
READ = ("node.kubelet.serverURL", "node.kubelet.caCertData", "kubernetes.version", "azure.bootstrapToken.token")


def test_pool_provides_all_that_a_join_needs() -> None:
    config = config_of({**POOL, "azure.managedIdentity": {}}, without=READ)
    discovery.check_join(config)
    request = f"POST {CLUSTER_ID}/agentPools/edge/listBootstrapData"
    assert discovery.describe_discovery(config).items() >= dict.fromkeys(READ, request).items()


def test_bootstrap_data_of_a_file_is_not_read_again_without_an_identity() -> None:
    config = config_of({**POOL, "node.kubelet.dnsServiceIP": "10.0.0.10"})
    assert not discovery.reads_pool(config)
    assert discovery.describe_discovery(config) == {}
