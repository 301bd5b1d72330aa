"""A hundred thousand hostile requests to a provider in a process of its own: no server error, no hang, no growth."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_node.api.contract import API_VERSION
from bench.rp_load.fleet import CLUSTER, body, fill, name_of
from bench.rp_load.service_process import OPERATOR_LIMITS, RunningService, running_service, sqlite
from tests.fuzz.hostile_clients import HostileClients, RequestGenerator
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.tenants import running_tenant

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 100_000
CLIENTS = 12
SEED = 21
SETTLED = REQUESTS // 4  # caches are full by then
GROWTH_MEBIBYTES = 16.0
UNREACHABLE = b"The service is not connected to"  # the cluster of the nodes does not exist


def operations() -> list[tuple[str, str]]:
    nodes, version = f"{CLUSTER}/flexNodeConfig", f"api-version={API_VERSION}"
    node, other = f"{nodes}/{name_of(1)}", f"{nodes}/hostile"
    actions = ("regenerateToken", "reportStatus", "listCredentials", "replaceMachine")
    pages = ("/", "/audit", "/healthz", "/metrics", "/openapi.json", "/configs/none", "/ui/sign-in", "/ui/create")
    own_page = f"/ui/nodes/{CLUSTER.subscription}/{CLUSTER.group}/{CLUSTER.name}/{name_of(1)}"
    return [
        *(("GET", f"{each}?{version}") for each in (nodes, node, other)),
        *((method, f"{each}?{version}") for each in (node, other) for method in ("PUT", "PUT", "PATCH", "DELETE")),
        *(("POST", f"{node}/{action}?{version}") for action in actions),
        *(("GET", each) for each in (*pages, own_page)),
        *(("POST", each) for each in ("/ui/sign-in/key", "/ui/create", f"{own_page}/edit")),
    ]


@pytest.mark.timeout(3600)
def test_hostile_requests_cause_no_error_hang_or_growth(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    authority.ensure()
    asyncio.run(fill(sqlite(tmp_path / "state"), range(50)))
    with (
        running_tenant(authority) as tenant,
        running_service(tmp_path / "state", tenant, limits=OPERATOR_LIMITS) as service,
    ):
        known = (f"Bearer {service.admin}", f"Bearer {tenant.issuer.sign()}", "Bearer x.y.z", "Basic YTpi", "")
        requests = RequestGenerator(operations(), known, [body(1), token(maxPods=20), principal()])
        clients = HostileClients("127.0.0.1", service.server.port, _trust(service), requests, UNREACHABLE)
        memory: dict[int, float] = {}

        def measure(sent: int) -> None:
            if sent % 5000 == 0:
                memory[sent] = service.mebibytes
                print(f"{sent} requests, {memory[sent]:.1f} MiB, {dict(clients.statuses)}", flush=True)

        asyncio.run(clients.run(REQUESTS, CLIENTS, SEED, measure))

        assert clients.failures == []
        assert clients.sent >= REQUESTS
        assert {200, 400, 401, 404} <= set(clients.statuses)
        assert service.process.alive
        assert memory[REQUESTS] - memory[SETTLED] < GROWTH_MEBIBYTES


def _trust(service: RunningService) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(service.state / "tls" / "ca.crt"))
