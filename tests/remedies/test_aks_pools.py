"""Follows the remedies of errors of flex node pools, with the lab's Azure and the real az."""

from __future__ import annotations

import base64
import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import jwt
import pytest
from azure.mgmt.containerservice.models import AgentPool
from azure.mgmt.containerservice.models import AgentPoolManagedClusterAgentPoolProfileProperties as PoolProperties
from msgspec import structs

from aks_flex_node.agent.aks_pool.pool_client import AksPoolClient, open_pool
from aks_flex_node.agent.aks_pool.pool_ids import PoolId, parse_pool_id
from aks_flex_node.agent.aks_pool.registration import MachineRegistration
from tests.hosts.recorded import RecordedHost
from tests.remedies.azure_harness import config_of, error_of, owners_az, running_azure
from tests.remedies.catalogue import advice, command
from tests.service.agent.aks_pool.test_pool_client import (
    CONTRIBUTOR,
    SETTINGS,
    client,
    pool_of,
    signed_in,
)
from tests.service.agent.aks_pool.test_pool_join import complete, selection
from tests.service.http_servers import Handler, listening
from tests.service.lab.kubernetes_harness import running_kubernetes
from tests.service.lab.pool_harness import GROUP, QUICK, register_cluster
from tests.unit.agent.aks_pool.test_bootstrap_data import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_node.agent.config.models import NodeConfig
    from tests.az_extension.warm_az import WarmAz
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.lab.pool_harness import Aks

FLEX = "az aks nodepool add --vm-set-type FlexNodes"


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cloud, CertificateAuthority]]:
    with running_azure(tmp_path_factory.mktemp("azure")) as azure:
        yield azure


@pytest.fixture(scope="module")
def az(azure: tuple[Cloud, CertificateAuthority], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmAz]:
    with owners_az(azure[0], tmp_path_factory.mktemp("az")) as az:
        yield az


@pytest.fixture(scope="module")
def aks(azure: tuple[Cloud, CertificateAuthority], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aks]:
    cloud, authority = azure
    with running_kubernetes(authority, tmp_path_factory.mktemp("aks")) as (kubernetes, kubeconfig):
        aks = register_cluster(cloud, kubernetes, kubeconfig, "joined")
        aks.store.set_timings(structs.replace(QUICK, retry_after=1))  # without Retry-After, az waits for 30 seconds
        add_pool(aks, "edge")
        yield aks


def add_pool(aks: Aks, name: str) -> None:
    """Creates a flex node pool. The released az does not know this kind yet, so the SDK does what it would do."""
    settings = PoolProperties(type_properties_type="FlexNodes", mode="User", orchestrator_version="1.35.4")
    aks.owner.agent_pools.begin_create_or_update(GROUP, aks.name, name, AgentPool(properties=settings)).result()


def run_printed(az: WarmAz, hint: str, start: str) -> None:
    """Runs the command that a hint contains."""
    words = shlex.split(hint.partition(f"`{start}")[2].partition("`")[0])
    assert words, hint
    az.run(*start.split()[1:], *words)


def read_data(aks: Aks, role: str = CONTRIBUTOR, pool: str = "edge", **azure: Any) -> None:
    """Requests the bootstrap data of a pool as a new identity with a role at the cluster."""
    with open_pool(signed_in(aks, role, aks.id, **azure), pool_of(aks, pool)) as opened:
        assert opened.bootstrap_data().token


@pytest.mark.remedy("aks-pool-id-invalid")
def test_complete_pool_id_is_accepted(aks: Aks, az: WarmAz, tmp_path: Path) -> None:
    def join(pool: str) -> NodeConfig:
        config: NodeConfig = complete(replace(selection(aks, tmp_path), pool=parse_pool_id(pool)))[0].config
        return config

    assert error_of(lambda: join(aks.id)).name == "aks-pool-id-invalid"
    advice("aks-pool-id-invalid", "Run the command again with the complete ID")
    named = ("--resource-group", GROUP, "--cluster-name", aks.name, "--name", "edge")
    printed = az.run("aks", "nodepool", "show", *named, "--query", "id", "--output", "tsv").out.strip()
    assert join(printed).azure.target_agent_pool_name == "edge"


class PortalHandler(Handler):
    """Answers instead of Azure Resource Manager."""

    body: bytes

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST = answer  # noqa: N815 - http.server's names


@pytest.mark.parametrize(
    ("name", "body", "act"),
    [
        pytest.param(
            "aks-pool-data-invalid",
            b"<html>Sign in</html>",
            AksPoolClient.bootstrap_data,
            marks=pytest.mark.remedy("aks-pool-data-invalid"),
        ),
        pytest.param(
            "machine-document-invalid",
            b'{"signIn": "here"}',
            lambda opened: opened.find_machine("m1"),
            marks=pytest.mark.remedy("machine-document-invalid"),
        ),
    ],
)
def test_corrected_resource_manager_answers(
    azure: tuple[Cloud, CertificateAuthority],
    aks: Aks,
    name: str,
    body: bytes,
    act: Callable[[AksPoolClient], object],
) -> None:
    def ask(**azure: str) -> None:
        with open_pool(signed_in(aks, CONTRIBUTOR, aks.id, **azure), pool_of(aks)) as opened:
            act(opened)

    pair = azure[1].issue("localhost", "localhost", names=("localhost",))
    with listening(type("Portal", (PortalHandler,), {"body": body}), pair) as portal:
        assert error_of(lambda: ask(resourceManager=portal)).name == name
    advice(name, "Correct the proxy or `azure.resourceManager`")
    ask(resourceManager=aks.cloud.url)


@pytest.mark.remedy("aks-pool-not-found", "aks-pool-request-invalid")
@pytest.mark.parametrize(("name", "pool"), [("aks-pool-not-found", "absent"), ("aks-pool-request-invalid", "system")])
def test_existing_flex_pool_is_used(aks: Aks, az: WarmAz, name: str, pool: str) -> None:
    assert error_of(lambda: read_data(aks, pool=pool)).name == name
    advice(name, "Use an ID that the command prints." if pool == "absent" else "Use a flex node pool.")
    listed = az("aks", "nodepool", "list", "--resource-group", GROUP, "--cluster-name", aks.name, "--query", "[].id")
    assert str(pool_of(aks)).lower() in [each.lower() for each in listed]
    read_data(aks, pool="edge")
    assert command(name, "az aks nodepool add") == FLEX.split()
    add_pool(aks, f"new{len(pool)}")
    read_data(aks, pool=f"new{len(pool)}")


@pytest.mark.remedy("aks-pool-role-missing")
def test_printed_role_assignment_is_run_by_an_owner(aks: Aks, az: WarmAz) -> None:
    with open_pool(signed_in(aks, ""), pool_of(aks)) as opened:
        refused = error_of(opened.bootstrap_data)
        assert refused.name == "aks-pool-role-missing"
        start = " ".join(command("aks-pool-role-missing", "az role assignment create"))
        run_printed(az, refused.hint, start)
        assert opened.bootstrap_data().token


class TenantHandler(Handler):
    """Entra ID with any tenant, and Azure Resource Manager with a subscription that trusts one of them."""

    trusted: str
    url: list[str]

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        base = f"{self.url[0]}/{self.path.split('/')[1]}"
        endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
        self.send(200, {"issuer": base, **{key: f"{base}/oauth2/v2.0/{end}" for key, end in endpoints.items()}})

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.path.endswith("/token"):
            assert parse_qs(body)["client_secret"] == ["right"]
            token = jwt.encode({"tid": self.path.split("/")[1]}, "x" * 32)
            self.send(200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"})
            return
        token = self.headers["Authorization"].removeprefix("Bearer ")
        if jwt.decode(token, options={"verify_signature": False})["tid"] == self.trusted:
            self.send(200, DATA)
        else:
            error = {"code": "InvalidAuthenticationTokenTenant", "message": "The token is from the wrong issuer."}
            self.send(401, {"error": error})

    def send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.remedy("aks-pool-wrong-tenant")
@pytest.mark.parametrize("setting", ["azure.tenantId", "azure.servicePrincipal.tenantId"])
def test_tenant_of_the_subscription_is_set(azure: tuple[Cloud, CertificateAuthority], setting: str) -> None:
    cloud, authority = azure
    url = list[str]()
    handler = type("Tenants", (TenantHandler,), {"trusted": "tenant-2", "url": url})
    pool = PoolId("sub-1", "group-1", "cluster-1", "edge")

    def ask(tenant: str, **principal: str) -> None:
        ca = base64.b64encode(Path(cloud.ca).read_bytes()).decode()
        own = {"clientId": "app-1", "clientSecret": "right", **principal}
        places = {"resourceManager": url[0], "authorityHost": url[0], "caCertData": ca}
        with open_pool(config_of(cloud, tenantId=tenant, servicePrincipal=own, **places), pool) as opened:
            assert opened.bootstrap_data().token

    with listening(handler, authority.issue("localhost", "localhost", names=("localhost",))) as running:
        url.append(running)
        assert error_of(lambda: ask("tenant-1")).name == "aks-pool-wrong-tenant"
        advice("aks-pool-wrong-tenant", f"`{setting}`")
        if setting == "azure.tenantId":
            ask("tenant-2")
        else:
            ask("tenant-1", tenantId="tenant-2")


def registration(opened: AksPoolClient, host: RecordedHost, name: str) -> MachineRegistration:
    return MachineRegistration(lambda: opened, host, opened.pool, name, SETTINGS, lambda _: None)


@pytest.fixture
def host() -> RecordedHost:
    return RecordedHost({"/etc/machine-id": "0" * 32})


@pytest.mark.remedy("machine-busy")
def test_finished_machine_is_registered(aks: Aks, host: RecordedHost) -> None:
    with client(aks) as opened:
        _, operation = opened.put_machine("busy", replace(SETTINGS, max_pods=50), None, "")
        assert operation
        opened.wait("busy", operation, lambda _: None)
        aks.store.update(lambda state: with_machine_state(state, "busy", "Updating"))
        busy = registration(opened, host, "busy")
        busy.sleep, times = lambda _: None, itertools.count(0, 200)  # the time limit is reached at once
        busy.clock = lambda: float(next(times))
        assert error_of(busy.start).name == "machine-busy"
        advice("machine-busy", "Run the same command again in a few minutes.")
        aks.store.update(lambda state: with_machine_state(state, "busy", "Succeeded"))
        again = registration(opened, host, "busy")
        again.start()
        assert again.finish()


def with_machine_state(state: Any, name: str, provisioning: str) -> Any:
    (machine,) = [each for each in state.machines.values() if each.name == name]
    return state.with_machine(structs.replace(machine, state=provisioning))


@pytest.mark.remedy("machine-name-invalid")
def test_machine_with_another_name_is_accepted(aks: Aks, tmp_path: Path) -> None:
    chosen = selection(aks, tmp_path, node={"name": "edge-2.site.example"})
    assert error_of(lambda: complete(chosen)).name == "machine-name-invalid"
    option, value = command("machine-name-invalid", "--set node.name")
    assert option == "--set"
    loaded, _ = complete(replace(chosen, sets=(value,)))
    assert loaded.config.node.name == "edge-2"


@pytest.mark.remedy("machine-on-another-host")
@pytest.mark.parametrize("way", ["Set another `node.name`.", "delete the Machine with the command in the message"])
def test_machine_of_another_host_is_left_or_deleted(aks: Aks, az: WarmAz, tmp_path: Path, way: str) -> None:
    with client(aks) as opened:
        if opened.find_machine("m1") is None:
            _, operation = opened.put_machine("m1", SETTINGS, None, "another-host")
            assert operation
            opened.wait("m1", operation, lambda _: None)
    refused = error_of(lambda: complete(selection(aks, tmp_path, node={"name": "m1"})))
    assert refused.name == "machine-on-another-host"
    advice("machine-on-another-host", way)
    if "delete" in way:
        run_printed(az, refused.hint, "az aks nodepool delete-machines")
    name = "m1" if "delete" in way else "m2"
    assert complete(selection(aks, tmp_path, node={"name": name}))[0].config.node.name == name


@pytest.mark.remedy("machine-registration-failed")
def test_failed_machine_is_deleted_and_registered(aks: Aks, az: WarmAz, host: RecordedHost) -> None:
    """AKS cannot reach the API server of its cluster."""
    aks.kubernetes.add_node("m3", "1.35.4")
    works = aks.kubernetes.answer
    aks.kubernetes.answer = lambda *_: (500, {"kind": "Status", "message": "no quota"})  # type: ignore[method-assign]
    try:
        with client(aks) as opened:
            failing = registration(opened, host, "m3")
            failing.start()
            failed = error_of(failing.finish)
    finally:
        aks.kubernetes.answer = works  # type: ignore[method-assign]
    assert failed.name == "machine-registration-failed"
    advice("machine-registration-failed", "Correct the cause. Delete the Machine with the command in the message")
    run_printed(az, failed.hint, "az aks nodepool delete-machines")
    with client(aks) as opened:
        assert opened.find_machine("m3") is None
        again = registration(opened, host, "m3")
        again.start()
        assert again.finish()
