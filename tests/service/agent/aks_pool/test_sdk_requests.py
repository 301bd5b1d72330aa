"""Compares the requests of this agent about pools with those that the Azure SDK sends for the same operation: path,
API version, headers and conditions. Both are recorded by a small server in place of Azure Resource Manager.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core import MatchConditions
from azure.mgmt.containerservice import ContainerServiceClient
from azure.mgmt.containerservice.models import AgentPoolDeleteMachinesParameter, Machine

from aks_flex_lab import pools as lab_pools
from aks_flex_lab.arm.flex_pools import service as lab_service
from aks_flex_node.agent.aks_pool import pool_ids
from aks_flex_node.agent.aks_pool.machine_document import MachineSettings, parse_machine
from aks_flex_node.agent.aks_pool.pool_client import AksPoolClient
from aks_flex_node.agent.aks_pool.pool_ids import parse_pool_id
from aks_flex_node.agent.config_sources.pool_source import arm_client
from aks_flex_node.azure.arm import ArmClient
from tests.service.http_servers import Handler, listening
from tests.service.lab.pool_harness import TokenOf
from tests.service.lab.sdk_contract import sdk_api_version
from tests.unit.agent.config.builders import CLUSTER_ID, load_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair

POOL = parse_pool_id(f"{CLUSTER_ID}/agentPools/edge")
WHERE = (POOL.group, POOL.cluster, POOL.pool)
COMPARED = ("Accept", "Content-Type", "If-Match", "If-None-Match")
MACHINE = {"name": "m1", "properties": {"eTag": "e-1", "provisioningState": "Succeeded"}}
DATA = {
    "azure": {"bootstrapToken": {"token": "a"}},
    "components": {"kubernetes": "1.36.3"},
    "node": {"kubelet": {"clusterFQDN": "c.example", "caCertData": "Y2E="}},
}


@dataclass(frozen=True)
class SentRequest:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str | None]
    body: Any  # None for a Machine, whose body is compared with the SDK's model


@dataclass
class RecordedArm:
    """Azure Resource Manager, and what was requested of it."""

    url: str = ""
    ca: str = ""
    sent: list[SentRequest] = field(default_factory=list)

    def last_of(self, request: Callable[[], object]) -> SentRequest:
        self.sent.clear()
        request()
        return self.sent[-1]

    @property
    def sdk(self) -> Any:
        return ContainerServiceClient(
            TokenOf("token"),
            POOL.subscription,
            base_url=self.url,
            credential_scopes=[f"{self.url}/.default"],
            connection_verify=self.ca,
            retry_total=0,
        )

    @property
    def command(self) -> AksPoolClient:
        """The client of commands."""
        return AksPoolClient(ArmClient(TokenOf("token"), self.url, ca_file=self.ca), POOL)

    def poll(self, path: str) -> None:
        """Sends a request of the daemon."""
        ca = base64.b64encode(Path(self.ca).read_bytes()).decode()
        document = {"azure": {"resourceManager": self.url, "caCertData": ca, "managedIdentity": {}}}
        config = load_plain(json.dumps({"config": document})).config
        tokens: Any = type("Tokens", (), {"value": lambda *_: "token"})()
        client = arm_client(config, tokens)
        client.get(path)
        client.close()


@pytest.fixture
def arm(authority: CertificateAuthority, pair: CertificatePair) -> Iterator[RecordedArm]:
    recorded = RecordedArm(ca=str(authority.certificate))

    class Serve(Handler):
        def answer(self) -> None:
            parts = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = None if self.command == "PUT" or not text else json.loads(text)
            headers = {name: self.headers.get(name) for name in COMPARED}
            if headers["Accept"] == "*/*":  # of the SDK for an answer without a body
                headers["Accept"] = "application/json"
            recorded.sent.append(SentRequest(self.command, parts.path, parse_qs(parts.query), headers, body))
            is_data, is_list = parts.path.endswith("/listBootstrapData"), parts.path.endswith("/machines")
            content = json.dumps(DATA if is_data else {"value": []} if is_list else MACHINE).encode()
            self.send_response(202 if parts.path.endswith("/deleteMachines") else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = answer  # noqa: N815

    with listening(Serve, pair) as url:
        recorded.url = url
        yield recorded


def test_api_version_is_that_of_the_sdk() -> None:
    used = {pool_ids.API_VERSION, lab_service.API_VERSION, lab_pools.API_VERSION}
    assert used == {sdk_api_version()}


def test_reads_are_those_of_the_sdk(arm: RecordedArm) -> None:
    machines, path = arm.sdk.machines, POOL.machine_id("m1")
    expected = arm.last_of(lambda: machines.get(*WHERE, "m1"))
    assert arm.last_of(lambda: arm.command.find_machine("m1")) == expected
    assert arm.last_of(lambda: arm.poll(path)) == expected
    expected = arm.last_of(lambda: list(machines.list(*WHERE)))
    assert arm.last_of(lambda: arm.poll(f"{POOL}/machines")) == expected


def test_actions_are_those_of_the_sdk(arm: RecordedArm) -> None:
    actions = arm.sdk.agent_pools
    expected = arm.last_of(lambda: actions.list_bootstrap_data(*WHERE, {}))
    assert arm.last_of(arm.command.bootstrap_data) == expected
    names = AgentPoolDeleteMachinesParameter(machine_names=["m1"])
    expected = arm.last_of(lambda: actions.begin_delete_machines(*WHERE, names, polling=False))
    arm.last_of(lambda: arm.command.delete_machine("m1", lambda _: None))
    assert expected in arm.sent


@pytest.mark.parametrize("etag", ["", "e-1", '"e-1"', 'W/"e-1"'])
def test_condition_of_a_change_is_that_of_the_sdk(arm: RecordedArm, etag: str) -> None:
    condition = MatchConditions.IfNotModified if etag else MatchConditions.IfMissing
    put = arm.sdk.machines.begin_create_or_update
    expected = arm.last_of(
        lambda: put(*WHERE, "m1", Machine(), etag=etag or None, match_condition=condition, polling=False)
    )
    known = parse_machine({"name": "m1", "properties": {"eTag": etag}}) if etag else None
    settings = MachineSettings("1.36.3")
    assert arm.last_of(lambda: arm.command.put_machine("m1", settings, known, "host-1")) == expected
    assert expected.headers["If-Match" if etag else "If-None-Match"]
