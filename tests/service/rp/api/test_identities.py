"""Tests of nodes that join with an Azure identity: access is granted on their report and revoked on deletion."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.delivery.config_url import FetchedBundle
from aks_flex_rp.join_state import KUBELET_ROLE, AccessMethod, ClusterAccess
from aks_flex_rp.nodes.machine_claims import FetchingClient
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import SECRET, principal
from tests.service.rp.api.fake_clusters import PLANT, SUBSCRIPTION, FakeClusters, known_clusters
from tests.service.rp.api.keyed_nodes import HEARD_LATE, READY, NodeWithKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running, RunService
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

OID = callers.NODE[:-1] + "0"  # derived from the application ID, as the tenant does
EXEC, CERTIFICATE = ClusterAccess(OID, AccessMethod.EXEC), ClusterAccess(OID, AccessMethod.CERTIFICATE)
BEGINS = {"joinState": "ConfigFetched"}
MACHINES = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/EDGE/providers/Microsoft.HybridCompute/machines"


def body(way: str = "exec", **more: Any) -> dict[str, Any]:
    return principal(kubernetesAuth={"useAzureAuth": True, "method": way}, **more)


class Joining(NodeWithKey):
    """A node, its identity, and its access in the cluster."""

    def __init__(self, service: Running, tenant: Tenant, name: str, way: str = "exec") -> None:
        super().__init__(service, name, body(way))
        self.node = self.admin.by(tenant, callers.NODE)

    def report(self, document: dict[str, Any]) -> Answer:
        return self.node.report(self.name, document)

    def begin(self) -> Answer:
        """Reports the join, as the agent does with its identity."""
        return self.report(BEGINS)

    def poll(self, **headers: str) -> Answer:
        return self.node.get(self.name, **headers)

    def put(self, body: dict[str, Any]) -> Answer:
        return self.admin.put(self.name, body)

    @property
    def given(self) -> ClusterAccess | None:
        return self.service.clusters.given.get(self.name)

    @property
    def state(self) -> str:
        return str(self.status["joinState"])

    def sees(self, what: str, *words: Any) -> Any:
        return self.service.call(getattr(self.service.tracker, what)(PLANT.key, self.name, *words))


@pytest.fixture
def joining(service: Running, tenant: Tenant, name: str) -> Joining:
    return Joining(service, tenant, name)


@pytest.fixture
def certified(service: Running, tenant: Tenant, name: str) -> Joining:
    return Joining(service, tenant, name, "certificate")


def test_node_gets_cluster_access_when_it_reports_with_its_identity(joining: Joining) -> None:
    assert joining.given is None

    assert joining.begin().status == 200

    assert joining.given == EXEC
    assert joining.state == "BootstrapAttempted"
    assert joining.admin.fetch(joining.url).status == 404  # the node has fetched its content
    [event] = joining.events("access.granted")
    assert event["who"] == f"app {callers.NODE[:8]}"
    assert event["detail"] == {"identity": OID, "role": KUBELET_ROLE}
    joining.sees("on_node_observed", HEARD_LATE)
    assert joining.state == "Joined"


def test_cluster_access_is_restored_on_join_report_and_audited_once(joining: Joining) -> None:
    for _ in range(2):
        joining.begin()
    joining.service.clusters.given.clear()  # removed by a user with kubectl
    joining.report({"agentVersion": "1.0"})
    assert joining.given is None

    joining.begin()

    assert joining.given == EXEC
    assert len(joining.events("access.granted")) == 1


def test_report_is_stored_when_cluster_refuses_the_grant(joining: Joining) -> None:
    with joining.service.clusters.being_away():
        assert joining.begin().status != 200, "a join needs its access"
        assert joining.report({"agentVersion": "7.0"}).status == 200
    assert joining.given is None
    assert joining.status["agentVersion"] == "7.0"


def test_node_gets_certificate_by_its_identity_more_than_once(certified: Joining) -> None:
    certified.begin()
    assert certified.given == CERTIFICATE
    assert certified.state == "ConfigFetched"

    assert certified.sees("on_identity_csr", OID, "csr-1")
    assert certified.state == "BootstrapAttempted"
    assert certified.admin.fetch(certified.url).status == 404
    certified.sees("on_identity_certificate", "csr-1")
    certified.sees("on_node_observed", READY)
    assert certified.state == "Joined"

    assert certified.sees("on_identity_csr", OID, "csr-2")
    assert certified.state == "BootstrapAttempted"
    assert not certified.sees("on_identity_csr", callers.STRANGER, "csr-3")
    assert [each["detail"]["csr"] for each in certified.events("identity.used")] == ["csr-2", "csr-1"]
    assert len(certified.events("certificate.issued")) == 1


def test_first_poll_grants_cluster_access_and_next_poll_uses_cache(joining: Joining) -> None:
    first = joining.poll()
    assert joining.given == EXEC
    etag = first.headers["etag"]
    joining.service.clusters.given.clear()

    assert joining.poll(if_none_match=etag).status == 304
    assert joining.given is None  # the response came from the cache


def test_poll_with_current_etag_grants_cluster_access(joining: Joining) -> None:
    etag = joining.admin.get(joining.name).headers["etag"]

    assert joining.poll(if_none_match=etag).status == 304
    assert joining.given == EXEC


@pytest.mark.parametrize("caller", [callers.OWNER, callers.CONTRIBUTOR, callers.READER, callers.OTHER_NODE])
def test_other_callers_do_not_trigger_cluster_access(joining: Joining, tenant: Tenant, caller: str) -> None:
    somebody = joining.admin.as_somebody(tenant.application("00000000-0000-4000-8000-000000000000", oid=caller))
    for api in (somebody, joining.admin):
        api.report(joining.name, BEGINS)
        api.get(joining.name)
        api.regenerate(joining.name)

    assert joining.given is None


def test_user_with_object_id_of_node_gets_no_cluster_access(service: Running, tenant: Tenant, name: str) -> None:
    auth = {"method": "managedIdentity", "managedIdentity": {"principalId": callers.STRANGER}}
    made = {"azureAuth": auth, "kubernetesAuth": {"useAzureAuth": True}}
    service.admin.put(name, {"properties": made})
    person = tenant.application(
        callers.OTHER_NODE, oid=callers.STRANGER, sub="x", idtyp="user", upn="ann@example.com"
    )

    assert service.admin.as_somebody(person).report(name, BEGINS).status == 200
    assert name not in service.clusters.given


def test_node_joining_by_token_gets_no_cluster_access_for_identity(
    service: Running, tenant: Tenant, name: str
) -> None:
    service.admin.put(name, principal())

    service.admin.by(tenant, callers.NODE).report(name, BEGINS)

    assert name not in service.clusters.given


def test_arc_machine_is_recognized_by_name_and_gets_cluster_access(
    service: Running, tenant: Tenant, name: str
) -> None:
    made = {"continuousMonitoring": True, "azureAuth": {"method": "arc"}, "kubernetesAuth": {"useAzureAuth": True}}
    service.admin.put(name, {"properties": made})

    def machine(called: str, oid: str) -> Api:
        who = tenant.application(callers.STRANGER, oid=oid, xms_mirid=f"{MACHINES}/{called}")
        return service.admin.as_somebody(who)

    machine(f"{name}-2", callers.STRANGER).report(name, BEGINS).assert_refused(403, "AuthorizationFailed")
    assert machine(name.upper(), callers.STRANGER).report(name, BEGINS).status == 200
    assert service.clusters.given[name] == ClusterAccess(callers.STRANGER, AccessMethod.CERTIFICATE)

    # After a new registration with Arc, the cluster sees another identity.
    assert machine(name, callers.OTHER_NODE).report(name, BEGINS).status == 200
    assert service.clusters.given[name] == ClusterAccess(callers.OTHER_NODE, AccessMethod.CERTIFICATE)


def test_join_report_returns_503_and_stores_nothing_if_cluster_is_down(
    run_service: RunService, tenant: Tenant, ca_cert_data: str, name: str
) -> None:
    clusters = FakeClusters.of(known_clusters(ca_cert_data))
    with run_service(clusters) as service:
        joining = Joining(service, tenant, name)
        clusters.away = True

        refused = joining.report({**BEGINS, "agentVersion": "1.0"})

        refused.assert_refused(503, "ServiceUnavailable")
        assert refused.headers["retry-after"]
        found = joining.status
        assert (found["joinState"], "agentVersion" in found) == ("Created", False)
        assert joining.events("access.granted") == []
        assert joining.poll().status == 200  # the GET does not need the cluster

        clusters.away = False
        assert joining.begin().status == 200
        clusters.away = True
        cleanup = joining.admin.delete(name).json["cleanup"]
        assert cleanup["clusterAccessRevoked"] is False


@dataclass
class ConcurrentChangeClusters(FakeClusters):
    """A cluster that changes the node while access is granted."""

    happens: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    async def grant(self, key: str, node: str, access: ClusterAccess) -> None:
        await super().grant(key, node, access)
        if self.happens:
            await self.happens.pop()()


@pytest.fixture
def racing(run_service: RunService, tenant: Tenant, ca_cert_data: str, name: str) -> Iterator[Joining]:
    clusters = ConcurrentChangeClusters({each.id.key: each for each in known_clusters(ca_cert_data)})
    with run_service(clusters) as service:
        yield Joining(service, tenant, name)


def happens(racing: Joining, work: Callable[[], Awaitable[object]]) -> None:
    clusters = racing.service.clusters
    assert isinstance(clusters, ConcurrentChangeClusters)
    clusters.happens.append(work)


def test_node_deleted_during_access_grant_has_no_access(racing: Joining) -> None:
    happens(racing, lambda: racing.service.store.delete_node(PLANT.key, racing.name, None))

    racing.begin().assert_refused(404, "ResourceNotFound")
    assert racing.given is None


def test_node_whose_identity_changes_during_access_grant_has_no_access(racing: Joining) -> None:
    store = racing.service.store

    async def change() -> None:
        found = await store.node(PLANT.key, racing.name)
        assert found
        await store.put_node(replace(found, identity=callers.STRANGER), found.etag)

    happens(racing, change)
    racing.begin()

    assert racing.given is None
    assert racing.sees("granted_access") is None


def test_node_with_other_change_during_access_grant_gets_access(racing: Joining) -> None:
    service = racing.service.service

    async def fetch() -> None:
        found = await service.store.node(PLANT.key, racing.name)
        assert found
        bundle = FetchedBundle(PLANT.key, racing.name, b"", found.join.url_expires or 0.0)
        client = FetchingClient(None, "thumbprint", "192.0.2.1", "request")
        await service.join_tracker.on_config_fetched(bundle, client)

    happens(racing, fetch)

    assert racing.begin().status == 200
    assert racing.given == racing.sees("granted_access") == EXEC
    assert racing.state == "BootstrapAttempted"


def test_cluster_access_is_withdrawn_when_node_is_deleted(joining: Joining) -> None:
    joining.begin()

    gone = joining.admin.delete(joining.name)

    assert gone.json["cleanup"]["clusterAccessRevoked"] is True
    assert joining.given is None
    [event] = joining.events("access.withdrawn")
    assert event["detail"] == {"identity": OID}


def test_cluster_access_is_withdrawn_when_node_identity_changes(joining: Joining) -> None:
    joining.begin()

    other = principal(callers.OTHER_NODE, kubernetesAuth={"useAzureAuth": True})
    assert joining.put(other).status == 200

    assert joining.given is None
    assert joining.sees("granted_access") is None


def test_cluster_access_is_withdrawn_after_switch_to_bootstrap_token(joining: Joining) -> None:
    joining.begin()
    wanted = joining.put(principal(kubernetesAuth={"method": "bootstrapToken"}))
    joining.poll(if_none_match=wanted.headers["etag"])
    assert joining.given == EXEC

    for _ in range(2):  # the second report finds the state of the first
        joining.report({"appliedConfigVersion": wanted.properties["configVersion"]})

    assert joining.given is None
    assert joining.sees("granted_access") is None
    [event] = joining.events("access.withdrawn")
    assert event["detail"] == {"identity": OID}


def test_cluster_access_changes_only_after_node_applies_new_auth_method(joining: Joining) -> None:
    joining.begin()
    wanted = joining.put(body("certificate"))
    etag = wanted.headers["etag"]
    joining.poll(if_none_match=etag)
    assert joining.given == EXEC

    joining.report({"appliedConfigVersion": wanted.properties["configVersion"]})
    joining.poll(if_none_match=etag)

    assert joining.given == CERTIFICATE
    assert [each["detail"]["role"] for each in joining.events("access.granted")] == [
        "system:node-bootstrapper",
        KUBELET_ROLE,
    ]


def test_new_config_url_has_no_bootstrap_token_and_grants_cluster_access(joining: Joining) -> None:
    made = joining.node.regenerate(joining.name)

    bundle = joining.admin.fetch(made.json["configUrl"]).json["config"]
    assert "bootstrapToken" not in bundle["azure"]
    assert bundle["node"]["kubelet"]["auth"] == "exec"
    assert bundle["provider"]["url"]
    assert joining.given == EXEC


def test_concurrent_join_reports_grant_cluster_access_once(joining: Joining) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: joining.begin().status, range(8)))

    assert set(answers) == {200}
    assert len(joining.events("access.granted")) == 1


def test_service_principal_with_certificate_has_no_stored_secret(service: Running, tenant: Tenant, name: str) -> None:
    service.admin.put(name, principal())
    made = principal(secret=None)
    made["properties"]["azureAuth"]["servicePrincipal"]["certificateOnMachine"] = True
    url = service.admin.url_of(name, made)

    node = service.admin.by(tenant, callers.NODE)
    assert SECRET not in json.dumps(node.credentials(name).json)
    assert "clientSecret" not in node.credentials(name).json["servicePrincipal"]
    bundle = node.fetch(url).json["config"]["azure"]["servicePrincipal"]
    assert bundle["clientCertificateFile"] == "/etc/aks-flex-node/client.pem"
    assert "clientSecret" not in bundle
    # The stored secret was deleted: a switch back needs a new one.
    service.admin.put(name, principal(secret=None)).assert_refused(400, "InvalidRequestContent")


def test_exec_is_refused_unless_settings_allow_it(run_service: RunService, tmp_path: Path, name: str) -> None:
    """A contributor has the own application bound as a kubelet, outside the cluster's restrictions for nodes."""
    room = tmp_path / "state"
    with run_service(room=room, nodes={"allow_exec": True}) as allowing:
        assert allowing.admin.put(f"{name}-old", body("exec")).status == 201
    with run_service(room=room, nodes={}) as service:
        refused = service.admin.put(name, body("exec"))
        assert refused.status == 400
        assert "This service does not allow exec" in refused.text
        assert service.admin.put(f"{name}-old", body("exec")).status == 200  # an existing one keeps working
