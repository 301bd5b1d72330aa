"""Follows the remedies of errors of a node that joins with its Azure identity.

The API server and the kubelet are simulated: the kubelet writes the journal of a real one.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from aks_flex_node.agent.bootstrap.sources.source import FromLocalFile
from aks_flex_node.agent.cluster.client import ApiStatusError
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.context import ConfigSelection
from aks_flex_node.agent.machine import Machine
from aks_flex_node.agent.progress import ProgressReporter
from tests.remedies.azure_harness import by_secret, error_of, running_azure
from tests.remedies.catalogue import advice, command
from tests.service.agent.daemon.harness import PROGRAM
from tests.service.agent.identity.test_credentials import bundle
from tests.service.http_servers import Handler, listening
from tests.service.lab.cloud_harness import CLUSTER
from tests.unit.agent.builders import empty_host, engine_on
from tests.unit.agent.cluster.test_diagnosis import FORBIDDEN, OID, REGISTER
from tests.unit.agent.cluster.test_readiness import Scene
from tests.unit.agent.config.builders import CA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.lab.cloud_harness import Cloud

ROLES = {"exec": "system:node", "certificate": "system:node-bootstrapper"}


@dataclass
class FakeCluster:
    """A cluster that authenticates Azure identities of one tenant; none without a tenant."""

    tenant: str = ""
    bindings: set[tuple[str, str]] = field(default_factory=set)  # role and user

    def kubectl(self, *words: str) -> None:
        assert words[:3] == ("kubectl", "create", "clusterrolebinding")
        options = dict(word.removeprefix("--").split("=", 1) for word in words[4:])
        self.bindings.add((options["clusterrole"], options["user"]))

    def join(self, auth: str, tenant: str) -> Scene:
        """Returns a join with what the kubelet writes to its journal."""
        values: dict[str, object] = {
            "azure.managedIdentity.clientId": "x",
            "azure.tenantId": tenant,
            "node.kubelet.auth": auth,
        }
        journal, answers = "", list[Any]()
        if auth != "bootstrapToken" and tenant != self.tenant:
            journal, answers = f'{REGISTER} err="Unauthorized"', [ApiStatusError(401, "Unauthorized", "")]
        elif auth != "bootstrapToken" and (ROLES[auth], OID) not in self.bindings:
            journal, answers = FORBIDDEN, [ApiStatusError(403, "Forbidden", "")]
        return Scene(*answers, words=journal, values=values, certified=not journal)


@pytest.mark.remedy("azure-identity-forbidden")
@pytest.mark.parametrize("auth", ["exec", "certificate"])
def test_role_binding_lets_the_identity_join(auth: str) -> None:
    cluster = FakeCluster("tenant-1")
    refused = cluster.join(auth, "tenant-1").fails()
    assert refused.name == "azure-identity-forbidden"
    assert OID in refused.message
    advice("azure-identity-forbidden", f"`{ROLES[auth]}`")
    words = command("azure-identity-forbidden", "kubectl create", NAME="edge", ROLE=ROLES[auth], **{"OBJECT-ID": OID})
    cluster.kubectl(*words)
    printed = shlex.split(refused.hint.partition("`kubectl")[2].partition("`")[0])
    assert printed[3:] == words[4:], "the hint has the same command"
    cluster.join(auth, "tenant-1").prove()


@pytest.mark.remedy("azure-identity-rejected")
@pytest.mark.parametrize("way", ["Correct `azure.tenantId`", "`az aks update --enable-aad`", "bootstrap token"])
def test_identity_of_the_tenant_of_the_cluster_joins(way: str) -> None:
    bound = {("system:node", OID)}
    cluster = FakeCluster("" if "--enable-aad" in way else "tenant-1", bound)
    assert cluster.join("exec", "tenant-2").fails().name == "azure-identity-rejected"
    advice("azure-identity-rejected", way)
    if "--enable-aad" in way:
        assert command("azure-identity-rejected", "az aks update") == ["az", "aks", "update", "--enable-aad"]
        cluster.tenant = "tenant-2"
    corrected = "tenant-1" if "tenantId" in way else "tenant-2"
    cluster.join("bootstrapToken" if way == "bootstrap token" else "exec", corrected).prove()


class ProviderHandler(Handler):
    """A resource provider that accepts the identity of the node resource."""

    resource: dict[str, str]

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        self.rfile.read(int(self.headers["Content-Length"]))
        token = self.headers["Authorization"].removeprefix("Bearer ")
        who = jwt.decode(token, options={"verify_signature": False})["oid"]
        allowed = who == self.resource["azureAuth"]
        error = {"error": {"code": "AuthorizationFailed", "message": f"{who} is not the identity of this node."}}
        body = json.dumps({"joinState": "ConfigFetched"} if allowed else error).encode()
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cloud, CertificateAuthority]]:
    with running_azure(tmp_path_factory.mktemp("azure")) as azure:
        yield azure


def announce(cloud: Cloud, provider: str, principal: EntraPrincipal) -> None:
    """Announces the node to the resource provider, as a join does."""
    document: dict[str, Any] = json.loads(
        bundle(cloud, servicePrincipal=by_secret(principal), targetCluster={"resourceId": CLUSTER})
    )
    kubelet = {"auth": "exec", "serverURL": "https://cluster.example", "caCertData": CA}
    document |= {"node": {"name": "edge-1", "kubelet": kubelet}, "kubernetes": {"version": "1.34.4"}}
    own = {"url": provider, "audience": "api://aks-flex-rp"}
    document["provider"] = {**own, "caCertData": document["azure"]["caCertData"]}
    loaded = load_text(json.dumps(document), "test", {}, {})
    engine = engine_on(empty_host(), loaded.config, Machine(hostname="edge-1", program=PROGRAM))
    source = FromLocalFile(engine.host, ConfigSelection(), loaded)
    source.fetch(ProgressReporter())
    with source.register(engine, print) as registration:
        assert registration.start
        registration.start()


@pytest.mark.parametrize("corrected", ["the resource", "the machine's identity"])
def test_identity_of_the_node_resource_is_accepted(azure: tuple[Cloud, CertificateAuthority], corrected: str) -> None:
    cloud, authority = azure
    own, other = (cloud.directory.service_principal(name, "right") for name in ("own", "other"))
    handler = type("OwnProvider", (ProviderHandler,), {"resource": {"azureAuth": other.object_id}})
    with listening(handler, authority.issue("localhost", "localhost", names=("localhost",))) as provider:
        refused = error_of(lambda: announce(cloud, provider, own))
        assert refused.name == "identity-registration-failed"
        if corrected == "the resource":
            handler.resource["azureAuth"] = own.object_id  # type: ignore[attr-defined]
        announce(cloud, provider, own if corrected == "the resource" else other)
